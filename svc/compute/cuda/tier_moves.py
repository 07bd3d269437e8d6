"""Moves between device and pinned host memory, on a stream of their own: copy engines work while kernels compute.

Events alone keep the order (compute/backend.py has the contract):

- The moves of a step wait for all earlier work on the main stream, which may use the same places.
- The main stream waits for earlier moves only before a step that writes a place they use.
- The host knows that moves are over when their event is done. Only later launches read the places they filled.
"""

from collections import deque
from dataclasses import dataclass

from svc.compute.backend import StepBatch
from svc.compute.cuda.caches import CudaCaches
from svc.compute.cuda.device import Device, Event
from svc.compute.cuda.snapshot_cells import restore_rows
from svc.compute.tier_moves import SLABS, Places, Run, places_moved, places_written, runs
from svc.memory.tiers import MoveKind


@dataclass(frozen=True, slots=True)
class PendingMoves:
    """The moves of one step. `last`: number of the last one, counted over all steps."""

    last: int
    places: Places
    done: Event


class TierMoves:
    """Owner of the side stream. Called from one thread at a time, as the device is."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._side = device.stream()
        self._written = device.event()  # on the main stream, before the moves of a step
        self._pending: deque[PendingMoves] = deque()
        self._spare: list[Event] = []
        self._over = 0

    def begin(self, caches: CudaCaches, batch: StepBatch) -> None:
        """Queues the moves of a step, then makes the main stream wait for pending moves whose places the step writes.

        Call it before anything else of the step is queued.
        """
        if batch.moves:
            self._written.record()
            self._written.wait(self._side)
            for run in runs(batch.moves):
                self._copy(caches, run)
            done = self._spare.pop() if self._spare else self._device.event()
            done.record(self._side)
            last = batch.moves_before + len(batch.moves)
            self._pending.append(PendingMoves(last, places_moved(batch.moves), done))
        if self._pending:
            self._guard(places_written(batch, caches.plan.layout.page_tokens))

    def over(self, *, all_of_them: bool) -> int:
        """Number of finished moves. `all_of_them`: waits for all that have begun."""
        if all_of_them and self._pending:
            self._pending[-1].done.synchronize()
        while self._pending and self._pending[0].done.done():
            ended = self._pending.popleft()
            self._over = ended.last
            self._spare.append(ended.done)
        return self._over

    def _guard(self, written: Places) -> None:
        """Waits for the latest moves that use a written place, and so for all before them."""
        for moves in reversed(self._pending):
            if moves.places.meet(written):
                moves.done.wait()
                return

    def _copy(self, caches: CudaCaches, run: Run) -> None:
        if run.kind is MoveKind.ROW_IN and caches.plan.layout.lossy_snapshots:
            self._restore(caches, run)
            return
        source, target = (getattr(caches, name) for name in SLABS[run.kind])
        there, here = target[run.target : run.target + run.count], source[run.source : run.source + run.count]
        if run.kind in (MoveKind.PAGE_OUT, MoveKind.SNAPSHOT_OUT):
            self._device.to_host_async(there, here, self._side)
        else:
            self._device.copy_in_async(there, here, self._side)

    def _restore(self, caches: CudaCaches, run: Run) -> None:
        """One after the other through `caches.arriving`; the stream keeps them in order."""
        for i in range(run.count):
            snapshot, row = (
                caches.host_snapshots[run.source + i : run.source + i + 1],
                caches.rows.rows(run.target + i, run.target + i + 1),
            )
            self._device.copy_in_async(caches.arriving, snapshot, self._side)
            restore_rows(self._device, caches.plan.layout, caches.arriving, row, caches.arriving_pair, self._side)
