"""A step under construction: which slots take part, and the `StepBatch` that says so to the device."""

from dataclasses import dataclass, field

import numpy as np

from svc.compute.backend import PENDING, Capture, Chunk, History, PageCopy, RowSnapshot, Sample, StepBatch
from svc.memory.sequence_cache import SequenceCache
from svc.memory.snapshot_ring import SnapshotRef
from svc.slots.request import Sequence
from svc.slots.slot import Closing, Slot


@dataclass(slots=True, eq=False)
class PlannedChunk:
    """One slot's share of the forward: its tokens [start, end). `pending`: the one token that the step under way samples."""

    slot: Slot
    start: int
    end: int
    pending: bool
    captures: list[tuple[int, SnapshotRef]]  # (position, snapshot)


@dataclass(slots=True, eq=False)
class StepPlan:
    """A batch and what `commit` needs to know about it. Built by one `plan()` call, consumed by one `commit()` or `abort()`."""

    chunks: list[PlannedChunk] = field(default_factory=list)
    seated: list[Slot] = field(default_factory=list)  # slots in this step, with or without a chunk
    starting: list[Slot] = field(default_factory=list)
    sampling: list[Slot] = field(default_factory=list)
    saves: list[Closing] = field(default_factory=list)
    arriving: list[Slot] = field(default_factory=list)  # not in this step: what they resume from is on its way from the host
    num_decodes: int = 0
    num_prefill: int = 0
    batch: StepBatch = field(default_factory=StepBatch)

    @property
    def empty(self) -> bool:
        return not (self.seated or self.saves or self.arriving)

    def holds(self, slot: Slot) -> bool:
        return slot in self.seated

    def states(self) -> list[tuple[Sequence, int]]:
        """(whose, after how many tokens) of the states that it captures and saves."""
        captured = [(chunk.slot.sequence, position) for chunk in self.chunks for position, _ in chunk.captures]
        return captured + [(closing.sequence, closing.position) for closing in self.saves]


def build_batch(plan: StepPlan, cache: SequenceCache, *, ahead: bool) -> StepBatch:
    """The device work of a plan, in the order the contract fixes (compute/backend.py). `ahead`: of the end of the step before."""
    copies: list[PageCopy] = []
    zero_rows: list[int] = []
    restores: list[RowSnapshot] = []
    for slot in plan.seated:
        copies += [PageCopy(source, target) for source, target in cache.take_copies(slot.lease)]
    for slot in plan.starting:
        snapshot_id = cache.start_snapshot(slot.lease)
        if slot.lease.row_comes:
            continue
        if snapshot_id is None:
            zero_rows.append(slot.lease.row)
        else:
            restores.append(RowSnapshot(slot.lease.row, snapshot_id))
    moves_before, moves = cache.take_moves()
    return StepBatch(
        moves=moves,
        moves_before=moves_before,
        await_moves=bool(plan.arriving) and not plan.seated,
        copies=copies,
        saves=[RowSnapshot(closing.lease.row, cache.device_snapshot(closing.ref)) for closing in plan.saves],
        zero_rows=zero_rows,
        restores=restores,
        chunks=[_chunk(planned) for planned in plan.chunks],
        captures=[
            Capture(index, position, cache.device_snapshot(ref))
            for index, planned in enumerate(plan.chunks)
            for position, ref in planned.captures
        ],
        samples=[_sample(slot) for slot in plan.sampling],
        ahead=ahead,
    )


def _chunk(planned: PlannedChunk) -> Chunk:
    slot = planned.slot
    known = slot.sequence.tokens[planned.start : planned.end]
    return Chunk(
        row=slot.lease.row,
        start=planned.start,
        tokens=np.array([PENDING], np.int32) if planned.pending else known.copy(),
        pages=slot.lease.table.array(planned.end),
    )


def _sample(slot: Slot) -> Sample:
    sequence = slot.sequence
    request = sequence.request
    pending = slot.sampling - 1  # tokens before this one that are not known yet
    history = None
    if request.params.has_penalties:
        history = History(np.append(sequence.tokens, np.full(pending, PENDING, np.int32)), sequence.num_prompt)
    return Sample(
        row=slot.lease.row,
        position=len(sequence.tokens) + pending,
        choice=request.choice,
        params=request.params,
        banned=sequence.banned_after(sequence.generated + pending),
        history=history,
        stops=request.stop_ids,
    )
