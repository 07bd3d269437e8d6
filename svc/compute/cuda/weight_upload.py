"""Bulk uploads, double-buffered: one pinned buffer is filled while the other is being copied."""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from svc.compute.cuda.device import Device, DeviceArray

PIECE_BYTES = 16 << 20  # half a millisecond on the bus, far more than starting a copy costs


class WeightUploader:
    """Owner of the two buffers, which the first upload allocates. `close` frees them."""

    def __init__(self, device: Device, piece_bytes: int | None = None) -> None:
        """`piece_bytes`: size of a buffer, by default PIECE_BYTES."""
        self.piece_bytes = piece_bytes or PIECE_BYTES
        self._device = device
        self._buffers: list[NDArray[np.uint8]] = []
        self._read = (device.event(), device.event())  # the buffer has been copied
        self._turn = 0

    def upload(
        self, target: DeviceArray, pieces: Iterable[NDArray[np.uint8]], progress: Callable[[int], None] | None = None
    ) -> None:
        """target uint8 [n] = the concatenated pieces, each uint8 of up to `piece_bytes`.

        All pieces have been read on return; the last copies may still be queued on the main stream. An exception from
        `progress(bytes read)` is passed on after the queue is empty.
        """
        done = 0
        try:
            for piece in pieces:
                place = target.view((len(piece),), offset_bytes=done)
                self._device.copy_in_async(place, self._filled(piece))
                self._read[self._turn].record()
                done += len(piece)
                if progress:
                    progress(done)
        except BaseException:
            self._device.synchronize(self._device.main)
            raise
        assert done == target.size, f"{done} bytes for {target!r}"

    def close(self) -> None:
        """Waits for the copies and frees the buffers."""
        for event in self._read:
            event.synchronize()
        self._buffers.clear()

    def _filled(self, piece: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Copies the piece into the next buffer, after waiting for the buffer's previous copy."""
        if not self._buffers:
            self._buffers = [self._device.pinned((self.piece_bytes,), np.uint8) for _ in self._read]
        self._turn = 1 - self._turn
        self._read[self._turn].synchronize()
        buffer = self._buffers[self._turn][: len(piece)]
        np.copyto(buffer, piece)  # reads the file; numpy releases the GIL
        return buffer
