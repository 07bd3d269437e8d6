"""The package's build of the kernels: optional, honest about its platform, and every level of the machine in the wheel.

Slow: pip makes an isolated environment for each build and fetches setuptools from the package index.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[3]
NOT_PACKAGED = shutil.ignore_patterns(".*", "tests", "*.so", "build", "dist", "*.egg-info", "__pycache__")


def build_wheel(folder: Path, compiler: str) -> Path:
    shutil.copytree(ROOT, folder / "source", ignore=NOT_PACKAGED)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(folder / "source")]
    subprocess.run(command, check=True, env={**os.environ, "CC": compiler})
    [wheel] = folder.glob("*.whl")
    return wheel


def kernels_in(wheel: Path) -> set[str]:
    with ZipFile(wheel) as archive:
        return {Path(name).stem for name in archive.namelist() if name.endswith(".so")}


@pytest.mark.slow
def test_without_a_compiler_the_build_succeeds(tmp_path: Path) -> None:
    """A wheel for any platform, without kernels."""
    wheel = build_wheel(tmp_path, "/bin/false")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert kernels_in(wheel) == set()


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("cc") or platform.machine() != "x86_64", reason="needs a C compiler for x86-64")
def test_the_wheel_has_every_level(tmp_path: Path) -> None:
    """For any Python 3 on machines with the glibc that the kernels need: auditwheel, which reads their symbols, finds the same."""
    wheel = build_wheel(tmp_path, "cc")
    platform_tag = wheel.stem.partition("-py3-none-")[2]
    assert re.fullmatch(r"manylinux_2_\d+_x86_64", platform_tag)
    shown = subprocess.run([sys.executable, "-m", "auditwheel", "show", str(wheel)], check=True, capture_output=True, text=True)
    assert f'is consistent with the following platform tag: "{platform_tag}"' in " ".join(shown.stdout.split())
    assert kernels_in(wheel) == {
        "_kernels_base",
        "_kernels_x86_64_v3",
        "_kernels_x86_64_v3_avxvnni",
        "_kernels_x86_64_v4",
        "_kernels_x86_64_v4_vnni",
        "_kernels_x86_64_v4_amx",
    }
