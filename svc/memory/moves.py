"""Moves between the tiers as numbers: what is to be copied from where to where, in which order, and how far that has come.

Order is everything here. A place is given to somebody else as soon as a move out of it is queued, and what was moved can be moved
again at once: that is right because moves are made in the order they were queued, and because whoever makes them lets no step
write a place that a move before it still uses.
"""

import enum
from dataclasses import dataclass


class MoveKind(enum.Enum):
    PAGE_OUT = "page_out"  # device page -> host page
    PAGE_IN = "page_in"  # host page -> device page
    SNAPSHOT_OUT = "snapshot_out"  # snapshot on the device -> on the host
    ROW_IN = "row_in"  # snapshot on the host -> live row


@dataclass(frozen=True, slots=True)
class Move:
    """Copy one whole page, or one whole state."""

    kind: MoveKind
    source: int
    target: int


class MoveQueue:
    """Moves not given out yet, and the count of those that are over. A move's number is how many there were up to it."""

    def __init__(self) -> None:
        self.num_given_out = 0
        self.num_over = 0
        self._waiting: list[Move] = []

    def __repr__(self) -> str:
        return f"MoveQueue({len(self._waiting)} waiting, {self.num_over} of {self.num_given_out} over)"

    def __len__(self) -> int:
        """Moves that wait to be given out."""
        return len(self._waiting)

    @property
    def num_under_way(self) -> int:
        """Given out and not over."""
        return self.num_given_out - self.num_over

    def add(self, kind: MoveKind, source: int, target: int) -> int:
        """Queues a move; its number."""
        self._waiting.append(Move(kind, source, target))
        return self.num_given_out + len(self._waiting)

    def take(self) -> tuple[Move, ...]:
        """All that wait, in order; they are now somebody's to make."""
        moves, self._waiting = tuple(self._waiting), []
        self.num_given_out += len(moves)
        return moves

    def over(self, count: int) -> None:
        """The first `count` moves ever queued are over."""
        assert count <= self.num_given_out, f"{count} moves over, {self.num_given_out} given out"
        self.num_over = max(self.num_over, count)
