"""A slot on the device, lost on preemption (`Slot`), and a slot that only waits for its state to be saved (`Closing`)."""

from dataclasses import dataclass, field

from svc.memory.placement import Wanted, plan_captures
from svc.memory.sequence_cache import Lease, ResumePoint
from svc.memory.snapshot_ring import SnapshotRef
from svc.slots.request import Sequence


@dataclass(slots=True, eq=False)
class Slot:
    """A seated sequence. `position` tokens stand in its live row and pages; `planned` will, once the steps under way have ended."""

    sequence: Sequence
    lease: Lease
    position: int
    planned: int
    wanted: list[Wanted] = field(default_factory=list)  # captures that no step planned so far makes, by position
    sampling: int = 0  # tokens that steps under way will add
    started: bool = False  # a step that sets its row to zero or restores it has been planned
    leaving: bool = False  # its Finished went out while a step with it was under way; the last such step's commit closes it
    closed: bool = False  # the slot is given up; a step under way may still name it, and does nothing for it

    @classmethod
    def of(cls, sequence: Sequence, lease: Lease, resume: ResumePoint, most_captures: int, *, hybrid: bool) -> "Slot":
        """Seated anew; `resume` is what the lease was opened at."""
        branch = resume.matched_tokens if resume.matched_tokens > lease.start else None
        length, boundaries = len(sequence.tokens), sequence.request.boundaries
        wanted = plan_captures(length, lease.start, boundaries, branch, (), most_captures, hybrid=hybrid)
        return cls(sequence, lease, lease.start, lease.start, wanted)

    @property
    def rank(self) -> tuple[int, int]:
        return self.sequence.rank

    @property
    def remaining(self) -> int:
        """Tokens that no step planned so far evaluates, the one being sampled included."""
        return len(self.sequence.tokens) + self.sampling - self.planned

    @property
    def decoding(self) -> bool:
        """The next step evaluates one token of the answer."""
        return self.remaining == 1 and self.sequence.generated + self.sampling > 0

    def want(self, capture: Wanted) -> None:
        """Adds a capture ahead; a position already wanted stays as it is."""
        if all(capture.position != other.position for other in self.wanted):
            self.wanted.append(capture)
            self.wanted.sort(key=lambda wanted: wanted.position)

    def __repr__(self) -> str:
        state = "decode" if self.decoding else f"prefill {self.remaining} left"
        return f"<Slot row {self.lease.row} at {self.position}, {state}: {self.sequence!r}>"


@dataclass(slots=True, eq=False)
class Closing:
    """An ended sequence whose last state goes into a snapshot in the next step; then its slot is free."""

    sequence: Sequence
    lease: Lease
    position: int
    ref: SnapshotRef

    def __repr__(self) -> str:
        return f"<Closing row {self.lease.row} at {self.position}: {self.sequence!r}>"
