"""For all tests."""

import os
from pathlib import Path

import pytest

# Before the first import of numpy. The models here are tiny, and BLAS threads that wait for each other where two cores are shared
# make the reference five times slower than one thread is.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Where single files take minutes: they begin first, so that no core is left alone with one of them at the end.
LONG = ("exactness", "scenarios", "e2e", "compute", "cuda_src", "kernels")
ROOT = Path(__file__).parent


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; apart from that the order stays."""
    items.sort(key=lambda item: _rank(item.path))


def _rank(path: Path) -> int:
    folder = path.relative_to(ROOT).parts[0] if path.is_relative_to(ROOT) else ""
    return LONG.index(folder) if folder in LONG else len(LONG)
