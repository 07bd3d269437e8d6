"""Operations of every level that this machine has; they share nothing and close their threads at the end."""

from collections.abc import Callable, Iterator

import pytest

from svc.compute.cpu import CpuOps
from svc.compute.cpu.library import available_levels
from svc.compute.cpu.ops import Activations

MakeOps = Callable[[int, str], CpuOps]
MakeInt8Ops = MakeOps


def make_and_close(activations: Activations) -> Iterator[MakeOps]:
    made: list[CpuOps] = []

    def make(threads: int, level: str) -> CpuOps:
        made.append(CpuOps(threads, activations=activations, level=level, poison=True, least_shared_work=0))
        return made[-1]

    yield make
    for ops in made:
        ops.close()


@pytest.fixture
def make_ops() -> Iterator[MakeOps]:
    """make_ops(threads, level)."""
    yield from make_and_close("float")


@pytest.fixture
def make_int8_ops() -> Iterator[MakeInt8Ops]:
    """The same with activations rounded to 8 bits."""
    yield from make_and_close("int8")


@pytest.fixture(params=available_levels() or [pytest.param("", marks=pytest.mark.skip(reason="no kernels were built"))])
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)
