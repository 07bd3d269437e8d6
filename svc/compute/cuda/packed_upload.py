"""Uploads a step's small arrays in one copy, through pinned memory."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.compute.cuda.device import Device, DeviceArray

WORD_BYTES = 4
WORDS_ALIGNED = 64  # arrays begin at multiples of this


class PackedUpload:
    """Owner of pinned buffers and of one device buffer, all of one size. Arrays of the same shapes always get the same addresses.

    The pinned buffers are used in turn: `depth` uploads may be queued before a call must wait for the device.
    """

    def __init__(self, device: Device, num_words: int, depth: int = 2) -> None:
        self._device = device
        self._buffer = device.empty((num_words,), np.int32)
        # Each with an event: its copy is done.
        buffers: list[NDArray[np.int32]] = [device.pinned((num_words,), np.int32) for _ in range(depth)]
        self._turns = itertools.cycle([(buffer, device.event()) for buffer in buffers])

    def upload(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, DeviceArray]:
        """Queues the copy. The returned arrays are valid until the next call."""
        pinned, read = next(self._turns)
        read.synchronize()
        there, start = {}, 0
        for name, values in arrays.items():
            end = start + values.nbytes // WORD_BYTES
            assert end <= len(pinned), f"{name} {values.shape} does not fit behind {start} words of {len(pinned)}"
            pinned[start:end].view(values.dtype).reshape(values.shape)[...] = values
            there[name] = self._buffer.view(values.shape, values.dtype, offset_bytes=WORD_BYTES * start)
            start += aligned_words(end - start)
        used = min(start, len(pinned))
        self._device.copy_in_async(self._buffer.rows(0, used), pinned[:used])
        read.record()
        return there


def aligned_words(words: int) -> int:
    return -(-words // WORDS_ALIGNED) * WORDS_ALIGNED
