"""A sequence on the device (`Slot`), and one whose last state is being saved (`Closing`)."""

import enum
from collections.abc import Container
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace

from svc.memory.placement import Wanted, plan_captures
from svc.memory.sequence_cache import Lease, Reservation, ResumePoint
from svc.slots.request import Sequence


class SlotState(enum.Enum):
    ACTIVE = "active"
    LEAVING = "leaving"  # its Finished went out while a step with it was under way; the last such step's commit closes it
    CLOSED = "closed"  # its row is free; a step under way may still name it, and does nothing for it


TRANSITIONS: dict[SlotState, frozenset[SlotState]] = {
    SlotState.ACTIVE: frozenset({SlotState.LEAVING, SlotState.CLOSED}),
    SlotState.LEAVING: frozenset({SlotState.CLOSED}),
    SlotState.CLOSED: frozenset(),
}


@dataclass(slots=True, eq=False)
class Slot:
    """A sequence on the device. `position` tokens are in its state row and pages; `planned` will be, once the steps under way
    end."""

    sequence: Sequence
    lease: Lease
    position: int
    planned: int
    settled: int  # tokens in its live row, once the steps under way end: behind `position` the journal has them
    wanted: list[Wanted] = field(default_factory=list)  # captures that no step planned so far makes, by position
    sampling: int = 0  # tokens that steps under way will add
    state: SlotState = SlotState.ACTIVE

    @classmethod
    def of(cls, sequence: Sequence, lease: Lease, resume: ResumePoint, max_captures: int, *, hybrid: bool) -> "Slot":
        """Newly admitted; the lease was opened at `resume`."""
        branch = resume.matched_tokens if resume.matched_tokens > lease.start else None
        sequence.row = lease.row
        length, boundaries = len(sequence.tokens), sequence.request.boundaries
        wanted = plan_captures(length, lease.start, boundaries, branch, (), max_captures, hybrid=hybrid)
        return cls(sequence, lease, lease.start, lease.start, lease.start, wanted)

    @property
    def rank(self) -> tuple[int, int]:
        return self.sequence.rank

    @property
    def active(self) -> bool:
        return self.state is SlotState.ACTIVE

    @property
    def leaving(self) -> bool:
        return self.state is SlotState.LEAVING

    @property
    def closed(self) -> bool:
        return self.state is SlotState.CLOSED

    def go(self, state: SlotState) -> None:
        assert state in TRANSITIONS[self.state], f"{self!r} cannot go from {self.state.value} to {state.value}"
        self.state = state

    @property
    def remaining(self) -> int:
        """Tokens that no step planned so far evaluates, the one being sampled included."""
        return self.sequence.buffer.length + self.sampling - self.planned

    @property
    def decoding(self) -> bool:
        """The next step evaluates one token of the answer."""
        return self.remaining == 1 and self.sequence.generated + self.sampling > 0

    @property
    def decodes(self) -> bool:
        """Whether it is `decoding`, and a step may be planned for that now: asked for every token, so written out."""
        sequence, sampling = self.sequence, self.sampling
        length = sequence.buffer.length + sampling
        return (
            length == self.planned + 1
            and sequence.generated + sampling > 0
            and self.state is SlotState.ACTIVE
            and self.lease.ready
            and not (sampling and length >= sequence.full_at)
        )

    @property
    def protected(self) -> bool:
        """Whether it has not yet come further than it ever was: then it is not preempted."""
        return self.planned <= max(self.sequence.preempted_at, self.lease.start)

    def want(self, capture: Wanted) -> None:
        """Adds a capture ahead; a position already wanted keeps the more valuable kind."""
        for index, other in enumerate(self.wanted):
            if other.position == capture.position:
                self.wanted[index] = replace(other, kind=min(other.kind, capture.kind))
                return
        self.wanted.append(capture)
        self.wanted.sort(key=lambda wanted: wanted.position)

    def __repr__(self) -> str:
        phase = "decode" if self.decoding else f"prefill {self.remaining} left"
        return f"<Slot row {self.lease.row} at {self.position}, {self.state.value}, {phase}: {self.sequence!r}>"


@dataclass(slots=True, eq=False)
class Closing:
    """A sequence whose last state goes into a snapshot in the next step; then its row is free."""

    sequence: Sequence
    save: Reservation
    settled: int  # tokens in its live row, before the step that saves it
    requeue: bool = False  # it was preempted, and waits again once it is saved

    @property
    def position(self) -> int:
        return self.save.position

    @property
    def lease(self) -> Lease:
        return self.save.lease

    def __repr__(self) -> str:
        return f"<Closing row {self.lease.row} at {self.position}: {self.sequence!r}>"


def victim_for(slot: Slot, slots: SequenceOf[Slot], in_step: Container[Slot]) -> Slot | None:
    """The slot of the lowest rank, of `slots` by rank, that may be preempted for `slot`, which may be itself; None: none may.

    Those of the step being planned may not.
    """
    lower = [other for other in slots if other.rank > slot.rank and other not in in_step]
    unprotected = [other for other in lower if not other.protected]
    if unprotected:
        return unprotected[-1]
    alone = len(slots) == 1
    return None if alone or lower or slot.protected else slot
