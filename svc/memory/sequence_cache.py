"""The two memories behind one face: pages, seats, snapshots and the tree of what is known. The only thing `slots` uses.

Owner of all of them. Life of one sequence:

    resume = cache.match(tokens, now)            where can it go on?
    lease = cache.open(tokens, resume, now)      a seat, the shared pages, the snapshot pinned
    cache.start_cell(lease)                      restore this cell into lease.row in its first step (None: zero the row)
    cache.extend(lease, end, now)                before every step: pages for the positions it writes
    cache.take_copies(lease)                     after extend: page copies that the same step must make first
    cache.reserve(lease, tokens, position, now)  a cell for a capture in that step
    cache.started(lease)                         after a step with copies or the restore
    cache.publish(ref, tokens, lease, now)       after the step that wrote the cell
    cache.close(lease, tokens, valid, now)       however it ends

Steps run on the device in the order they were planned. So a page or cell given back may be handed out at once, although a step
under way still writes it: its next owner's writes come later.

Token ids are passed as int32 arrays or any sequence of ints; arrays are not converted and so cost less. Nothing here keeps them.
"""

import itertools
from dataclasses import dataclass, field, replace

from svc.memory.block_table import BlockTable
from svc.memory.eviction import worth
from svc.memory.page_pool import PagePool
from svc.memory.plan import MemoryPlan
from svc.memory.prefix_tree import PrefixTree, TokenIds, token_array
from svc.memory.snapshot_ring import CellState, SnapshotRef, SnapshotRing, StaleSnapshotError
from svc.memory.state_rows import StateRows
from svc.memory.stats import CacheStats, Counters

__all__ = ["COLD", "Lease", "ResumePoint", "SequenceCache", "SnapshotRef", "StaleSnapshotError", "TokenIds"]


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
    restored: bool = False
    closed: bool = False
    new_copies: list[tuple[int, int]] = field(default_factory=list)  # not yet given out
    copy_sources: list[int] = field(default_factory=list)  # held until the copy is done
    reserved: dict[int, SnapshotRef] = field(default_factory=dict)  # by position
    trail: list[SnapshotRef] = field(default_factory=list)  # what it resumed from and what it has published

    def __repr__(self) -> str:
        return f"Lease({self.serial}, row {self.row}, from {self.start}, {self.table!r}{', closed' if self.closed else ''})"


