"""A seat on the device, lost on preemption (`Slot`), and a seat that only waits for its state to be saved (`Closing`)."""

from dataclasses import dataclass, field

from svc.memory.placement import Wanted
from svc.memory.sequence_cache import Lease
from svc.memory.snapshot_ring import SnapshotRef
from svc.slots.request import Sequence


@dataclass(slots=True, eq=False)
class Slot:
    """A seated sequence. `position` tokens stand in its live row and pages."""

    sequence: Sequence
    lease: Lease
    position: int
    wanted: list[Wanted] = field(default_factory=list)  # captures still ahead, by position
    started: bool = False  # its row has been zeroed or restored
    cancelled: bool = False  # while a step with it was in flight

    @property
    def rank(self) -> tuple[int, int]:
        return self.sequence.rank

    @property
    def remaining(self) -> int:
        """Known tokens not evaluated yet."""
        return len(self.sequence.tokens) - self.position

    @property
    def decoding(self) -> bool:
        return self.remaining == 1 and self.sequence.generated > 0

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
    """An ended sequence whose last state goes into a snapshot cell in the next step; then its seat is free."""

    sequence: Sequence
    lease: Lease
    position: int
    ref: SnapshotRef

    def __repr__(self) -> str:
        return f"<Closing row {self.lease.row} at {self.position}: {self.sequence!r}>"
