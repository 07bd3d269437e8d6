"""Log probabilities of given tokens, computed on the device: numbers come back, not rows of logits."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from svc.compute.cuda.device import Device, DeviceArray
from svc.compute.cuda.packed_upload import PackedUpload, aligned_words
from svc.compute.cuda.sample import logprobs

MOST_SCORES = 256  # of one launch; more are split


class DeviceScorer:
    """Owner of the kernel's buffers."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._packed = PackedUpload(device, 2 * aligned_words(MOST_SCORES))
        self._values = device.empty((MOST_SCORES,), np.float32)
        self._pinned: NDArray[np.float32] = device.pinned((MOST_SCORES,), np.float32)
        self._there = device.event()

    @staticmethod
    def device_bytes() -> int:
        return 4 * (2 * aligned_words(MOST_SCORES) + MOST_SCORES)

    def score(self, logits: DeviceArray, rows: Sequence[int], targets: Sequence[int]) -> list[float]:
        """log softmax(logits[rows[i]])[targets[i]] of logits [n, V], NaN if one of the row is not finite. Waits for the result."""
        assert len(rows) == len(targets)
        found: list[float] = []
        for start in range(0, len(rows), MOST_SCORES):
            part = slice(start, start + MOST_SCORES)
            found += self._part(logits, np.array(rows[part], np.int32), np.array(targets[part], np.int32))
        return found

    def _part(self, logits: DeviceArray, rows: NDArray[np.int32], targets: NDArray[np.int32]) -> list[float]:
        there, count = self._packed.upload({"rows": rows, "targets": targets}), len(rows)
        logprobs(self._device, self._values[:count], logits, there["rows"], there["targets"])
        self._device.to_host_async(self._pinned[:count], self._values[:count])
        self._there.record()
        self._there.synchronize()
        return [float(value) for value in self._pinned[:count]]
