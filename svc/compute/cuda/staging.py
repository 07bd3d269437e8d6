"""Small host arrays on their way to the device: one copy for all of them, through pinned memory."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.compute.cuda.device import Device, DeviceArray

WORD_BYTES = 4
WORDS_ALIGNED = 64  # where an array may begin


class Staging:
    """Owner of a pinned buffer and of one of the same size on the device. Arrays of the same shapes always get the same places."""

    def __init__(self, device: Device, num_words: int) -> None:
        self._device = device
        self._pinned: NDArray[np.int32] = device.pinned((num_words,), np.int32)
        self._buffer = device.empty((num_words,), np.int32)
        self._read = device.event()  # the copy has read the pinned memory

    def copied(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, DeviceArray]:
        """Queues the copy; the arrays there are good until the next call."""
        self._read.synchronize()
        there, start = {}, 0
        for name, values in arrays.items():
            end = start + values.nbytes // WORD_BYTES
            assert end <= len(self._pinned), f"{name} {values.shape} does not fit behind {start} words of {len(self._pinned)}"
            self._pinned[start:end].view(values.dtype).reshape(values.shape)[...] = values
            there[name] = self._buffer.view(values.shape, values.dtype, offset_bytes=WORD_BYTES * start)
            start += aligned_words(end - start)
        used = min(start, len(self._pinned))
        self._device.copy_in_async(self._buffer.rows(0, used), self._pinned[:used])
        self._read.record()
        return there


def aligned_words(words: int) -> int:
    return -(-words // WORDS_ALIGNED) * WORDS_ALIGNED
