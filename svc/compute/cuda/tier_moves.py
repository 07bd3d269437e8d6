"""Moves between device and pinned host memory, on a stream of their own: copy engines work while kernels compute.

Order, by events alone (the contract is in compute/backend.py):

- the moves of a step wait for all work queued before on the main stream: it may have written what they read, and may still read
  or write what they write;
- the main stream waits for earlier moves only before a step that writes a place they use;
- the host learns that moves are over when their event is done. What they brought is read by launches made after that.
"""

from collections import deque
from dataclasses import dataclass

from svc.compute.backend import StepBatch
from svc.compute.cuda.caches import CudaCaches
from svc.compute.cuda.device import Device, Event
from svc.compute.tier_moves import SLABS, Places, Run, places_moved, places_written, runs
from svc.memory.tiers import MoveKind


@dataclass(frozen=True, slots=True)
class UnderWay:
    """The moves of one step. `last` is the number of the last of them, counted over all steps."""

    last: int
    places: Places
    done: Event


class TierMoves:
    """Owner of the side stream. Called from one thread at a time, as the device is."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._side = device.stream()
        self._written = device.event()  # on the main stream: what stood before the moves of a step
        self._under_way: deque[UnderWay] = deque()
        self._spare: list[Event] = []
        self._over = 0

    def begin(self, caches: CudaCaches, batch: StepBatch) -> None:
        """Queues the moves of a step, then lets the main stream wait for those, of this step and before, that it would disturb.

        To be called before anything else of the step is queued.
        """
        if batch.moves:
            self._written.record()
            self._written.wait(self._side)
            for run in runs(batch.moves):
                self._copy(caches, run)
            done = self._spare.pop() if self._spare else self._device.event()
            done.record(self._side)
            last = batch.moves_before + len(batch.moves)
            self._under_way.append(UnderWay(last, places_moved(batch.moves), done))
        if self._under_way:
            self._guard(places_written(batch, caches.plan.layout.page_tokens))

    def over(self, *, all_of_them: bool) -> int:
        """How many moves are over; `all_of_them`: waits for all that have begun."""
        if all_of_them and self._under_way:
            self._under_way[-1].done.synchronize()
        while self._under_way and self._under_way[0].done.done():
            ended = self._under_way.popleft()
            self._over = ended.last
            self._spare.append(ended.done)
        return self._over

    def _guard(self, written: Places) -> None:
        """The latest step whose moves use a place written is waited for, and with it all before it."""
        for moves in reversed(self._under_way):
            if moves.places.meet(written):
                moves.done.wait()
                return

    def _copy(self, caches: CudaCaches, run: Run) -> None:
        source, target = (getattr(caches, name) for name in SLABS[run.kind])
        there, here = target[run.target : run.target + run.count], source[run.source : run.source + run.count]
        if run.kind in (MoveKind.PAGE_OUT, MoveKind.SNAPSHOT_OUT):
            self._device.to_host_async(there, here, self._side)
        else:
            self._device.copy_in_async(there, here, self._side)
