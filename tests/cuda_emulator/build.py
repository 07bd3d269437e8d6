"""Compiles a kernel source for the CPU with the installed g++, into a cache that is keyed by the content of everything that
matters.

Two builds. "fast" is for results; "checked" calls a hook at every load and store (`-fsanitize=thread` with our own hooks
instead of its library, runtime/checks.cpp) and sees races, bounds, and reads of shared memory that nobody wrote."""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal

from svc.compute.cuda.signature import Signature
from svc.compute.cuda.sources import Source

Build = Literal["fast", "checked"]
COMPILER = "g++"
HERE = Path(__file__).parent / "runtime"
UNUSED_AFTER_S = 30 * 24 * 3600

_COMMON = [
    *("-std=c++17", "-fPIC", "-g1", "-Wall", "-Wno-unknown-pragmas", "-Wno-unused", "-Wno-psabi"),
    *("-fvisibility=hidden", "-fno-gnu-unique"),  # each module has its own statics
    *("-fno-strict-aliasing", "-ffp-contract=fast"),  # as NVRTC
    "-fstack-clash-protection",  # a frame larger than a stack meets the page below it, not the next stack
]
_LINK = ["-shared", "-Wl,-Bsymbolic", "-Wl,-z,now"]
_KERNEL: dict[Build, list[str]] = {
    "fast": ["-O2", "-DEMU_FAST_REDUCE"],
    "checked": [
        "-O1",
        "-DEMU_CHECKED",
        "-fsanitize=thread",
        "--param=tsan-instrument-func-entry-exit=0",
        "-fsanitize=alignment,bounds,shift-exponent,signed-integer-overflow,integer-divide-by-zero,float-cast-overflow,null",
        "-fsanitize-recover=all",
    ],
}
_RUNTIME: dict[Build, list[str]] = {"fast": ["-O2"], "checked": ["-O2", "-DEMU_CHECKED"]}
_RUNTIME_SOURCES: dict[Build, list[str]] = {
    "fast": ["scheduler.cpp", "faults.cpp"],
    "checked": ["scheduler.cpp", "faults.cpp", "checks.cpp"],
}


class CompileError(Exception):
    """What g++ said about a source."""


def have_compiler() -> bool:
    return shutil.which(COMPILER) is not None


def build_module(
    source: Source, signatures: Iterable[Signature], defines: Mapping[str, int | str], arch: int, build: Build
) -> Path:
    """The shared library of one source: its kernels registered by name, linked to the runtime beside it."""
    runtime = build_runtime(build)
    flags = (*_COMMON, *_cpu_flags(), *_KERNEL[build], f"-D__CUDA_ARCH__={arch * 10}")
    # Defined behind the emulator's own headers, which may use the same names.
    definitions = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    exports = "".join(f"EMU_EXPORT({signature.kernel}, {signature.bounds or 1024})\n" for signature in signatures)
    text = f'{definitions}{source.text}\n#line 1 "exports"\n{exports}EMU_MODULE\n'
    return _cached(
        source.name, build, [*flags, runtime.name, text], lambda target: _compile_module(target, text, build, flags, runtime)
    )


@cache
def build_runtime(build: Build) -> Path:
    sources = [HERE / name for name in _RUNTIME_SOURCES[build]]
    flags = [*_COMMON, *_cpu_flags(), *_RUNTIME[build]]
    return _cached(
        "runtime", build, [*flags, *_runtime_texts()], lambda target: _run([*flags, *_LINK, *map(str, sources), "-o", str(target)])
    )


@cache
def _runtime_texts() -> tuple[str, ...]:
    """The headers compiled into kernels too."""
    return tuple(path.read_text() for path in sorted(HERE.rglob("*.*")))


@cache
def _build_header(build: Build, flags: tuple[str, ...]) -> Path:
    """The emulator's headers, compiled once for all kernels: to parse them takes as long as most kernels. The file to include."""

    def make(target: Path) -> None:
        _run([*flags, "-I", str(HERE / "include"), "-x", "c++-header", str(HERE / "cuda_emu.h"), "-w", "-o", str(target)])

    key = [*flags, str(HERE), *_runtime_texts()]
    header = _cached("cuda_emu", build, key, make, ".h.gch").with_suffix("")
    header.write_text(f'#include "{HERE / "cuda_emu.h"}"\n')  # of use only if g++ finds the compiled one beside it unfit
    return header


def cache_directory() -> Path:
    """Of the user, as finished builds stay useful; never inside the repository."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(base) / "headrace" / "cuda_emulator"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        directory = Path("/tmp") / f"headrace-cuda-emulator-{os.getuid()}"
        directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def _compile_module(target: Path, text: str, build: Build, flags: tuple[str, ...], runtime: Path) -> None:
    written, compiled = target.with_suffix(".cpp"), target.with_suffix(".o")
    written.write_text(text)
    include = ["-I", str(HERE / "include"), "-include", str(_build_header(build, flags))]
    link = [*_LINK, "-L", str(runtime.parent), f"-l:{runtime.name}", "-Wl,-rpath,$ORIGIN"]
    try:
        _run([*flags, *include, "-c", str(written), "-o", str(compiled)])
        _run([str(compiled), *link, "-o", str(target)])  # without -fsanitize, which would bring the library of that name
    finally:
        written.unlink()
        compiled.unlink(missing_ok=True)


def _run(arguments: list[str]) -> None:
    done = subprocess.run([COMPILER, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise CompileError(done.stderr[:8000])


def _cached(name: str, build: Build, key: list[str], make: Callable[[Path], None], suffix: str = ".so") -> Path:
    """The file of this content, made by `make` unless it is there. Safe when several processes want it at once."""
    digest = hashlib.sha256("\0".join([_compiler_version(), *key]).encode()).hexdigest()[:20]
    path = cache_directory() / f"{name}-{build}-{digest}{suffix}"
    if not path.exists():
        with _locked(path.with_suffix(".lock")):
            if not path.exists():
                fresh = path.with_suffix(f".{os.getpid()}")
                make(fresh)
                fresh.replace(path)
                _remove_unused()
    os.utime(path)
    return path


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    path.unlink(missing_ok=True)


@cache
def _remove_unused() -> None:
    """Once a process: the builds of sources that have long changed."""
    for path in cache_directory().iterdir():
        try:
            if path.stat().st_mtime < time.time() - UNUSED_AFTER_S:
                path.unlink()
        except OSError:
            continue  # another process was quicker


@cache
def _compiler_version() -> str:
    return subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]


@cache
def _cpu_flags() -> tuple[str, ...]:
    """Conversions of float16 and fused multiply-adds in hardware where there are any: several times faster."""
    if platform.machine() != "x86_64":
        return ()
    flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "").split()
    return ("-march=x86-64-v3",) if {"avx2", "fma", "f16c", "bmi2", "movbe"} <= set(flags) else ()
