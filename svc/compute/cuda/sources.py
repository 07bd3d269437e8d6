"""Finds `cuda_src/*.cu` and turns each into self-contained text with a hash.

Includes with quotes are inlined, because CuPy's cache of compiled kernels does not see changes of included files. The real device
and the emulator compile the same text; `#line` keeps the file names and line numbers of the sources in messages."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"')
_CONDITION = re.compile(r"^[ \t]*#[ \t]*(if|ifdef|ifndef|endif)\b")


@dataclass(frozen=True, slots=True)
class Source:
    name: str  # "rms_norm"
    path: Path
    text: str  # our includes inlined

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


def source_directory() -> Path:
    """cuda_src: beside this file in an installed package, at the root in a checkout."""
    installed = Path(__file__).parent / "cuda_src"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "cuda_src"


def source_names(directory: Path | None = None) -> list[str]:
    return sorted(path.stem for path in (directory or source_directory()).glob("*.cu"))


def load_source(name: str, directory: Path | None = None) -> Source:
    """`<directory>/<name>.cu`, quoted includes looked up beside it and in `include/` and `quant/` there, then in ours.

    FileNotFoundError names the missing file and the including one.
    """
    directory = directory or source_directory()
    path = directory / f"{name}.cu"
    roots = [directory, directory / "include"]
    if directory != source_directory():
        roots += [source_directory(), source_directory() / "include"]
    return Source(name, path, _Inliner(roots).expand(path, outer_conditions=0))


class _Inliner:
    """Inlines every header once. The compiler may skip a header inside `#if`, so there it is inlined again, behind a guard."""

    def __init__(self, roots: list[Path]) -> None:
        self.roots = roots
        self.certain: set[Path] = set()  # inlined outside of conditions

    def expand(self, path: Path, outer_conditions: int) -> str:
        conditions = outer_conditions
        out = [f'#line 1 "{path.name}"']
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if condition := _CONDITION.match(line):
                conditions += -1 if condition[1] == "endif" else 1
            if include := _INCLUDE.match(line):
                out += self._include(self._find(include[1], path), conditions)
                out.append(f'#line {number + 1} "{path.name}"')
            elif line.strip() != "#pragma once":
                out.append(line)
        return "\n".join(out) + "\n"

    def _include(self, path: Path, conditions: int) -> list[str]:
        if path in self.certain:
            return []
        if not conditions:
            self.certain.add(path)
        guard = "INLINED_" + re.sub(r"\W", "_", f"{path.parent.name}_{path.name}")
        return [f"#ifndef {guard}", f"#define {guard}", self.expand(path, conditions), "#endif"]

    def _find(self, name: str, wanted_by: Path) -> Path:
        for root in (wanted_by.parent, *self.roots):
            if (path := root / name).is_file():
                return path.resolve()
        raise FileNotFoundError(f"{wanted_by.name} includes {name}, which does not exist")
