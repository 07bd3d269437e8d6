"""Activations in blocks of 32 signed bytes."""

import numpy as np
import pytest

from svc.compute.cuda.device import Device
from svc.compute.cuda.quantize import BLOCK_BYTES, quantize
from tests.cuda_src.matrices import Float32, normal, quantized

BLOCK = np.dtype([("scale", "<f4"), ("sum", "<f4"), ("q", "i1", 32)])


def on_device(device: Device, x: Float32) -> np.ndarray:
    blocks = device.empty((x.shape[0], x.shape[1] // 32 * BLOCK_BYTES), np.uint8)
    quantize(device, blocks, device.from_host(x))
    return device.to_host(blocks).view(BLOCK)


@pytest.mark.parametrize("shape", [(1, 32), (1, 96), (3, 256), (5, 2048), (33, 160)])
def test_equals_numpy(device: Device, shape: tuple[int, int]) -> None:
    """Scale and bytes exactly; the sum is of the rounded values."""
    x = normal(0, *shape) * np.float32(3)
    blocks, (scale, q) = on_device(device, x), quantized(x)
    np.testing.assert_array_equal(blocks["scale"], scale)
    np.testing.assert_array_equal(blocks["q"], q)
    np.testing.assert_array_equal(blocks["sum"], scale * q.sum(axis=2, dtype=np.int32).astype(np.float32))


def test_error_is_half_a_step(device: Device) -> None:
    """No value is further from its byte than half the scale, for any range of its block; the largest reaches 127."""
    x = normal(1, 16, 320) * np.float32(10) ** np.arange(-8, 8, dtype=np.float32)[:, None]
    blocks = on_device(device, x)
    restored = (blocks["scale"].astype(float)[:, :, None] * blocks["q"]).reshape(x.shape)
    assert (np.abs(restored - x) <= 0.500001 * np.repeat(blocks["scale"].astype(float), 32, axis=1)).all()
    assert (np.abs(blocks["q"].astype(int)).max(axis=2) == 127).all()


def test_halves_go_to_even(device: Device) -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :6] = [127, 0.5, 1.5, 2.5, -0.5, -1.5]
    np.testing.assert_array_equal(on_device(device, x)["q"][0, 0, :6], [127, 0, 2, 2, 0, -2])


def test_zeros_and_what_is_not_a_number(device: Device) -> None:
    """A block of zeros is zeros; a NaN or an infinity is seen in its own block and in no other."""
    x = normal(2, 4, 64)
    x[0, :32], x[1, 5], x[2, 63] = 0, np.nan, np.inf
    blocks, (scale, q) = on_device(device, x), quantized(normal(2, 4, 64))
    assert (blocks["scale"][0, 0], blocks["sum"][0, 0], *blocks["q"][0, 0]) == (0,) * 34
    assert np.isnan(blocks["scale"][1, 0])
    assert not np.isfinite(blocks["scale"][2, 1])
    for row, block in ((0, 1), (1, 1), (2, 0), (3, 0), (3, 1)):
        assert blocks["scale"][row, block] == scale[row, block]
        np.testing.assert_array_equal(blocks["q"][row, block], q[row, block])


def test_no_rows(device: Device) -> None:
    assert on_device(device, np.empty((0, 64), np.float32)).size == 0
