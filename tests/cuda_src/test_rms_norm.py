"""rms_norm against the reference."""

import numpy as np
import pytest

from svc.compute.cuda.device import Device
from svc.compute.cuda.rms_norm import rms_norm
from svc.compute.reference import math
from tests.tolerances import KERNEL

EPSILON = 1e-6


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("columns", [1, 31, 256, 1000, 5120])
@pytest.mark.parametrize("rows", [1, 3])
def test_equals_reference(device: Device, rows: int, columns: int) -> None:
    """Any number of rows and columns."""
    x, weight = normal(0, rows, columns), normal(1, columns)
    out = device.empty((rows, columns), np.float32)
    rms_norm(device, out, device.from_host(x), device.from_host(weight), EPSILON)
    np.testing.assert_allclose(device.to_host(out), math.rms_norm(x, weight, EPSILON), rtol=KERNEL, atol=KERNEL)


def test_row_keeps_its_bits_in_company(device: Device) -> None:
    """A row alone and among others: the same bits."""
    x, weight = normal(0, 7, 257), device.from_host(normal(1, 257))
    together, alone = device.empty((7, 257), np.float32), device.empty((1, 257), np.float32)
    rms_norm(device, together, device.from_host(x), weight, EPSILON)
    rms_norm(device, alone, device.from_host(x[4:5]), weight, EPSILON)
    np.testing.assert_array_equal(device.to_host(together)[4:5], device.to_host(alone))


def test_listed_rows_into_larger_ones(device: Device) -> None:
    """Rows taken and put by number, at an offset; nothing else is written."""
    x, weight = normal(0, 5, 40), normal(1, 40)
    before = normal(2, 4, 100)
    out = device.from_host(before)
    from_rows, to_rows = (device.from_host(np.array(rows, np.int32)) for rows in ([4, 0], [3, 1]))
    rms_norm(
        device, out, device.from_host(x), device.from_host(weight), EPSILON, from_rows=from_rows, to_rows=to_rows, to_offset=60
    )
    expected = before.copy()
    expected[[3, 1], 60:] = math.rms_norm(x[[4, 0]], weight, EPSILON)
    np.testing.assert_allclose(device.to_host(out), expected, rtol=KERNEL, atol=KERNEL)
    np.testing.assert_array_equal(device.to_host(out)[:, :60], before[:, :60])
