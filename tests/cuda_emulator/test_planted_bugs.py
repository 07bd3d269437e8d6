"""The emulator against kernels with one mistake each: what it claims to find, it finds."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from svc.compute.cuda.device import DeviceFaultError
from tests.cuda_emulator.build import Build, have_compiler
from tests.cuda_emulator.device import EmulatedDevice
from tests.cuda_emulator.image import ORDERS, Order

pytestmark = pytest.mark.skipif(not have_compiler(), reason="the CUDA emulator needs g++")

PLANTED = Path(__file__).parent / "planted"
N = 512
DIFFERS = "the results of the three orders differ, or are NaN"

# What the fast build shows, in one of the orders at least: DIFFERS, a fault by these words, or (None) nothing.
FAST = {
    "no_barrier_before_read": DIFFERS,
    "no_barrier_before_write": DIFFERS,
    "no_syncwarp": DIFFERS,
    "shuffle_as_barrier": None,
    "shared_one_too_far": None,
    "shared_far_out": None,
    "dynamic_shared_too_small": "beyond the dynamic shared memory: byte 1008 of 1008",
    "write_one_too_far": "illegal memory access at 0x[0-9a-f]*000 ",
    "read_one_too_far": "illegal memory access at 0x[0-9a-f]*000 ",
    "misaligned_vector": None,
    "shared_never_written": DIFFERS,
    "barrier_in_a_branch": DIFFERS,
    "shuffle_in_a_branch": r"deadlock.*in a collective aaaaaaaa \(__shfl_xor_sync with mask ffffffff\)",
    "return_before_shuffle": r"deadlock.*ended 80000000.*in a collective 7fffffff",
    "shuffle_from_outside_the_mask": "shuffles from lane 20, which does not take part",
    "different_masks": "the warp diverged|deadlock",
    "blocks_share_a_slot": DIFFERS,
    "write_into_const": None,
    "divides_by_zero": "integer division by zero",
    "copy_not_waited_for": DIFFERS,
    "copy_never_waited_for": "cp.async copies that it has not waited for",
    "stack_overflow": "stack overflow",
    "null_pointer": "illegal memory access at (nil|0)",
    "never_ends": "did not end within 0.2 seconds",
    "never_ends_with_barriers": "did not end within 0.2 seconds",
}
# What the checked build says, in every order. A place is the line of the access in bugs.cu.
CHECKED = {
    "no_barrier_before_read": r"race: (read|write) after .* at bugs.cu:\d+: .*other access at bugs.cu:\d+|never written",
    "no_barrier_before_write": r"race: (write after read|read after write).*at bugs.cu:\d+.*by block \d, thread \d+",
    "no_syncwarp": "race: (read after write|write after read)",
    "shuffle_as_barrier": "race: read after write",
    "shared_one_too_far": "out-of-bounds write of 4 bytes at bugs.cu:.*byte 1024 of 1024 of shared shared_one_too_far::s",
    "shared_far_out": "out-of-bounds write.*byte 1180 of 1024",
    "dynamic_shared_too_small": r"out-of-bounds write.*byte 10\d\d of 1008 of dynamic shared memory",
    "write_one_too_far": "out-of-bounds write of 4 bytes.*byte 2048 of an array of 2048 bytes",
    "read_one_too_far": "out-of-bounds read of 4 bytes.*byte 2048 of an array of 2048 bytes",
    "read_far_out": "out-of-bounds read",
    "misaligned_vector": "misaligned",
    "shared_never_written": "read of shared memory that was never written",
    "barrier_in_a_branch": "reached by only some threads|race|never written",
    "shuffle_in_a_branch": "deadlock",
    "return_before_shuffle": "deadlock",
    "shuffle_from_outside_the_mask": "does not take part",
    "different_masks": "the warp diverged|deadlock",
    "blocks_share_a_slot": "race: read after write.*by block [01], thread",
    "write_into_const": "write into a const array",
    "local_array_too_small": "array index out of bounds at bugs.cu:",
    "signed_overflow": "signed overflow at bugs.cu:",
    "negative_shift": "shift by too much or by a negative number at bugs.cu:",
    "divides_by_zero": "division by zero",
    "copy_not_waited_for": r"race: write after read of 16 bytes at ptx.cuh:\d+ called at bugs.cu:\d+",
    "copy_never_waited_for": "cp.async copies that it has not waited for",
    "stack_overflow": "stack overflow",
    "null_pointer": "null pointer|near no array",
    "never_ends": "did not end within 0.2 seconds",
    "never_ends_with_barriers": "did not end within 0.2 seconds",
}


def outcome(kernel: str, build: Build, order: Order) -> np.ndarray | str:
    """y, or the words of the fault."""
    device = EmulatedDevice(build=build, order=order, sources=PLANTED, limit_s=0.2)
    x = device.from_host(np.arange(1, N + 1, dtype=np.float32))
    y = device.from_host(np.zeros(N, np.float32))
    shared = 1008 if kernel == "dynamic_shared_too_small" else 0
    try:
        device.launch(device.module("bugs").kernel(kernel), (2,), (256,), (x, y, N), shared)
    except DeviceFaultError as fault:
        return str(fault)
    return device.to_host(y)


def outcomes(kernel: str, build: Build) -> Iterator[Any]:
    return (outcome(kernel, build, order) for order in ORDERS)


@pytest.mark.parametrize("build", ["fast", "checked"])
@pytest.mark.parametrize("order", ORDERS)
def test_a_correct_kernel_passes(build: Build, order: Order) -> None:
    """No false alarm, and the right result."""
    expected = np.arange(1, N + 1, dtype=np.float32).reshape(2, 256)[:, ::-1].ravel()
    np.testing.assert_array_equal(outcome("correct", build, order), expected)


@pytest.mark.parametrize("kernel", FAST)
def test_fast_build(kernel: str) -> None:
    """The fast build shows what the table says, and the table admits what it cannot show."""
    expected, found = FAST[kernel], list(outcomes(kernel, "fast"))
    faults = [result for result in found if isinstance(result, str)]
    if expected is None or expected == DIFFERS:
        assert not faults
        same = all(np.array_equal(found[0], result) for result in found)  # NaN is not equal to itself
        assert same == (expected is None)
    else:
        assert any(_matches(expected, fault) for fault in faults), faults


@pytest.mark.parametrize("kernel", CHECKED)
def test_checked_build(kernel: str) -> None:
    """The checked build names the mistake in every order of threads."""
    for result in outcomes(kernel, "checked"):
        assert isinstance(result, str)
        assert _matches(CHECKED[kernel], result), result


def test_write_into_the_gap_of_alignment() -> None:
    """Arrays whose end is not where a page ends: a write right behind is seen after the launch."""
    device = EmulatedDevice(sources=PLANTED)
    x, y = (device.zeros((N - 12,), np.float32) for _ in range(2))
    with pytest.raises(DeviceFaultError, match=r"wrote behind the end of float\* y"):
        device.launch(device.module("bugs").kernel("write_one_too_far"), (2,), (256,), (x, y, N - 12))


def test_blocks_that_wait_for_each_other() -> None:
    """A kernel that needs its blocks to run at once is stopped."""
    device = EmulatedDevice(sources=PLANTED, limit_s=0.2)
    kernel = device.module("bugs").kernel("waits_for_another_block")
    x, flag = device.zeros((N,), np.float32), device.zeros((1,), np.int32)
    with pytest.raises(DeviceFaultError, match=r"did not end within 0\.2 seconds"):
        device.launch(kernel, (2,), (1,), (x, flag, N))


def test_after_a_fault() -> None:
    """The emulator goes on: the next launch is as good as the first."""
    for kernel in ("null_pointer", "shuffle_in_a_branch", "copy_never_waited_for", "stack_overflow"):
        outcome(kernel, "fast", "forward")
        assert isinstance(outcome("correct", "fast", "forward"), np.ndarray)


def _matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.DOTALL) is not None
