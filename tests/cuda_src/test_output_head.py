"""Final hidden rows against the reference, and gathers bit for bit."""

import numpy as np
import pytest

from svc.compute.cuda.device import Device, DeviceArray
from svc.compute.cuda.output_head import HiddenSlabs, KeptTokens, final_hidden, hidden_rows, live_hidden, logits
from svc.compute.cuda.quantize import workspace_bytes
from svc.compute.reference.math import rms_norm
from tests.cuda_src.matrices import Matrix, assert_close
from tests.tolerances import KERNEL

EPSILON = 1e-6


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ints(device: Device, *values: int) -> DeviceArray:
    return device.from_host(np.array(values, np.int32))


@pytest.mark.parametrize("columns", [1, 72, 1000])
def test_final_hidden(device: Device, columns: int) -> None:
    """Last tokens into live rows and captured ones into snapshots, after the states; nothing for a padding sequence."""
    hidden, weight = normal(0, 9, columns), normal(1, columns)
    before_rows, before_snapshots = normal(2, 5, columns + 31), normal(3, 4, columns + 31)
    rows, snapshots = device.from_host(before_rows), device.from_host(before_snapshots)
    kept = KeptTokens(ints(device, 0, 1, 7, 9, 10), ints(device, 4, 0, 2, -1), ints(device, 3, 6), ints(device, 2, 0))
    arrays = device.from_host(hidden), device.from_host(weight)
    final_hidden(device, HiddenSlabs(rows, snapshots, 31, 31), *arrays, EPSILON, kept)
    final = rms_norm(hidden, weight, EPSILON)
    expected_rows, expected_snapshots = before_rows.copy(), before_snapshots.copy()
    expected_rows[[4, 0, 2], 31:], expected_snapshots[[2, 0], 31:] = final[[0, 6, 8]], final[[3, 6]]
    got_rows, got_snapshots = device.to_host(rows), device.to_host(snapshots)
    np.testing.assert_allclose(got_rows, expected_rows, rtol=KERNEL, atol=KERNEL)
    np.testing.assert_allclose(got_snapshots, expected_snapshots, rtol=KERNEL, atol=KERNEL)
    np.testing.assert_array_equal(got_rows[:, :31], before_rows[:, :31])
    np.testing.assert_array_equal(got_rows[0, 31:], got_snapshots[0, 31:])  # the same token


def test_final_hidden_without_captures(device: Device) -> None:
    hidden, weight = normal(0, 2, 40), normal(1, 40)
    rows, snapshots = device.empty((1, 40), np.float32), device.empty((0, 40), np.float32)
    none = device.empty((0,), np.int32)
    arrays = device.from_host(hidden), device.from_host(weight)
    kept = KeptTokens(ints(device, 0, 2), ints(device, 0), none, none)
    final_hidden(device, HiddenSlabs(rows, snapshots, 0, 0), *arrays, EPSILON, kept)
    np.testing.assert_allclose(device.to_host(rows), rms_norm(hidden[1:], weight, EPSILON), rtol=KERNEL, atol=KERNEL)


def test_hidden_rows(device: Device) -> None:
    """Any tokens, repeated, zeros for padding; each with the bits that final_hidden gives it."""
    hidden, weight = normal(0, 6, 1000), normal(1, 1000)
    arrays = device.from_host(hidden), device.from_host(weight)
    out, rows = device.empty((4, 1000), np.float32), device.empty((1, 1000), np.float32)
    hidden_rows(device, out, *arrays, EPSILON, ints(device, 5, 2, -1, 5))
    none = device.empty((0,), np.int32)
    kept = KeptTokens(ints(device, 0, 6), ints(device, 0), none, none)
    final_hidden(device, HiddenSlabs(rows, rows, 0, 0), *arrays, EPSILON, kept)
    got = device.to_host(out)
    np.testing.assert_allclose(got[[0, 1, 3]], rms_norm(hidden[[5, 2, 5]], weight, EPSILON), rtol=KERNEL, atol=KERNEL)
    np.testing.assert_array_equal(got[2], np.zeros(1000))
    np.testing.assert_array_equal(got[[0, 3]], device.to_host(rows)[[0, 0]])


def test_live_hidden(device: Device) -> None:
    """Bit for bit, in any order and repeated; zeros for padding."""
    slab = normal(4, 5, 131)
    out = device.empty((4, 100), np.float32)
    live_hidden(device, out, device.from_host(slab), ints(device, 3, -1, 0, 3), 31)
    expected = slab[[3, 0, 0, 3], 31:]
    expected[1] = 0
    np.testing.assert_array_equal(device.to_host(out), expected)


@pytest.mark.parametrize(("kind", "count"), [("Q8_0", 1), ("Q8_0", 11), ("F16", 2)])
def test_logits(device: Device, kind: str, count: int) -> None:
    """One row and many, floats and blocks; the vocabulary is odd. A row asked for exactly has the bits it has alone."""
    output, vectors = Matrix(device, kind, 101, 64), normal(1, count, 64)
    workspace = device.empty((workspace_bytes(count, 64),), np.uint8)
    out, alone = device.empty((count, 101), np.float32), device.empty((1, 101), np.float32)
    logits(device, out, output.weight, device.from_host(vectors), workspace)
    assert_close(device.to_host(out), output.dot(vectors))
    logits(device, out, output.weight, device.from_host(vectors), workspace, exact=True)
    logits(device, alone, output.weight, device.from_host(vectors[-1:]), workspace)
    np.testing.assert_array_equal(device.to_host(out)[-1:], device.to_host(alone))
