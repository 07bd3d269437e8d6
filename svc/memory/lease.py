"""Where a sequence can go on, and what one that is seated holds of the memory."""

from dataclasses import dataclass, field

from svc.memory.block_table import BlockTable
from svc.memory.snapshot_ring import SnapshotRef


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a sequence can go on."""

    position: int  # tokens already known: all their pages, and the snapshot where one is needed
    snapshot: SnapshotRef | None  # None only at position 0, and in an attention-only model short of the last token
    matched_tokens: int  # longest prefix the tree knows (>= position): where the sequence branches off


COLD = ResumePoint(position=0, snapshot=None, matched_tokens=0)
"""Start from nothing (`use_cache` off)."""


@dataclass(eq=False, slots=True)
class Lease:
    """One seated sequence's hold on the memory. Read `row`, `start` and `table`; the rest is SequenceCache's."""

    row: int
    start: int  # position it resumed at
    table: BlockTable
    serial: int  # its name as a writer of pages
    shared_page: int | None  # index of the partial page it has yet to copy or take over, before it first writes
    snapshot: SnapshotRef | None  # pinned until the restore is done
    row_comes: bool = False  # from the host: nothing on the device to restore from
    ready_after: int = 0  # number of the last move it waits for
    restored: bool = False
    closed: bool = False
    new_copies: list[tuple[int, int]] = field(default_factory=list)  # not yet given out
    copy_sources: list[int] = field(default_factory=list)  # held until the copy is done
    reserved: dict[int, SnapshotRef] = field(default_factory=dict)  # by position
    trail: list[SnapshotRef] = field(default_factory=list)  # what it resumed from and what it has published

    def __repr__(self) -> str:
        return f"Lease({self.serial}, row {self.row}, from {self.start}, {self.table!r}{', closed' if self.closed else ''})"
