"""Rooms of operations of every level that this machine has; they share nothing and close their threads at the end."""

from collections.abc import Callable, Iterator

import pytest

from svc.compute.cpu import CpuOps
from svc.compute.cpu.library import available_levels

MakeOps = Callable[[int, str], CpuOps]


@pytest.fixture
def make_ops() -> Iterator[MakeOps]:
    """make_ops(threads, level)."""
    made: list[CpuOps] = []

    def make(threads: int, level: str) -> CpuOps:
        made.append(CpuOps(threads, level=level, poison=True, least_shared_work=0))
        return made[-1]

    yield make
    for ops in made:
        ops.close()


@pytest.fixture(params=available_levels() or [pytest.param("", marks=pytest.mark.skip(reason="no kernels were built"))])
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)
