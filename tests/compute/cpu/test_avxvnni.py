"""The level x86-64-v3-avxvnni where the processor has no AVX-VNNI: its two instructions are written in AVX2, the rest is the same.

Not tested by this: that the processor's own instructions do the same, and its speed.
"""

import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from svc.compute.cpu import library
from svc.compute.cpu.source_hash import source_hash
from tests.compute.cpu import test_int8
from tests.compute.cpu.conftest import MakeInt8Ops

KERNELS = library.SOURCES / "csrc"
LEVEL = "x86-64-v3"  # the name under which the emulating library is found
FLAGS = [
    *("-O2", "-std=c11", "-fPIC", "-shared", "-pthread", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden"),
    *("-mavx2", "-mfma", "-mf16c", "-mbmi2", "-D__AVXVNNI__", "-include", str(Path(__file__).parent / "avxvnni/emulated.h")),
    f'-DHEADRACE_SOURCES="{source_hash(library.SOURCES)}"',
]
COMPILER = shlex.split(os.environ.get("CC", "cc"))

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64" or not shutil.which(COMPILER[0]), reason="needs a C compiler for x86-64"),
    pytest.mark.skipif(LEVEL not in library.available_levels(), reason="this processor has no AVX2"),
]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with plain C and the emulating library."""
    folder = tmp_path_factory.mktemp("kernels")
    shutil.copy(library.library_path("base"), folder)
    target = folder / library.library_path(LEVEL).name
    subprocess.run([*COMPILER, *FLAGS, *map(str, sorted(KERNELS.glob("*.c"))), "-lm", "-o", str(target)], check=True)
    return folder


@pytest.fixture(autouse=True)
def emulating(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(library, "HERE", libraries)
    library.load.cache_clear()
    yield
    library.load.cache_clear()


@pytest.mark.parametrize("tokens", [1, 2, 7, 300])
@pytest.mark.parametrize("name", test_int8.TYPES)
def test_products(make_int8_ops: MakeInt8Ops, name: str, tokens: int) -> None:
    test_int8.test_products_of_rounded_activations(make_int8_ops, LEVEL, name, tokens)


@pytest.mark.parametrize("name", test_int8.TYPES)
def test_same_bits_and_range(make_int8_ops: MakeInt8Ops, name: str) -> None:
    test_int8.test_same_bits_on_every_level_and_for_any_company(make_int8_ops, LEVEL, name)
    test_int8.test_same_bits_in_long_rows_and_in_a_short_last_unit(make_int8_ops, LEVEL, name, 8448)
    test_int8.test_largest_values_stay_in_range(make_int8_ops, LEVEL, name)
