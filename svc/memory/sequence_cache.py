"""The two memories behind one face: pages, slots, snapshots and the tree of what is known. The only thing `slots` uses.

Owner of all of them. Life of one sequence:

    resume = cache.match(tokens, now)            where can it go on?
    lease = cache.open(tokens, resume, now)      a slot, the shared pages, the snapshot pinned
    cache.ready(lease)                           before its first step: what it resumes from has arrived from the host
    cache.start_snapshot(lease)                      restore this snapshot into lease.row in its first step (None: zero the row)
    cache.extend(lease, end, now)                before every step: pages for the positions it writes
    cache.take_copies(lease)                     after extend: page copies that the same step must make first
    cache.reserve(lease, tokens, position, now)  a snapshot for a capture in that step
    cache.started(lease)                         after a step with copies or the restore
    cache.publish(ref, tokens, lease, now)       after the step that wrote the snapshot
    cache.close(lease, tokens, valid, now)       however it ends

    cache.take_moves()                           for every step: what it must copy between device and host
    cache.moves_over(count), .moves_failed()     after it

Steps run on the device in the order they were planned. So a page or snapshot given back may be handed out at once, although a step
under way still writes it: its next owner's writes come later. Moves keep to the same order (moves.py), so that what has been moved
to the host can be matched at once, although it may still be on its way: whatever fetches it comes behind.

With a host tier (plan.num_host_pages, plan.num_host_snapshots) what is evicted from the device moves there, and the least worth of
what stands there is lost. A resume point may stand on the host, whole or in part: `open` then takes places on the device for its
pages, and its snapshot goes straight from the host into the live row.

Token ids are passed as int32 arrays or any sequence of ints; arrays are not converted and so cost less. Nothing here keeps them.
"""

import itertools
from dataclasses import replace

from svc.memory.block_table import BlockTable
from svc.memory.evictor import Evictor
from svc.memory.lease import COLD, Lease, ResumePoint
from svc.memory.moves import Move, MoveKind, MoveQueue
from svc.memory.page_pool import PagePool
from svc.memory.plan import MemoryPlan
from svc.memory.prefix_tree import PrefixTree, TokenIds, Walk, token_array
from svc.memory.snapshot_ring import SnapshotRef, SnapshotRing, SnapshotState, StaleSnapshotError
from svc.memory.state_rows import StateRows
from svc.memory.stats import CacheStats, Counters

__all__ = ["COLD", "Lease", "ResumePoint", "SequenceCache", "SnapshotRef", "StaleSnapshotError", "TokenIds"]


