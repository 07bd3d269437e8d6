"""Much host memory on its way to the device: through two pinned buffers, one of which is filled while the other is being copied."""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from svc.compute.cuda.device import Device, DeviceArray

PIECE_BYTES = 16 << 20  # half a millisecond on the bus, against which what it costs to begin a copy is nothing


class WeightUploader:
    """Owner of the two buffers, which are made by the first upload. `close` when there will be none for long."""

    def __init__(self, device: Device, piece_bytes: int | None = None) -> None:
        """`piece_bytes`: of a buffer, PIECE_BYTES where not given."""
        self.piece_bytes = piece_bytes or PIECE_BYTES
        self._device = device
        self._buffers: list[NDArray[np.uint8]] = []
        self._read = (device.event(), device.event())  # the copy has read the buffer
        self._turn = 0

    def upload(
        self, target: DeviceArray, pieces: Iterable[NDArray[np.uint8]], progress: Callable[[int], None] | None = None
    ) -> None:
        """target uint8 [n] = the pieces one after the other, each uint8 of up to `piece_bytes`.

        They are read before this returns; the last copies may still be queued then, on the main stream. `progress(bytes read)` may
        raise: what it raises comes out once nothing is queued any more.
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
        """Waits for the copies and lets go of the buffers."""
        for event in self._read:
            event.synchronize()
        self._buffers.clear()

    def _filled(self, piece: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The piece in the buffer whose turn it is, once its copy before is done."""
        if not self._buffers:
            self._buffers = [self._device.pinned((self.piece_bytes,), np.uint8) for _ in self._read]
        self._turn = 1 - self._turn
        self._read[self._turn].synchronize()
        buffer = self._buffers[self._turn][: len(piece)]
        np.copyto(buffer, piece)  # reads the file; other threads run meanwhile
        return buffer
