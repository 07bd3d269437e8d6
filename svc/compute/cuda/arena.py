"""Scratch memory of the operations: one slab, filled from its start by each operation in turn.

Operations run in order on one stream, so each may overwrite the scratch of the one before.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from svc.compute.cuda.device import Device, DeviceArray

ALIGNMENT = 256


class Allocator(Protocol):
    """Source of an operation's buffers: a Device, an Arena or a Tally."""

    def empty(self, shape: Sequence[int], dtype: DTypeLike) -> DeviceArray: ...


class Tally:
    """Counts the bytes of the arrays it hands out, which have no memory."""

    def __init__(self) -> None:
        self.used_bytes = 0

    def empty(self, shape: Sequence[int], dtype: DTypeLike) -> DeviceArray:
        start, self.used_bytes = self.used_bytes, self.used_bytes + padded_bytes(shape, dtype)
        return DeviceArray(start, shape, dtype, None)


class Arena:
    """Owner of the slab. Before `reserve` every buffer is an allocation of its own, for tests of single operations."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._slab: DeviceArray | None = None
        self._used_bytes = 0

    def reserve(self, num_bytes: int) -> None:
        """Allocates the slab. From now on nothing else is allocated, and a need for more than `num_bytes` at once is our bug."""
        self._slab = self._device.empty((num_bytes,), np.uint8)

    def start(self) -> "Arena":
        """Gives the whole slab to a new operation."""
        self._used_bytes = 0
        return self

    def empty(self, shape: Sequence[int], dtype: DTypeLike) -> DeviceArray:
        """Uninitialised, valid until the next `start`."""
        if self._slab is None:
            return self._device.empty(shape, dtype)
        start, self._used_bytes = self._used_bytes, self._used_bytes + padded_bytes(shape, dtype)
        assert self._used_bytes <= self._slab.nbytes, f"{self._used_bytes} bytes of scratch in {self._slab!r}"
        return self._slab.view(shape, dtype, offset_bytes=start)


def padded_bytes(shape: Sequence[int], dtype: DTypeLike) -> int:
    """Bytes of an array, rounded up so that the next one is aligned."""
    return -(-math.prod(shape) * np.dtype(dtype).itemsize // ALIGNMENT) * ALIGNMENT
