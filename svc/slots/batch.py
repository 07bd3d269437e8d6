"""A step under construction: which slots take part, and the `StepBatch` that says so to the device."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np

from svc.compute.backend import (
    PENDING,
    Capture,
    Chunk,
    ForcedTokens,
    History,
    PageCopy,
    RowSnapshot,
    Sample,
    Settle,
    StepBatch,
    TokenMask,
)
from svc.memory.sequence_cache import Reservation, StepMemory
from svc.slots.request import Constraint, Request, Sequence
from svc.slots.slot import Closing, Slot
from svc.slots.speculation import NO_DRAFTS, Tokens


@dataclass(slots=True, eq=False)
class PlannedChunk:
    """One slot's share of the forward: its tokens [start, end). `pending`: the one token that the step under way samples."""

    slot: Slot
    start: int
    end: int
    pending: bool
    captures: Items[Reservation]
    drafts: Tokens = field(default_factory=lambda: NO_DRAFTS)  # behind `end`


@dataclass(slots=True, eq=False)
class StepPlan:
    """A batch and what `commit` needs to know about it. Built by one `plan()` call, consumed by one `commit()` or `abort()`."""

    chunks: list[PlannedChunk] = field(default_factory=list)
    captures: list[Reservation] = field(default_factory=list)  # of all chunks
    slots: dict[Slot, None] = field(default_factory=dict)  # slots in this step, with or without a chunk, in order
    sampling: list[Slot] = field(default_factory=list)
    settles: list[Settle] = field(default_factory=list)
    drafts: dict[Slot, Tokens] = field(default_factory=dict)  # of the slots that have some
    saves: list[Closing] = field(default_factory=list)
    arriving: list[Slot] = field(default_factory=list)  # not in this step: what they resume from is on its way from the host
    num_decodes: int = 0
    num_prefill: int = 0
    num_drafts: int = 0
    memory: StepMemory | None = None  # set with `batch`, when the plan is complete
    batch: StepBatch = field(default_factory=StepBatch)

    @property
    def empty(self) -> bool:
        return not (self.slots or self.saves or self.arriving)

    def states(self) -> list[tuple[Sequence, int]]:
        """The states that it captures and saves: (sequence, tokens before it)."""
        captured = [(chunk.slot.sequence, capture.position) for chunk in self.chunks for capture in chunk.captures]
        return captured + [(closing.sequence, closing.position) for closing in self.saves]


def build_batch(plan: StepPlan, memory: StepMemory, *, ahead: bool) -> StepBatch:
    """The device work of a plan, in the order the contract fixes (compute/backend.py). `ahead`: of the end of the step before."""
    return StepBatch(
        moves=memory.moves,
        moves_before=memory.moves_before,
        await_moves=bool(plan.arriving) and not plan.slots,
        copies=[PageCopy(source, target) for source, target in memory.copies],
        settles=plan.settles + [Settle(c.lease.row, c.settled, c.position) for c in plan.saves if c.settled < c.position],
        saves=[RowSnapshot(save.lease.row, save.place) for save in memory.saves],
        zero_rows=memory.zero_rows,
        restores=[RowSnapshot(row, place) for row, place in memory.restores],
        chunks=[_chunk(planned) for planned in plan.chunks],
        captures=[
            Capture(index, capture.position, capture.place)
            for index, planned in enumerate(plan.chunks)
            for capture in planned.captures
        ]
        if plan.captures
        else (),
        samples=[sample for slot in plan.sampling for sample in _samples(slot, plan.drafts.get(slot, NO_DRAFTS))],
        ahead=ahead,
    )


_ONE_PENDING = np.array([PENDING], np.int32)
_ONE_PENDING.setflags(write=False)


def _chunk(planned: PlannedChunk) -> Chunk:
    slot = planned.slot
    tokens = _ONE_PENDING if planned.pending else slot.sequence.tokens[planned.start : planned.end].copy()
    if not len(planned.drafts):
        return Chunk(slot.lease.row, planned.start, tokens, slot.lease.table.array(planned.end))
    end, tokens = planned.end + len(planned.drafts), np.concatenate([tokens, planned.drafts])
    return Chunk(slot.lease.row, planned.start, tokens, slot.lease.table.array(end), len(planned.drafts))


def _samples(slot: Slot, drafts: Tokens) -> list[Sample]:
    """The slot's next token, and the one after each draft."""
    return [_sample(slot, drafts[:count]) for count in range(len(drafts) + 1)] if len(drafts) else [_sample(slot, drafts)]


def _sample(slot: Slot, drafts: Tokens) -> Sample:
    """`drafts`: tokens before this one that may be right."""
    sequence = slot.sequence
    request = sequence.request
    pending = slot.sampling - 1  # tokens before this one that are not known yet
    history = None
    if sequence.penalized:
        unknown = np.full(pending, PENDING, np.int32)
        history = History(np.concatenate([sequence.tokens, unknown, drafts]), sequence.num_prompt)
    return Sample(
        row=slot.lease.row,
        position=sequence.buffer.length + pending + len(drafts),
        choice=request.choice,
        params=request.params,
        banned=sequence.banned_after(sequence.generated + pending + len(drafts)) if request.min_tokens else request.banned,
        history=history,
        stops=request.stop_ids,
        mask=None if request.constraint is None else _mask(request.constraint, drafts),
        learned=sequence.learned,
        forced=_forced(request, drafts),
    )


def _mask(constraint: Constraint, drafts: Tokens) -> TokenMask:
    """What may come behind the drafts, if they are right."""
    return (lambda: _behind(constraint, drafts).mask()) if len(drafts) else constraint.mask


def _forced(request: Request, drafts: Tokens) -> ForcedTokens | None:
    """Nothing is forced where the log probability of every token is wanted, or each draw counts for the next."""
    constraint = request.constraint
    if constraint is None or request.params.num_logprobs is not None or request.params.learns:
        return None
    return (lambda token: _behind(constraint, drafts).forced_after(token)) if len(drafts) else constraint.forced_after


def _behind(constraint: Constraint, drafts: Tokens) -> Constraint:
    fork = constraint.fork()
    for token in drafts.tolist():
        fork.accept(token)
    return fork
