"""Whole blocks moved and cleared, bit for bit."""

import numpy as np
import pytest

from svc.compute.cuda.copy_blocks import copy_blocks, zero_blocks
from svc.compute.cuda.device import Device

SIZES = [4, 64, 257 * 4, 2048]  # bytes of a block: words of 4 and of 16, less and more than a thread block


def blocks_of(size: int, dtype: str = "float32") -> np.ndarray:
    """Five blocks of any bits, NaN among them."""
    return np.random.default_rng(size).integers(0, 256, (5, size), np.uint8).view(dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_copy_inside_a_slab(device: Device, size: int, dtype: str) -> None:
    """In order: block 2 is a target first and a source then."""
    before = blocks_of(size, dtype)
    slab, pairs = device.from_host(before), device.from_host(np.array([(0, 2), (4, 1), (2, 3)], np.int32))
    copy_blocks(device, slab, slab, pairs)
    np.testing.assert_array_equal(device.to_host(slab).view(np.uint8), before[[0, 4, 0, 0, 4]].view(np.uint8))


def test_copy_between_slabs(device: Device) -> None:
    rows, snapshots = blocks_of(400), blocks_of(404)[:, :100].copy()
    source, target = device.from_host(rows), device.from_host(snapshots)
    copy_blocks(device, target, source, device.from_host(np.array([(3, 0), (1, 4)], np.int32)))
    expected = snapshots.copy()
    expected[0], expected[4] = rows[3], rows[1]
    np.testing.assert_array_equal(device.to_host(target).view(np.uint8), expected.view(np.uint8))
    np.testing.assert_array_equal(device.to_host(source).view(np.uint8), rows.view(np.uint8))


@pytest.mark.parametrize("size", SIZES)
def test_zero(device: Device, size: int) -> None:
    """NaN does not survive; other blocks do."""
    before = blocks_of(size)
    before[[0, 3]] = np.nan
    slab = device.from_host(before)
    zero_blocks(device, slab, device.from_host(np.array([3, 0], np.int32)))
    expected = before.copy()
    expected[[0, 3]] = 0
    np.testing.assert_array_equal(device.to_host(slab).view(np.uint8), expected.view(np.uint8))


def test_nothing_to_do(device: Device) -> None:
    before = blocks_of(64)
    slab = device.from_host(before)
    copy_blocks(device, slab, slab, device.empty((0, 2), np.int32))
    zero_blocks(device, slab, device.empty((0,), np.int32))
    np.testing.assert_array_equal(device.to_host(slab).view(np.uint8), before.view(np.uint8))