class SequenceCache:
    """All bookkeeping of one model's memory. Plain and synchronous; `now` is seconds on any one steady clock."""

    def __init__(self, plan: MemoryPlan) -> None:
        self.plan = plan
        self._hybrid = plan.layout.hybrid
        self._pool = PagePool(plan.num_pages, plan.layout.page_tokens, plan.num_host_pages)
        self._rows = StateRows(plan.num_rows)
        self._ring = SnapshotRing(plan.num_snapshots, plan.num_host_snapshots)
        self._moves = MoveQueue()
        self._arriving: dict[int, int] = {}  # page -> number of the move that brings it to the device
        self._tree = PrefixTree(self._pool, self._ring, hybrid=self._hybrid)
        self._leases: dict[int, Lease] = {}  # by serial
        self._writer_of: dict[int, Lease] = {}  # snapshot reserved -> lease
        self._pinned_pages: dict[int, list[int]] = {}  # snapshot published and pinned -> claims on its path, held with it
        self._serials = itertools.count(1)
        self._counters = Counters()
        self._evictor = Evictor(self._pool, self._ring, self._tree, self._moves, self._counters)

    def __repr__(self) -> str:
        return f"SequenceCache({len(self._leases)} leases, {self._pool!r}, {self._ring!r}, {self._tree!r})"

    # -- beginning ------------------------------------------------------------------------------------------------------------
    def match(self, tokens: TokenIds, now: float) -> ResumePoint:
        """Deepest point at which `tokens` can go on. Changes nothing (`now` is not used: being used is what `open` notes).

        Hybrid: the deepest published snapshot on the path. Attention-only: the whole common prefix, except that the last token is
        evaluated anew when no snapshot (of its hidden row) stands at exactly len(tokens). Either tier is as good.
        """
        walk = self._tree.walk(token_array(tokens))
        node = self._tree.deepest_snapshot(walk)
        position = node.end if node is not None else 0
        if not self._hybrid and position < len(tokens):
            position, node = min(walk.matched, len(tokens) - 1), None
        snapshot = None if node is None or node.snapshot_id is None else self._ring.ref(node.snapshot_id)
        return ResumePoint(max(position, 0), snapshot, walk.matched)

    def open(self, tokens: TokenIds, resume: ResumePoint, now: float) -> Lease | None:
        """Takes a slot, holds the shared pages and pins the snapshot; None (and nothing held) when no slot is free, or no room on
        the device for the pages that have to come from the host.

        Raises StaleSnapshotError when `resume` is no longer true; match again. Matching and opening without anything between is
        always right.
        """
        walk = self._tree.walk(token_array(tokens, resume.position))
        node = self._tree.deepest_snapshot(walk) if resume.snapshot is not None else None
        if resume.snapshot is not None and (
            node is None
            or node.end != resume.position
            or node.snapshot_id is None
            or self._ring.ref(node.snapshot_id) != resume.snapshot
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
        if resume.snapshot is not None:
            self.pin(resume.snapshot)
        absent = [page for page in pages if self._pool.on_host(page)] if self.plan.num_host_pages else []
        if absent and not self._evictor.make_room(len(absent), now):
            self._pool.release(pages)
            if resume.snapshot is not None:
                self.unpin(resume.snapshot)
            self._rows.give_back(row)
            return None
        shared = resume.position // size if resume.position % size else None
        table = BlockTable(size, pages, self._pool.places)
        lease = Lease(row, resume.position, table, next(self._serials), shared, resume.snapshot)
        self._leases[lease.serial] = lease
        if resume.snapshot is not None and node is not None:
            lease.trail.append(resume.snapshot)
            node.last_use = max(node.last_use, now)
        if not self._hybrid:
            self._tree.touch(walk, now)
        self._fetch(lease, absent, walk)
        self._counters.num_opened += 1
        self._counters.num_resumed += resume.position > 0
        self._counters.resumed_tokens += resume.position
        return lease

    def ready(self, lease: Lease) -> bool:
        """Whether all that the lease resumes from stands on the device, so that a step may read it."""
        return lease.ready_after <= self._moves.num_over

    def start_snapshot(self, lease: Lease) -> int | None:
        """Place of the snapshot to restore into the lease's row in its first step; None: set the row to zero (also for
        attention-only), unless it `row_comes` from the host and is left alone.

        Ask before `started`: afterwards the snapshot may hold something else.
        """
        assert not lease.closed, f"{lease!r} is closed"
        assert not lease.restored, f"{lease!r} has started already"
        assert self.ready(lease), f"{lease!r} starts before its memory has arrived"
        return None if lease.snapshot is None or lease.row_comes else self._ring.device_place(lease.snapshot)

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
        if not self._evictor.make_room(wanted + copies, now):
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
        """A snapshot for the state after tokens[:position]; None: skip this capture.

        None when a snapshot is published there already, when the lease has reserved that position, or when no snapshot is free and
        none is cheaper than this one would be. Never waits, never touches pinned, reserved or written snapshots.
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
        own = (reserved for reserved in lease.reserved if reserved < position)
        ref = self._ring.reserve(position) or self._evictor.take_snapshot(position, max(shallower, *own, 0), now)
        if ref is None:
            self._counters.num_skipped += 1
            return None
        lease.reserved[position] = ref
        self._writer_of[ref.snapshot_id] = lease
        return ref

    def publish(self, ref: SnapshotRef, tokens: TokenIds, lease: Lease, now: float) -> None:
        """The snapshot and the pages of tokens[:position] have been written: makes them matchable.

        What the tree knows of the path keeps its pages; the rest is claimed from the lease's. Where a snapshot already stands, the
        new snapshot is given back - or the old one, if joiners wait for the new one.
        """
        position = self._ring.position(ref)
        if lease.closed or lease.reserved.get(position) != ref:
            raise StaleSnapshotError(f"{ref} was not reserved by {lease!r}")
        assert position <= min(len(tokens), lease.table.end), f"{ref} at {position} lies beyond what {lease!r} has written"
        self._ring.mark_written(ref)
        self._forget_reserved(ref, lease)
        node = self._tree.insert(token_array(tokens, position), lease.table.pages, now)
        if node.snapshot_id is not None:
            self._counters.num_duplicates += 1
            if self._ring.is_pinned(node.snapshot_id) or not self._ring.is_pinned(ref.snapshot_id):
                node.last_use = max(node.last_use, now)
                self._ring.give_up(ref)
                return
            self._ring.give_up(self._ring.ref(self._tree.swap(node, ref.snapshot_id)))
        else:
            self._tree.attach(node, ref.snapshot_id, now)
            self._counters.num_published += 1
        self._ring.mark_published(ref)
        lease.trail.append(ref)
        if self._ring.is_pinned(ref.snapshot_id):
            self._hold_path(ref.snapshot_id)

    def distrust(self, lease: Lease) -> None:
        """The lease's numbers have turned out not to be finite: nothing it resumed from or published is matched any more.

        Where the fault came from is not known, and a snapshot kept would fail every request on that prefix for ever. An
        attention-only model cannot tell which of its pages are at fault and forgets all it knows.
        """
        if not self._hybrid:
            self.clear()
        for ref in lease.trail:
            if self._ring.is_published(ref):
                self._evictor.give_up_snapshot(self._tree.detach(self._tree.node_of_snapshot(ref.snapshot_id)))
        lease.trail.clear()

    def device_snapshot(self, ref: SnapshotRef) -> int:
        """Place on the device of a reserved snapshot: what a step writes."""
        return self._ring.device_place(ref)

    def position(self, ref: SnapshotRef) -> int:
        """How many tokens the state in that snapshot stands behind."""
        return self._ring.position(ref)

    def abandon(self, ref: SnapshotRef) -> None:
        """Gives back a reserved snapshot. If joiners have pinned it, it stays aside, unmatched, until they let go."""
        lease = self._writer_of.get(ref.snapshot_id)
        if self._ring.state(ref) is not SnapshotState.RESERVED or lease is None:
            raise StaleSnapshotError(f"{ref} is not reserved")
        self._forget_reserved(ref, lease)
        self._ring.give_up(ref)
        self._counters.num_abandoned += 1

    def pin(self, ref: SnapshotRef) -> None:
        """Keeps a snapshot (reserved or published), and once published its pages, from eviction. Counted."""
        if self._ring.pin(ref) and self._ring.is_published(ref):
            self._hold_path(ref.snapshot_id)

    def pin_at(self, tokens: TokenIds, position: int) -> SnapshotRef | None:
        """Pins the published snapshot of tokens[:position], or None when there is none."""
        node = self._tree.deepest_snapshot(self._tree.walk(token_array(tokens, position)))
        if node is None or node.snapshot_id is None or node.end != position:
            return None
        ref = self._ring.ref(node.snapshot_id)
        self.pin(ref)
        return ref

    def unpin(self, ref: SnapshotRef) -> None:
        """One pin less. Allowed for whoever pinned it, also after the snapshot was abandoned or erased meanwhile."""
        if self._ring.unpin(ref):
            self._pool.release(self._pinned_pages.pop(ref.snapshot_id, ()))

    # -- ending ---------------------------------------------------------------------------------------------------------------
    def close(self, lease: Lease, tokens: TokenIds, valid: int, now: float) -> None:
        """Frees the slot, the pages, the pins and whatever the lease had reserved and not published.

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
        """Forgets everything that can be matched. Live leases, reserved snapshots and pins go on."""
        while self._tree.leaves:
            self._evictor.give_up_snapshot(self._tree.drop_leaf(self._tree.leaves[-1]))

    # -- between the tiers ----------------------------------------------------------------------------------------------------
    def take_moves(self) -> tuple[int, tuple[Move, ...]]:
        """(how many moves earlier steps were given, what the next step has to copy before all else, in order)."""
        before = self._moves.num_given_out
        return before, self._moves.take()

    def moves_over(self, count: int) -> None:
        """The first `count` moves ever taken are done."""
        self._moves.over(count)
        self._arriving = {page: number for page, number in self._arriving.items() if number > count}

    def moves_failed(self) -> None:
        """A step failed. If moves were under way, what they carried cannot be trusted, and nothing known so far is matched any
        more. Close the leases that are not `ready` before: what they wait for may never arrive."""
        if self._moves.num_under_way:
            self.moves_over(self._moves.num_given_out)
            self.clear()

    # -- asking ---------------------------------------------------------------------------------------------------------------
    def free_pages_possible(self) -> int:
        """Pages free now or by eviction: `extend` can get exactly that many. O(1)."""
        return self._pool.num_available

    def idle_pages(self, tokens: TokenIds, resume: ResumePoint) -> int:
        """Pages that `open` would take out of `free_pages_possible`: those of the resume point that nobody holds yet, or that stand
        on the host."""
        walk = self._tree.walk(token_array(tokens, resume.position))
        pages = walk.pages(min(resume.position, walk.matched), self._pool.page_tokens)
        return sum(self._pool.on_host(page) or not self._pool.is_held(page) for page in pages)

    @property
    def num_free_rows(self) -> int:
        """Slots nobody sits on."""
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
            num_snapshots=ring.num_snapshots,
            free_snapshots=ring.num_free,
            reserved_snapshots=ring.count(SnapshotState.RESERVED) + ring.count(SnapshotState.WRITTEN),
            published_snapshots=ring.count(SnapshotState.PUBLISHED),
            stranded_snapshots=ring.count(SnapshotState.STRANDED),
            pinned_snapshots=ring.num_pinned,
            num_host_pages=pool.num_host_pages,
            free_host_pages=pool.num_free_on_host,
            num_host_snapshots=ring.num_host_snapshots,
            free_host_snapshots=ring.num_free_on_host,
            page_bytes=self.plan.layout.page_bytes,
            state_bytes=self.plan.layout.state_bytes,
            num_nodes=sum(1 for _ in self._tree.nodes()),
            counters=replace(self._counters),
        )

    def check(self) -> None:
        """Proves that every page, snapshot and row is accounted for; AssertionError says what is not. Linear."""
        claims, snapshots = self._tree.check()
        holds = [page for pages in self._pinned_pages.values() for page in pages]
        pins: dict[int, int] = {}
        reserved: dict[int, Lease] = {}
        for lease in self._leases.values():
            holds += lease.table.pages + lease.copy_sources
            if lease.snapshot is not None:
                pins[lease.snapshot.snapshot_id] = pins.get(lease.snapshot.snapshot_id, 0) + 1
            for position, ref in lease.reserved.items():
                assert self._ring.position(ref) == position, f"{lease!r} has {ref} under position {position}"
                assert self._ring.state(ref) is SnapshotState.RESERVED, f"{ref} of {lease!r} is {self._ring.state(ref).value}"
                reserved[ref.snapshot_id] = lease
            for page in lease.table.pages:
                assert not self._pool.on_host(page), f"page {page} of {lease!r} stands on the host"
                writer = self._pool.writer(page)
                assert writer == lease.serial or writer in self._leases or writer < 0, (
                    f"page {page} has the writer {writer}, who left"
                )
        assert reserved == self._writer_of, "reserved snapshots and their leases do not add up"
        written = self._ring.count(SnapshotState.RESERVED) + self._ring.count(SnapshotState.WRITTEN)
        assert written == len(reserved), f"{written} snapshots are reserved or written, {len(reserved)} have an owner"
        self._pool.check(holds, claims)
        self._ring.check(snapshots, pins)
        self._rows.check([lease.row for lease in self._leases.values()])
        for snapshot_id in self._pinned_pages:
            assert self._ring.is_pinned(snapshot_id), f"pages are held for snapshot {snapshot_id}, which nobody pins"

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
        lease.new_copies.append((self._pool.device_place(page), self._pool.device_place(target)))
        self._counters.num_page_copies += 1

    def _fetch(self, lease: Lease, absent: list[int], walk: Walk) -> None:
        """Queues the moves that bring a new lease its pages `absent` from the device, and its state where that is on the host."""
        for page in absent:
            self._arriving[page] = self._moves.add(MoveKind.PAGE_IN, *self._pool.move_in(page))
        if absent:
            self._tree.back_on_device(walk, lease.start)
        if self._arriving:  # what somebody else fetches is waited for too
            lease.ready_after = max((self._arriving.get(page, 0) for page in lease.table.pages), default=0)
        if lease.snapshot is not None and self._ring.on_host(lease.snapshot.snapshot_id):
            lease.row_comes = True
            lease.ready_after = self._moves.add(MoveKind.ROW_IN, self._ring.host_place(lease.snapshot), lease.row)
        self._counters.pages_moved_in += len(absent)
        self._counters.rows_moved_in += lease.row_comes
        self._counters.num_host_resumes += bool(absent) or lease.row_comes

    def _hold_path(self, snapshot_id: int) -> None:
        """Pages of a pinned snapshot count as held, not as cached: `free_pages_possible` then promises nothing it cannot keep."""
        pages = self._tree.claims_on_path(self._tree.node_of_snapshot(snapshot_id))
        self._pool.hold(pages)
        self._pinned_pages[snapshot_id] = pages

    def _drop_start(self, lease: Lease) -> None:
        sources, lease.copy_sources = lease.copy_sources, []
        self._pool.release(sources)
        if lease.snapshot is not None:
            ref, lease.snapshot = lease.snapshot, None
            self.unpin(ref)

    def _forget_reserved(self, ref: SnapshotRef, lease: Lease) -> None:
        del lease.reserved[self._ring.position(ref)]
        del self._writer_of[ref.snapshot_id]
