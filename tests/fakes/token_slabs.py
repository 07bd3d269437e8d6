"""The slabs of a device that keep the tokens behind their numbers: what each row of each page, each live row and each snapshot
holds."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from svc.memory.plan import MemoryPlan
from svc.memory.tiers import Move, MoveKind

State = tuple[int, ...]
Pairs = Iterable[tuple[int, int]]

ENDS = {
    MoveKind.PAGE_OUT: ("pages", "host_pages"),
    MoveKind.PAGE_IN: ("host_pages", "pages"),
    MoveKind.SNAPSHOT_OUT: ("snapshots", "host_snapshots"),
    MoveKind.ROW_IN: ("host_snapshots", "rows"),
}
"""Slabs that a move reads and writes."""


def place_on_device(move: Move) -> tuple[str, int]:
    """The one place of the device that a move reads or writes: its slab and index."""
    source, target = ENDS[move.kind]
    return (source, move.source) if target.startswith("host") else (target, move.target)


class TokenSlabs:
    """`None` is memory nobody has written. The rows of pages hold whatever the user of this writes there.

    `before_write` is told of each place (slab, index) of the device that a step is about to write, its moves apart.
    """

    def __init__(self, plan: MemoryPlan, before_write: Callable[[str, int], None] = lambda slab, place: None) -> None:
        self.page_tokens = plan.layout.page_tokens
        self.pages: list[list[Any]] = [[None] * self.page_tokens for _ in range(plan.num_pages)]
        self.rows: list[State | None] = [None] * plan.num_rows
        self.journal: list[list[Any]] = [[None] * plan.journal_tokens for _ in range(plan.num_rows)]
        self.snapshots: list[State | None] = [None] * plan.num_snapshots
        self.host_pages: list[list[Any]] = [[None] * self.page_tokens for _ in range(plan.num_host_pages)]
        self.host_snapshots: list[State | None] = [None] * plan.num_host_snapshots
        self._before_write = before_write

    def move(self, move: Move) -> None:
        source, target = (getattr(self, slab) for slab in ENDS[move.kind])
        moved = source[move.source]
        target[move.target] = list(moved) if isinstance(moved, list) else moved

    def settle(self, row: int, start: int, end: int) -> None:
        """Replays the journal's tokens [start, end)."""
        state, journal = self.rows[row], self.journal[row]
        assert state is not None
        assert len(state) == start, f"row {row} is at {len(state)}, not at {start}"
        assert start < end <= start + len(journal)
        entries = [journal[position % len(journal)] for position in range(start, end)]
        assert [position for position, _ in entries] == list(range(start, end)), f"the journal of row {row} has other tokens"
        self.set_row(row, (*state, *(token for _, token in entries)))

    def prepare(self, copies: Pairs, saves: Pairs, zero_rows: Iterable[int], restores: Pairs) -> None:
        """Everything between a step's moves and its forward, in the order of the contract."""
        for source, target in copies:
            assert source != target, f"page {source} is copied to itself"
            self._before_write("pages", target)
            self.pages[target] = list(self.pages[source])
        for row, place in saves:
            assert self.rows[row] is not None, f"row {row} saved while empty"
            self.set_snapshot(place, self.rows[row])
        for row in zero_rows:
            self.set_row(row, ())
        for row, place in restores:
            assert self.snapshots[place] is not None, f"row {row} restored from snapshot {place}, which is empty"
            self.set_row(row, self.snapshots[place])

    def set_row(self, row: int, state: State | None) -> None:
        self._before_write("rows", row)
        self.rows[row] = state

    def set_snapshot(self, place: int, state: State | None) -> None:
        self._before_write("snapshots", place)
        self.snapshots[place] = state

    def write(self, pages: Sequence[int], position: int, value: Any) -> None:
        """`pages`: of one sequence, in order."""
        page = int(pages[position // self.page_tokens])
        self._before_write("pages", page)
        self.pages[page][position % self.page_tokens] = value

    def read(self, pages: Sequence[int], end: int) -> list[Any]:
        """What positions [0, end) hold."""
        return [self.pages[pages[at // self.page_tokens]][at % self.page_tokens] for at in range(end)]