class SequenceCache:
    """All bookkeeping of one model's memory. Plain and synchronous; `now` is seconds on any one steady clock."""

    def __init__(self, plan: MemoryPlan) -> None:
        self.plan = plan
        self._hybrid = plan.layout.hybrid
        self._pool = PagePool(plan.num_pages, plan.layout.page_tokens)
        self._rows = StateRows(plan.num_rows)
        self._ring = SnapshotRing(plan.num_cells)
        self._tree = PrefixTree(self._pool, self._ring, hybrid=self._hybrid)
        self._leases: dict[int, Lease] = {}  # by serial
        self._writer_of: dict[int, Lease] = {}  # cell reserved -> lease
        self._pinned_pages: dict[int, list[int]] = {}  # cell published and pinned -> claims on its path, held with it
        self._serials = itertools.count(1)
        self._counters = Counters()

    def __repr__(self) -> str:
        return f"SequenceCache({len(self._leases)} leases, {self._pool!r}, {self._ring!r}, {self._tree!r})"

    # -- beginning ------------------------------------------------------------------------------------------------------------
    def match(self, tokens: TokenIds, now: float) -> ResumePoint:
        """Deepest point at which `tokens` can go on. Changes nothing (`now` is not used: being used is what `open` notes).

        Hybrid: the deepest published snapshot on the path. Attention-only: the whole common prefix, except that the last token is
        evaluated anew when no snapshot (of its hidden row) stands at exactly len(tokens).
        """
        walk = self._tree.walk(token_array(tokens))
        node = self._tree.deepest_snapshot(walk)
        position = node.end if node is not None else 0
        if not self._hybrid and position < len(tokens):
            position, node = min(walk.matched, len(tokens) - 1), None
        snapshot = None if node is None or node.cell is None else self._ring.ref(node.cell)
        return ResumePoint(max(position, 0), snapshot, walk.matched)

    def open(self, tokens: TokenIds, resume: ResumePoint, now: float) -> Lease | None:
        """Takes a seat, holds the shared pages and pins the snapshot; None (and nothing changed) when no seat is free.

        Raises StaleSnapshotError when `resume` is no longer true; match again. Matching and opening without anything between is
        always right.
        """
        walk = self._tree.walk(token_array(tokens, resume.position))
        node = self._tree.deepest_snapshot(walk) if resume.snapshot is not None else None
        if resume.snapshot is not None and (
            node is None or node.end != resume.position or node.cell is None or self._ring.ref(node.cell) != resume.snapshot
        ):
            raise StaleSnapshotError(f"{resume} does not hold any more")
        if walk.matched < resume.position:
            raise StaleSnapshotError(f"{resume} does not hold any more: only {walk.matched} tokens are known")
        row = self._rows.take()
        if row is None:
            return None
        size = self._pool.page_tokens
        pages = walk.pages(resume.position, size)
        self._pool.hold(pages)
        shared = resume.position // size if resume.position % size else None
        table = BlockTable(size, pages)
        lease = Lease(row, resume.position, table, next(self._serials), shared, resume.snapshot)
        self._leases[lease.serial] = lease
        if resume.snapshot is not None and node is not None:
            self.pin(resume.snapshot)
            lease.trail.append(resume.snapshot)
            node.last_use = max(node.last_use, now)
        if not self._hybrid:
            self._tree.touch(walk, now)
        self._counters.num_opened += 1
        self._counters.num_resumed += resume.position > 0
        self._counters.resumed_tokens += resume.position
        return lease

    def start_cell(self, lease: Lease) -> int | None:
        """The cell to restore into the lease's row in its first step; None: set the row to zero (also for attention-only).

        Ask before `started`: afterwards the cell may hold something else.
        """
        assert not lease.closed, f"{lease!r} is closed"
        assert not lease.restored, f"{lease!r} has started already"
        return None if lease.snapshot is None else lease.snapshot.cell

    # -- writing --------------------------------------------------------------------------------------------------------------
    def extend(self, lease: Lease, end: int, now: float) -> bool:
        """Pages for all positions < end, evicting what is worth least when none is free. False, and nothing changed, when even
        that is not enough.

        Before its first write the lease also copies or takes over the partial page it shares: see `take_copies`.
        """
        assert not lease.closed, f"{lease!r} is closed"
        wanted = max(self._pool.pages_for(end) - len(lease.table), 0)
        index = lease.shared_page if end > lease.start else None
        if index is None and not wanted:
            return True
        copies = index is not None and not self._pool.can_take_over(
            lease.table.page_at(index), lease.start % self._pool.page_tokens
        )
        if not self._make_room(wanted + copies, now):
            return False
        if index is not None:
            self._own_page(lease, index, copy=copies)
        for _ in range(wanted):
            lease.table.append(self._pool.allocate(lease.serial))
        return True

    def take_copies(self, lease: Lease) -> list[tuple[int, int]]:
        """Page copies (source, target) that the step writing behind the last `extend` must make first. Each is given out once;
        the source is kept until `started`."""
        copies, lease.new_copies = lease.new_copies, []
        return copies

    def started(self, lease: Lease) -> None:
        """A step with the lease's restore (or zeroing) or copies has been done: lets go of the snapshot and of copied pages.

        Call it after each such step; when in doubt, after any step of the lease.
        """
        if lease.closed:
            return
        lease.restored = True
        self._drop_start(lease)

    # -- snapshots ------------------------------------------------------------------------------------------------------------
    def reserve(self, lease: Lease, tokens: TokenIds, position: int, now: float) -> SnapshotRef | None:
        """A cell for the state after tokens[:position]; None: skip this capture.

        None when a snapshot is published there already, when the lease has reserved that position, or when no cell is free and
        none is cheaper than this one would be. Never waits, never touches pinned, reserved or written cells.
        """
        assert not lease.closed, f"{lease!r} is closed"
        assert 0 < position <= len(tokens), f"no state after {position} of {len(tokens)} tokens"
        if position in lease.reserved:
            return None
        walk = self._tree.walk(token_array(tokens, position))
        node = self._tree.deepest_snapshot(walk)
        shallower = node.end if node is not None else 0
        if shallower == position:
            return None
        ref = self._ring.reserve(position) or self._reserve_by_eviction(lease, position, shallower, now)
        if ref is None:
            self._counters.num_skipped += 1
            return None
        lease.reserved[position] = ref
        self._writer_of[ref.cell] = lease
        return ref

    def publish(self, ref: SnapshotRef, tokens: TokenIds, lease: Lease, now: float) -> None:
        """The cell and the pages of tokens[:position] have been written: makes them matchable.

        What the tree knows of the path keeps its pages; the rest is claimed from the lease's. Where a snapshot already stands, the
        new cell is given back - or the old one, if joiners wait for the new one.
        """
        position = self._ring.position(ref)
        if lease.closed or lease.reserved.get(position) != ref:
            raise StaleSnapshotError(f"{ref} was not reserved by {lease!r}")
        assert position <= min(len(tokens), lease.table.end), f"{ref} at {position} lies beyond what {lease!r} has written"
        self._ring.mark_written(ref)
        self._forget_reserved(ref, lease)
        node = self._tree.insert(token_array(tokens, position), lease.table.pages, now)
        if node.cell is not None:
            self._counters.num_duplicates += 1
            if self._ring.is_pinned(node.cell) or not self._ring.is_pinned(ref.cell):
                node.last_use = max(node.last_use, now)
                self._ring.give_up(ref)
                return
            self._ring.give_up(self._ring.ref(self._tree.swap(node, ref.cell)))
        else:
            self._tree.attach(node, ref.cell, now)
            self._counters.num_published += 1
        self._ring.mark_published(ref)
        lease.trail.append(ref)
        if self._ring.is_pinned(ref.cell):
            self._hold_path(ref.cell)

    def distrust(self, lease: Lease) -> None:
        """The lease's numbers have turned out not to be finite: nothing it resumed from or published is matched any more.

        Where the fault came from is not known, and a snapshot kept would fail every request on that prefix for ever. An
        attention-only model cannot tell which of its pages are at fault and forgets all it knows.
        """
        if not self._hybrid:
            self.clear()
        for ref in lease.trail:
            if self._ring.is_published(ref):
                self._give_up_cell(self._tree.detach(self._tree.node_of_cell(ref.cell)))
        lease.trail.clear()

    def position(self, ref: SnapshotRef) -> int:
        """How many tokens the state in that cell stands behind."""
        return self._ring.position(ref)

    def abandon(self, ref: SnapshotRef) -> None:
        """Gives back a reserved cell. If joiners have pinned it, it stays aside, unmatched, until they let go."""
        lease = self._writer_of.get(ref.cell)
        if self._ring.state(ref) is not CellState.RESERVED or lease is None:
            raise StaleSnapshotError(f"{ref} is not reserved")
        self._forget_reserved(ref, lease)
        self._ring.give_up(ref)
        self._counters.num_abandoned += 1

    def pin(self, ref: SnapshotRef) -> None:
        """Keeps a snapshot (reserved or published), and once published its pages, from eviction. Counted."""
        if self._ring.pin(ref) and self._ring.is_published(ref):
            self._hold_path(ref.cell)

    def pin_at(self, tokens: TokenIds, position: int) -> SnapshotRef | None:
        """Pins the published snapshot of tokens[:position], or None when there is none."""
        node = self._tree.deepest_snapshot(self._tree.walk(token_array(tokens, position)))
        if node is None or node.cell is None or node.end != position:
            return None
        ref = self._ring.ref(node.cell)
        self.pin(ref)
        return ref

    def unpin(self, ref: SnapshotRef) -> None:
        """One pin less. Allowed for whoever pinned it, also after the snapshot was abandoned or erased meanwhile."""
        if self._ring.unpin(ref):
            self._pool.release(self._pinned_pages.pop(ref.cell, ()))

    # -- ending ---------------------------------------------------------------------------------------------------------------
    def close(self, lease: Lease, tokens: TokenIds, valid: int, now: float) -> None:
        """Frees the seat, the pages, the pins and whatever the lease had reserved and not published.

        tokens[:valid] are the positions truly written. An attention-only model keeps them all matchable; a hybrid one keeps what
        its published snapshots claim. Pass valid=0 for a sequence whose values cannot be trusted.
        """
        assert not lease.closed, f"{lease!r} is closed twice"
        assert valid <= min(len(tokens), lease.table.end), f"{valid} valid positions, but {lease!r} and {len(tokens)} tokens"
        if valid > 0 and not self._hybrid:
            self._tree.claim(token_array(tokens, valid), lease.table.pages, now)
        for ref in list(lease.reserved.values()):
            self.abandon(ref)
        self._drop_start(lease)
        lease.new_copies = []
        for page in lease.table.pages:
            self._pool.stop_writing(page, lease.serial)
        self._pool.release(lease.table.pages)
        self._rows.give_back(lease.row)
        lease.closed = True
        del self._leases[lease.serial]

    def clear(self) -> None:
        """Forgets everything that can be matched. Live leases, reserved cells and pins go on; pinned cells are only set aside."""
        while self._tree.leaves:
            self._give_up_cell(self._tree.drop_leaf(self._tree.leaves[-1]))

    # -- asking ---------------------------------------------------------------------------------------------------------------
    def free_pages_possible(self) -> int:
        """Pages free now or by eviction: `extend` can get exactly that many. O(1)."""
        return self._pool.num_available

    def idle_pages(self, tokens: TokenIds, resume: ResumePoint) -> int:
        """Pages that `open` would take out of `free_pages_possible`: those of the resume point that nobody holds yet."""
        walk = self._tree.walk(token_array(tokens, resume.position))
        return sum(not self._pool.is_held(page) for page in walk.pages(min(resume.position, walk.matched), self._pool.page_tokens))

    @property
    def num_free_rows(self) -> int:
        """Seats nobody sits on."""
        return self._rows.num_free

    def stats(self) -> CacheStats:
        """For metrics and status pages; walks the whole tree, so not in every step."""
        pool, ring, rows = self._pool, self._ring, self._rows
        return CacheStats(
            num_pages=pool.num_pages,
            free_pages=pool.num_free,
            cached_pages=pool.num_cached,
            held_pages=pool.num_pages - pool.num_available,
            num_rows=rows.num_rows,
            free_rows=rows.num_free,
            num_cells=ring.num_cells,
            free_cells=ring.num_free,
            reserved_cells=ring.count(CellState.RESERVED) + ring.count(CellState.WRITTEN),
            published_cells=ring.count(CellState.PUBLISHED),
            stranded_cells=ring.count(CellState.STRANDED),
            pinned_cells=ring.num_pinned,
            num_nodes=sum(1 for _ in self._tree.nodes()),
            counters=replace(self._counters),
        )

    def check(self) -> None:
        """Proves that every page, cell and seat is accounted for; AssertionError says what is not. Linear: for tests and idle."""
        claims, cells = self._tree.check()
        holds = [page for pages in self._pinned_pages.values() for page in pages]
        pins: dict[int, int] = {}
        reserved: dict[int, Lease] = {}
        for lease in self._leases.values():
            holds += lease.table.pages + lease.copy_sources
            if lease.snapshot is not None:
                pins[lease.snapshot.cell] = pins.get(lease.snapshot.cell, 0) + 1
            for position, ref in lease.reserved.items():
                assert self._ring.position(ref) == position, f"{lease!r} has {ref} under position {position}"
                assert self._ring.state(ref) is CellState.RESERVED, f"{ref} of {lease!r} is {self._ring.state(ref).value}"
                reserved[ref.cell] = lease
            for page in lease.table.pages:
                writer = self._pool.writer(page)
                assert writer == lease.serial or writer in self._leases or writer < 0, (
                    f"page {page} has the writer {writer}, who left"
                )
        assert reserved == self._writer_of, "reserved cells and their leases do not add up"
        written = self._ring.count(CellState.RESERVED) + self._ring.count(CellState.WRITTEN)
        assert written == len(reserved), f"{written} cells are reserved or written, {len(reserved)} have an owner"
        self._pool.check(holds, claims)
        self._ring.check(cells, pins)
        self._rows.check([lease.row for lease in self._leases.values()])
        for cell in self._pinned_pages:
            assert self._ring.is_pinned(cell), f"pages are held for cell {cell}, which nobody pins"

    # -- parts ----------------------------------------------------------------------------------------------------------------
    def _own_page(self, lease: Lease, index: int, *, copy: bool) -> None:
        """Makes the lease the writer of its shared partial page, or of a copy of it."""
        page = lease.table.page_at(index)
        lease.shared_page = None
        if not copy:
            self._pool.take_over(page, lease.serial)
            self._counters.num_take_overs += 1
            return
        target = self._pool.allocate(lease.serial)
        lease.table.replace(index, target)
        lease.copy_sources.append(page)  # the table's hold on it becomes the copy's
        lease.new_copies.append((page, target))
        self._counters.num_page_copies += 1

    def _make_room(self, count: int, now: float) -> bool:
        """At least `count` free pages, evicting leaves; False when that cannot be."""
        if self._pool.num_available < count:
            return False
        while self._pool.num_free < count:
            self._evict_leaf(count - self._pool.num_free, now)
        return True

    def _evict_leaf(self, num_pages: int, now: float) -> None:
        leaf, looked = self._tree.find_cheap_leaf(now, idle_only=True)
        if leaf is None:
            # What is cached stands above leaves that live leases still hold: their claims go first.
            leaf, more = self._tree.find_cheap_leaf(now, idle_only=False)
            looked += more
        self._counters.num_candidates += looked
        assert leaf is not None, f"no leaf to evict, yet {self._pool!r}"
        before = len(leaf.pages)
        if self._hybrid:
            cell = self._tree.drop_leaf(leaf)
            self._counters.evicted_pages += before
        else:
            cell = self._tree.trim_leaf(leaf, num_pages)
            self._counters.evicted_pages += min(num_pages, before)
        self._counters.num_evicted_snapshots += cell is not None
        self._give_up_cell(cell)

    def _reserve_by_eviction(self, lease: Lease, position: int, shallower: int, now: float) -> SnapshotRef | None:
        """The cell of a published snapshot that is worth less than the new one, which is taken off the tree."""
        cheap, value, looked = self._ring.find_cheap(lambda cell: self._tree.snapshot_worth(cell, now))
        self._counters.num_candidates += looked
        if cheap is None:
            return None
        own = (reserved for reserved in lease.reserved if reserved < position)
        new = worth(position, max(shallower, *own, 0), 0.0) if self._hybrid else worth(1, 0, 0.0)
        if value >= new:
            return None
        self._counters.num_evicted_snapshots += 1
        self._give_up_cell(self._tree.detach(self._tree.node_of_cell(cheap.cell)))
        return self._ring.reserve(position)

    def _give_up_cell(self, cell: int | None) -> None:
        if cell is not None:
            self._ring.give_up(self._ring.ref(cell))

    def _hold_path(self, cell: int) -> None:
        """Pages of a pinned snapshot count as held, not as cached: `free_pages_possible` then promises nothing it cannot keep."""
        pages = self._tree.claims_on_path(self._tree.node_of_cell(cell))
        self._pool.hold(pages)
        self._pinned_pages[cell] = pages

    def _drop_start(self, lease: Lease) -> None:
        sources, lease.copy_sources = lease.copy_sources, []
        self._pool.release(sources)
        if lease.snapshot is not None:
            ref, lease.snapshot = lease.snapshot, None
            self.unpin(ref)

    def _forget_reserved(self, ref: SnapshotRef, lease: Lease) -> None:
        del lease.reserved[self._ring.position(ref)]
        del self._writer_of[ref.cell]
