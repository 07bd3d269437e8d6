"""The matrices that kernels are timed with are ordinary ones, and the peak counts what was done."""

import ctypes

import numpy as np
import pytest

from svc.compute.cpu import CpuOps
from svc.compute.cpu.library import available_levels
from tests.bench.machine_limits import matrix


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "Q6_K"])
def test_scales_are_ordinary(kind: str) -> None:
    """No infinities, no NaN and not all zero: these could take another time than a model's weights."""
    values = matrix(kind, 3).dequantize()
    assert np.isfinite(values).all()
    assert 0.01 < np.abs(values).max() < 10


@pytest.mark.parametrize("level", available_levels())
def test_integer_peak_counts_every_thread(level: str) -> None:
    """Three threads do three times the work of one, and twice the rounds are twice the work, on every build."""

    def done(threads: int, rounds: int) -> int:
        ops, count = CpuOps(threads, level=level), ctypes.c_int64()
        ops._kernels.call("hr_integer_peak", rounds, ctypes.byref(count))
        ops.close()
        return count.value

    assert 0 < done(1, 5) * 6 == done(3, 10)
