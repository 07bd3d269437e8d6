"""The build of the C kernels (svc/compute/cpu/csrc), and where the CUDA sources go; the rest is in pyproject.toml.

Plain shared objects for ctypes, no Python.h: the same sources once per level of the instruction set. They are optional. Without a
working C compiler the installation succeeds with a warning, and the server computes with the reference.
`CC` chooses the compiler.
"""

import os
import platform
import re
import runpy
import shlex
import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError

PACKAGE = "svc.compute.cpu"
SOURCES = Path("svc/compute/cpu/csrc")
CUDA_PACKAGE, CUDA_SOURCES = "svc.compute.cuda", "cuda_src"
# No -ffast-math and no contraction: every level must give the same bits (csrc/simd.h).
FLAGS = ["-O3", "-std=c11", "-fPIC", "-shared", "-pthread", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden"]
AVX2 = ["-mavx2", "-mfma", "-mf16c", "-mbmi2"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
PLAIN = ["-DHEADRACE_PLAIN", "-O2"]  # the oracle of the other levels; -O3 doubles its compile time for nothing
LEVEL_FLAGS = {
    "x86_64": {
        "base": PLAIN,
        "x86-64-v3": AVX2,
        "x86-64-v3-avxvnni": [*AVX2, "-mavxvnni"],
        "x86-64-v4": AVX512,
        "x86-64-v4-vnni": [*AVX512, "-mavx512vnni"],
        "x86-64-v4-amx": [*AVX512, "-mavx512vnni", "-mamx-tile", "-mamx-int8"],
    },
    "aarch64": {"base": PLAIN, "neon": [], "neon-dotprod": ["-march=armv8.2-a+dotprod"]},
}
OLDEST_GLIBC = (2, 17)  # of the wheels that this one depends on
MACHINE_NAMES = {"AMD64": "x86_64", "arm64": "aarch64"}


def level_flags() -> dict[str, list[str]]:
    machine = MACHINE_NAMES.get(platform.machine(), platform.machine())
    return LEVEL_FLAGS.get(machine, {"base": PLAIN})


def sources_flag() -> str:
    """What the loader compares with the sources that it finds (svc/compute/cpu/library.py)."""
    package = SOURCES.parent
    return f'-DHEADRACE_SOURCES="{runpy.run_path(str(package / "source_hash.py"))["source_hash"](package)}"'


def module_name(level: str) -> str:
    return f"{PACKAGE}._kernels_{level.replace('-', '_')}"


def compiler() -> list[str]:
    """The command of the C compiler: $CC, or the first usual name that is there."""
    if chosen := os.environ.get("CC"):
        return shlex.split(chosen)
    return next(([name] for name in ("cc", "gcc", "clang") if shutil.which(name)), ["cc"])


class BuildKernels(build_ext):
    """Runs the compiler on all sources of a level at once; a failure is a CompileError, which optional extensions survive."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_suffix(".new")  # renamed when whole: a process that has the old one mapped keeps it
        command = [*compiler(), *FLAGS, sources_flag(), *ext.extra_compile_args, *ext.sources, "-lm", "-o", str(fresh)]
        try:
            subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            fresh.unlink(missing_ok=True)
            target.unlink(missing_ok=True)  # of an earlier build: what is there must belong to these sources
            raise CompileError(f"the C kernels were not built, the cpu device will be missing: {error}") from error
        fresh.replace(target)

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"  # no Python version in the name: it is not a Python module

    def copy_extensions_to_source(self) -> None:
        # Unlinked before they are written again: a process may have them mapped. What was not built must not stay either.
        for stale in SOURCES.parent.glob("_kernels_*.so"):
            stale.unlink()
        super().copy_extensions_to_source()

    def built_libraries(self) -> list[Path]:
        return [path for ext in self.extensions if (path := Path(self.get_ext_fullpath(ext.name))).exists()]


class PackageSources(build_py):
    """Puts the CUDA sources into the package that compiles them when they are used. In a checkout they are found where they are."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, *CUDA_PACKAGE.split("."), CUDA_SOURCES)
            shutil.copytree(CUDA_SOURCES, target, ignore=shutil.ignore_patterns("lab"), dirs_exist_ok=True)


class Wheel(bdist_wheel):
    """For any Python 3; for any platform without kernels, else for those whose glibc the kernels can run with."""

    def get_tag(self) -> tuple[str, str, str]:
        platform_tag = super().get_tag()[2]
        libraries = self.get_finalized_command("build_ext").built_libraries()
        if not libraries:
            return "py3", "none", "any"
        return "py3", "none", manylinux_tag(platform_tag, libraries)


def manylinux_tag(platform_tag: str, libraries: list[Path]) -> str:
    """The tag of PEP 600 for a wheel of these libraries: "linux_x86_64" becomes "manylinux_2_34_x86_64".

    The libraries use nothing but glibc, and the string table of each names the versions of all symbols it uses. Without such
    names (musl, not Linux) the tag stays as it is.
    """
    names = {name for library in libraries for name in re.findall(rb"GLIBC_(\d+)\.(\d+)", library.read_bytes())}
    if not names or not platform_tag.startswith("linux_"):
        return platform_tag
    major, minor = max(OLDEST_GLIBC, *((int(major), int(minor)) for major, minor in names))
    return f"manylinux_{major}_{minor}_{platform_tag.removeprefix('linux_')}"


setup(
    ext_modules=[
        Extension(
            module_name(level),
            sources=sorted(map(str, SOURCES.glob("*.c"))),
            depends=sorted(map(str, SOURCES.glob("*.h"))),
            extra_compile_args=flags,
            optional=True,
        )
        for level, flags in level_flags().items()
    ],
    cmdclass={"build_ext": BuildKernels, "build_py": PackageSources, "bdist_wheel": Wheel},
)
