"""Resume points, the memory of one sequence in a slot (state row, pages, snapshots), and the memory of one step."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from svc.memory.page_pool import Pages
from svc.memory.prefix_tree import Walk
from svc.memory.snapshot_ring import SnapshotRef
from svc.memory.tiers import Move
from svc.memory.tokens import TokenSource


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a sequence can resume. `position` tokens are known: all their pages, and the snapshot where one is needed."""

    position: int
    snapshot: SnapshotRef | None  # None only at position 0, and in an attention-only model short of the last token
    matched_tokens: int  # longest prefix the tree knows (>= position): where the sequence branches off
    walk: Walk | None = field(default=None, compare=False, repr=False)  # None: nothing is known
    pages: Pages | None = field(default=None, compare=False, repr=False)  # of [0, position), with `walk`
    version: int = field(default=-1, compare=False, repr=False)  # of the tree when this was found
    space: str = ""  # of the tree, in which it was found


COLD = ResumePoint(position=0, snapshot=None, matched_tokens=0)
"""Resume at position 0 (`use_cache` off)."""


class StateRows:
    """`num_rows` state rows; a row belongs to one lease from `take` to `give_back`."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self._free = list(range(num_rows - 1, -1, -1))

    def __repr__(self) -> str:
        return f"StateRows({self.num_free} free of {self.num_rows})"

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self) -> int | None:
        """A row, or None when every row is taken."""
        return self._free.pop() if self._free else None

    def give_back(self, row: int) -> None:
        assert 0 <= row < self.num_rows, f"there is no row {row}"
        assert row not in self._free, f"row {row} is not taken"
        self._free.append(row)

    def check(self, taken: list[int]) -> None:
        """Compares with the rows of live leases."""
        assert sorted(taken + self._free) == list(range(self.num_rows)), f"rows taken {taken} and free {self._free} do not add up"


class BlockTable:
    """The pages of one sequence and their places on the device. Page of position p is `pages[p // page_tokens]`.

    Grows at the end; owned by one lease. Its pages are pinned, so their places do not change.
    """

    def __init__(self, page_tokens: int, pages: Pages, places: NDArray[np.int32]) -> None:
        """`places`: of each page, on the device."""
        self.page_tokens = page_tokens
        self._length = len(pages)
        self.end = self._length * page_tokens  # first position that has no page
        self._given: NDArray[np.int32] | None = None  # the last answer of `array`, while it is true
        self._buffer = np.zeros((2, max(16, len(pages) + len(pages) // 8)), np.int32)
        self._buffer[:, : len(pages)] = pages, places

    def __len__(self) -> int:
        """Number of pages."""
        return self._length

    def __repr__(self) -> str:
        return f"BlockTable({self._length} pages of {self.page_tokens})"

    @property
    def pages(self) -> Pages:
        """All pages in order, int32 `[n]`. A view: good until the table grows."""
        return self._buffer[0, : self._length]

    def page_at(self, index: int) -> int:
        assert 0 <= index < self._length, f"no page at index {index} of {self!r}"
        return int(self._buffer[0, index])

    def extend(self, pages: Pages, places: NDArray[np.int32]) -> None:
        """Appends pages."""
        length = self._length + len(pages)
        if length > self._buffer.shape[1]:
            self._buffer = np.concatenate([self._buffer[:, : self._length], np.zeros((2, length), np.int32)], axis=1)
        self._buffer[:, self._length : length] = pages, places
        self._length = length
        self.end = length * self.page_tokens

    def replace(self, index: int, page: int, place: int) -> None:
        assert 0 <= index < self._length, f"no page at index {index} of {self!r}"
        self._buffer[:, index] = page, place
        self._given = None

    def array(self, end: int) -> NDArray[np.int32]:
        """Places on the device of the pages covering positions [0, end), int32 `[ceil(end / page_tokens)]`: read-only, and does
        not change with the table, so safe to hand to the compute thread."""
        count = -(-end // self.page_tokens)
        if self._given is None or len(self._given) != count:  # once a page, not once a token
            assert count <= self._length, f"positions up to {end} have no page in {self!r}"
            self._given = self._buffer[1, :count].copy()
            self._given.setflags(write=False)
        return self._given


@dataclass(eq=False, slots=True)
class Lease:
    """The memory of one sequence in a slot. Read `row`, `start`, `table`, `ready` and `started`; the rest is SequenceCache's."""

    row: int
    start: int  # position it resumed at
    table: BlockTable
    tokens: TokenSource  # of the sequence: read when something is published
    serial: int  # its name as a writer of pages
    owner: str  # whose text it is; empty: not known
    space: str  # of the tree, in which it publishes
    shared_page: int | None  # index of the partial page it must copy or steal before its first write
    snapshot: SnapshotRef | None  # pinned until the restore is done
    anchor: SnapshotRef | None  # deepest snapshot known on its path: where walks of the tree begin
    row_comes: bool = False  # its state comes from the host: nothing on the device to restore from
    ready_after: int = 0  # number of the last move it waits for; 0: none
    started: bool = False  # a step that sets its row to zero or restores it has been begun
    closed: bool = False
    new_copy: tuple[int, int] | None = None  # pages (source, target) that its next step copies; the source is pinned until then
    reserved: dict[int, "Reservation"] = field(default_factory=dict)  # by position
    trail: list[SnapshotRef] = field(default_factory=list)  # the snapshot it resumed from and those it has published

    @property
    def ready(self) -> bool:
        """Whether everything it resumes from is on the device, so that a step may read it."""
        return not self.ready_after

    def covers(self, end: int) -> bool:
        """Whether it has the pages that it needs to write positions < `end`; then `extend` has nothing to do."""
        return end <= self.table.end and self.shared_page is None

    def __repr__(self) -> str:
        return f"Lease({self.serial}, row {self.row}, from {self.start}, {self.table!r}{', closed' if self.closed else ''})"


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """A snapshot that a step is to write: the state of `lease` after `position` tokens, in that place on the device."""

    lease: Lease
    position: int
    ref: SnapshotRef
    place: int


@dataclass(frozen=True, slots=True, eq=False)
class StepMemory:
    """What one step does to the memory besides its forward, as places on the device. `begin` makes it; `finish` or `abort` ends
    it."""

    leases: tuple[Lease, ...]
    moves_before: int  # moves of all earlier steps together
    moves: tuple[Move, ...]
    copies: tuple[tuple[int, int], ...]  # pages (source, target)
    zero_rows: tuple[int, ...]
    restores: tuple[tuple[int, int], ...]  # (row, snapshot)
    saves: tuple[Reservation, ...]  # the lease's row goes into the snapshot, and the lease is closed
    captures: tuple[Reservation, ...]
    starting: tuple[Lease, ...]  # leases whose rows are set to zero or restored
