"""The one interface of the memory: pages, state rows, snapshots and the prefix tree. Owner of all of them.

Life of one sequence:

    resume = cache.match(tokens)                    where can it resume?
    lease = cache.open(tokens, resume, now)         a state row, the shared pages, the snapshot pinned
    cache.extend(lease, end, now)                   before every step: pages for the positions it writes
    cache.reserve(lease, position, now, kind)       a snapshot for a capture in that step
    cache.close(lease, valid, now)                  however it ends

A step is a transaction. `step = cache.begin(leases, captures, saves)` says everything the step does to the memory besides its
forward pass: moves, page copies, rows to set to zero, to restore and to save. After the step `cache.finish(step, ...)` publishes
what it wrote, or `cache.abort(step)` discards it when the step failed.

Steps run on the device in the order they were planned. So a page or snapshot that is freed may be handed out at once, although a
step under way still writes it: its next owner's writes come later. Moves keep to the same order (tiers.py), so that a page moved
to the host can be matched at once, although it may still be on its way: moves that fetch it come later.

With a host tier (plan.num_host_pages, plan.num_host_snapshots) pages and snapshots evicted from the device move there, and those
with the lowest score there are lost. A resume point may be on the host, whole or in part: `open` then takes places on the device
for its pages, and its snapshot goes straight from the host into the state row. A lease is `ready` once all of that has arrived.
"""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from svc.memory.eviction import Evictor
from svc.memory.integrity import check_cache
from svc.memory.lease import COLD, BlockTable, Lease, Reservation, ResumePoint, StateRows, StepMemory
from svc.memory.page_pool import PagePool
from svc.memory.path_pins import PathPins
from svc.memory.placement import WantedKind
from svc.memory.plan import MemoryPlan
from svc.memory.prefix_tree import Node, PrefixTree, Walk
from svc.memory.reuse_scorer import ReuseScorer
from svc.memory.scoring import Scorer, Work
from svc.memory.snapshot_ring import SnapshotRef, SnapshotRing, StaleSnapshotError
from svc.memory.stats import CacheCounters, CacheStats, cache_stats
from svc.memory.tiers import MoveKind, MoveQueue
from svc.memory.tokens import FixedTokens, TokenArray, TokenIds, TokenSource, token_array
from svc.memory.transfers import Transfers

__all__ = ["COLD", "Lease", "Reservation", "ResumePoint", "SequenceCache", "SnapshotRef", "StaleSnapshotError", "StepMemory"]


class SequenceCache:
    """All bookkeeping of one model's memory. Plain and synchronous; `now` is seconds on any one steady clock."""

    def __init__(self, plan: MemoryPlan, scorer: Scorer | None = None) -> None:
        self.plan = plan
        self._hybrid = plan.layout.hybrid
        self._pool = PagePool(plan.num_pages, plan.layout.page_tokens, plan.num_host_pages)
        self._rows = StateRows(plan.num_rows)
        self._ring = SnapshotRing(plan.num_snapshots, plan.num_host_snapshots)
        self._moves = MoveQueue()
        self._arriving: dict[int, int] = {}  # page -> number of the move that brings it to the device
        self._tree = PrefixTree(self._pool, self._ring, hybrid=self._hybrid)
        self._pins = PathPins(self._pool, self._ring, self._tree)
        self._leases: dict[int, Lease] = {}  # by serial
        self._serials = itertools.count(1)
        self._counters = CacheCounters()
        scorer = scorer or ReuseScorer(plan.num_snapshots + plan.num_host_snapshots, Work(plan.layout.even_tokens))
        self._evictor = Evictor(self._pool, self._ring, self._tree, self._moves, self._counters, scorer)
        self.transfers = Transfers(self._pool, self._ring, self._tree, self._evictor, self._moves)

    def __repr__(self) -> str:
        return f"SequenceCache({len(self._leases)} leases, {self._pool!r}, {self._ring!r}, {self._tree!r})"

    # -- beginning ------------------------------------------------------------------------------------------------------------
    @property
    def version(self) -> int:
        """Grows with every change that can make `match` answer differently."""
        return self._tree.version

    def match(self, tokens: TokenIds, before: ResumePoint | None = None, space: str = "") -> ResumePoint:
        """The deepest point at which `tokens` can resume. Changes nothing.

        `before`: what it was earlier: if that is there, only tokens behind it are compared. `space`: whose texts are looked up.

        Hybrid: the deepest published snapshot on the path. Attention-only: the whole common prefix, except that the last token is
        evaluated again when no snapshot (of its hidden row) is at exactly len(tokens). The tier does not matter.
        """
        known = self._node_of(before.snapshot) if before is not None and self._hybrid else None
        walk = self._tree.walk(token_array(tokens), known or self._tree.root(space))
        node = self._tree.deepest_snapshot(walk)
        position = node.end if node is not None else 0
        if not self._hybrid and position < len(tokens):
            position, node = min(walk.matched, len(tokens) - 1), None
        snapshot = None if node is None or node.snapshot_id is None else self._ring.ref(node.snapshot_id)
        position = max(position, 0)
        return ResumePoint(position, snapshot, walk.matched, walk, self._tree.pages(walk, position), self._tree.version, space)

    def open(
        self, tokens: TokenIds | TokenSource, resume: ResumePoint, now: float, owner: str = "", space: str = ""
    ) -> Lease | None:
        """Takes a state row and pins the shared pages and the snapshot. None, and nothing pinned, when no row is free, or not
        enough pages on the device for those that must come from the host. `owner`: whose text it is. `space`: as in `match`.

        Raises StaleSnapshotError when `resume` is no longer true; match again. Opening right after matching is always safe.
        """
        source = FixedTokens.of(tokens) if isinstance(tokens, Sequence | np.ndarray) else tokens
        resume = self._current(source.array, resume)
        assert resume.walk is not None
        assert resume.pages is not None
        row = self._rows.take()
        if row is None:
            return None
        pages = resume.pages
        if resume.snapshot is not None and self._ring.pin(resume.snapshot):
            self._pins.pages[resume.snapshot.snapshot_id] = pages
            self._pool.pin(pages, times=2)  # for the lease, and with the snapshot
        else:
            self._pool.pin(pages)
        absent = self._pool.absent(pages)
        if absent and not self._evictor.free_pages(len(absent), now):
            self._pool.unpin(pages)
            if resume.snapshot is not None:
                self.unpin(resume.snapshot)
            self._rows.give_back(row)
            return None
        size = self._pool.page_tokens
        shared = resume.position // size if resume.position % size else None
        for page in absent:
            self._arriving[page] = self._moves.add(MoveKind.PAGE_IN, *self._pool.move_in(page))
        table = BlockTable(size, pages, self._pool.places_of(pages))
        start, ref, serial = resume.position, resume.snapshot, next(self._serials)
        lease = Lease(row, start, table, source, serial, owner, space, shared, ref, ref)
        self._leases[lease.serial] = lease
        if resume.snapshot is not None:
            lease.trail.append(resume.snapshot)
            self._counters.resumed[self._ring.kind(resume.snapshot.snapshot_id)] += 1
        self._evictor.opened(resume.snapshot, source.array, resume.position, now)
        if not self._hybrid:
            self._tree.touch(resume.walk, now)
        self._await_moves(lease, len(absent), resume.walk)
        self._counters.num_opened += 1
        self._counters.num_resumed += resume.position > 0
        self._counters.resumed_tokens += resume.position
        return lease

    # -- writing --------------------------------------------------------------------------------------------------------------
    def extend(self, lease: Lease, end: int, now: float) -> bool:
        """Pages for all positions < end, evicting those with the lowest score when none is free. False, and nothing changed, when
        even that is not enough.

        Before its first write the lease also copies or steals the partial page it shares; the next `begin` carries the copy.
        """
        assert not lease.closed, f"{lease!r} is closed"
        wanted = max(self._pool.pages_for(end) - len(lease.table), 0)
        index = lease.shared_page if end > lease.start else None
        if index is None and not wanted:
            return True
        copies = index is not None and not self._pool.can_steal(lease.table.page_at(index), lease.start % self._pool.page_tokens)
        if not self._evictor.free_pages(wanted + copies, now):
            return False
        if index is not None:
            self._own_page(lease, index, copy=copies)
        if wanted:
            pages = self._pool.allocate(wanted, lease.serial)
            lease.table.extend(pages, self._pool.places_of(pages))
        return True

    def num_wanted_pages(self, lease: Lease, end: int) -> int:
        """The most pages that `extend` to `end` can take, the copy of a shared page counted."""
        return max(self._pool.pages_for(end) - len(lease.table), 0) + (lease.shared_page is not None)

    def reserve(self, lease: Lease, position: int, now: float, kind: WantedKind = WantedKind.SPARSE) -> Reservation | None:
        """A snapshot for the state after `position` tokens of the lease; None: skip this capture.

        None when a snapshot is published there already, when the lease has reserved that position, or when no snapshot is free and
        none has a lower score than this one would have. Never waits, never touches pinned, reserved or written snapshots.
        """
        tokens = lease.tokens.array
        assert not lease.closed, f"{lease!r} is closed"
        assert 0 < position <= len(tokens), f"no state after {position} of {len(tokens)} tokens"
        if position in lease.reserved:
            return None
        walk = self._tree.walk(tokens[:position], self._anchor(lease, position))
        shallower = self._tree.deepest_position(walk)
        if shallower == position:
            return None
        own = max((reserved for reserved in lease.reserved if reserved < position), default=0)
        ref = self._evictor.take_snapshot(tokens, position, max(shallower, own), kind, now)
        if ref is None:
            self._counters.num_skipped += 1
            return None
        lease.reserved[position] = reservation = Reservation(lease, position, ref, self._ring.device_place(ref))
        return reservation

    # -- a step ---------------------------------------------------------------------------------------------------------------
    def begin(self, leases: Sequence[Lease], captures: Sequence[Reservation] = (), saves: Sequence[Reservation] = ()) -> StepMemory:
        """What the next step does to the memory. `leases` take part in it and are ready; `finish` closes the leases of `saves`."""
        copies: list[tuple[int, int]] = []
        zero_rows: list[int] = []
        restores: list[tuple[int, int]] = []
        starting: list[Lease] = []
        for lease in leases:
            assert not lease.closed, f"{lease!r} is closed"
            assert lease.ready, f"{lease!r} takes part in a step before its memory has arrived"
            if lease.new_copy is not None:
                copies.append(self._take_copy(lease.new_copy))
                lease.new_copy = None
            if lease.started:
                continue
            lease.started = True
            starting.append(lease)
            if lease.snapshot is None:
                zero_rows.append(lease.row)
            elif not lease.row_comes:
                restores.append((lease.row, self._ring.device_place(lease.snapshot)))
        before, moves = self._moves.num_given_out, self._moves.take()
        self.transfers.moves_taken()
        places = tuple(copies), tuple(zero_rows), tuple(restores)
        return StepMemory(tuple(leases), before, moves, *places, tuple(saves), tuple(captures), tuple(starting))

    def finish(self, step: StepMemory, now: float, moves_over: int = 0, distrusted: Collection[Lease] = ()) -> None:
        """The step is done: publishes its captures and saves, closes the saved leases, unpins the snapshots it restored.

        Reservations of closed leases are gone already; those of `distrusted` leases, whose numbers are not finite, are discarded.
        `moves_over`: how many moves of all steps are done.
        """
        for lease in step.leases:
            if lease.snapshot is not None:
                self._drop_start(lease)
        self._note_moves(moves_over)
        for save in step.saves:
            if save.lease.closed:
                continue
            trusted = save.lease not in distrusted
            if trusted:
                self._publish(save, now)
            self.close(save.lease, save.position if trusted else 0, now)
        for capture in step.captures:
            if capture.lease in distrusted:
                self.discard(capture)
            elif not capture.lease.closed:
                self._publish(capture, now)

    def abort(self, step: StepMemory, now: float) -> None:
        """The step failed or was never run: nothing it was to write is kept, and its saved leases are closed.

        Its other leases are the caller's to close. Call `recover` when they are.
        """
        for lease in step.starting:
            lease.started = False
        for save in step.saves:
            if not save.lease.closed:
                self.close(save.lease, 0, now)
        for capture in step.captures:
            if not capture.lease.closed:
                self.discard(capture)

    def recover(self) -> None:
        """After an aborted step: what comes in from outside is given up, and if moves were under way, the pages they carried cannot
        be trusted, and nothing is matched any more.

        Close the leases that are not `ready` before: what they wait for may never arrive.
        """
        self.transfers.release_all()
        if self._moves.num_under_way:
            self._note_moves(self._moves.num_given_out)
            self.clear()

    # -- snapshots ------------------------------------------------------------------------------------------------------------
    def distrust(self, lease: Lease) -> None:
        """The lease's numbers are not finite: nothing it resumed from or published is matched any more.

        Where the fault came from is not known, and a snapshot kept would fail every request on that prefix for ever. An
        attention-only model cannot tell which of its pages are at fault and forgets all of them.
        """
        self.transfers.distrust(lease.tokens.array, lease.space)
        if not self._hybrid:
            self.clear()
        for ref in lease.trail:
            if self._ring.is_published(ref):
                self._evictor.release_snapshot(self._tree.detach(self._tree.node_of_snapshot(ref.snapshot_id)))
        lease.trail.clear()

    def discard(self, reservation: Reservation) -> None:
        """Frees a reserved snapshot. If waiting requests have pinned it, it stays aside, unmatched, until they unpin it."""
        if reservation.lease.reserved.get(reservation.position) is not reservation:
            raise StaleSnapshotError(f"{reservation.ref} is not reserved")
        self._ring.release(reservation.lease.reserved.pop(reservation.position).ref)
        self._counters.num_discarded += 1

    def pin(self, ref: SnapshotRef) -> None:
        """Keeps a snapshot (reserved or published), and once published its pages, from eviction. Counted."""
        self._pins.pin(ref)

    def pin_at(self, tokens: TokenIds, position: int, space: str = "") -> SnapshotRef | None:
        """Pins the published snapshot of tokens[:position], or None when there is none."""
        return self._pins.pin_at(token_array(tokens, position), self._tree.root(space))

    def unpin(self, ref: SnapshotRef) -> None:
        """One pin less. Allowed also after the snapshot was discarded or evicted meanwhile."""
        self._pins.unpin(ref)

    # -- ending ---------------------------------------------------------------------------------------------------------------
    def close(self, lease: Lease, valid: int, now: float) -> None:
        """Frees the row, the pages, the pins and every reservation that is not published.

        tokens[:valid] are the positions truly written. An attention-only model keeps them all matchable; a hybrid one keeps the
        pages of its published snapshots. Pass valid=0 for a sequence whose values cannot be trusted.
        """
        tokens = lease.tokens.array
        assert not lease.closed, f"{lease!r} is closed twice"
        assert valid <= min(len(tokens), lease.table.end), f"{valid} valid positions, but {lease!r} and {len(tokens)} tokens"
        if valid > lease.start and not self._hybrid:  # else there is nothing new, and its copy of a shared page may not be made yet
            self._tree.insert_pages(tokens[:valid], lease.table.pages, now, lease.owner, self._tree.root(lease.space))
            self.transfers.published(tokens[:valid], lease.space)
        for reservation in list(lease.reserved.values()):
            self.discard(reservation)
        if lease.new_copy is not None:
            self._take_copy(lease.new_copy)
        self._drop_start(lease)
        self._pool.stop_writing(lease.table.pages[lease.start // self._pool.page_tokens :], lease.serial)  # it resumed on the rest
        self._pool.unpin(lease.table.pages)
        self._rows.give_back(lease.row)
        lease.closed = True
        del self._leases[lease.serial]

    def clear(self) -> None:
        """Forgets everything that can be matched. Live leases, reservations and pins go on."""
        while self._tree.leaves:
            self._evictor.release_snapshot(self._tree.drop_leaf(self._tree.leaves[-1]))

    # -- asking ---------------------------------------------------------------------------------------------------------------
    def num_available_pages(self) -> int:
        """Pages free now or by eviction: `extend` can get exactly that many. O(1)."""
        return self._pool.num_available

    def num_pages_to_pin(self, tokens: TokenSource, resume: ResumePoint) -> int:
        """Pages that `open` would take out of `num_available_pages`: those of the resume point not pinned yet, or on the host."""
        pages = self._current(tokens.array, resume).pages
        return 0 if pages is None else self._pool.num_wanted(pages)

    def stats(self) -> CacheStats:
        """For metrics and status pages."""
        counters = replace(self._counters, num_candidates=self._evictor.num_candidates, num_walks=self._tree.num_walks)
        return cache_stats(self.plan, self._pool, self._ring, self._rows, self._tree, counters)

    def check(self) -> None:
        """Proves that every page, snapshot and row is accounted for; AssertionError says which is not. Linear."""
        check_cache(self._tree, self._pool, self._ring, self._rows, self._leases, self._pins.pages, self.transfers)

    # -- parts ----------------------------------------------------------------------------------------------------------------
    def _current(self, tokens: TokenArray, resume: ResumePoint) -> ResumePoint:
        """The resume point with its walk and pages; found again, and compared, if the tree has changed since."""
        if resume.walk is not None and resume.version == self._tree.version:
            return resume
        walk = self._tree.walk(tokens[: resume.position], self._tree.root(resume.space))
        node = self._tree.deepest_snapshot(walk) if resume.snapshot is not None else None
        current = None if node is None or node.snapshot_id is None else self._ring.ref(node.snapshot_id)
        if current != resume.snapshot or walk.matched < resume.position:
            raise StaleSnapshotError(f"{resume} is no longer true: {walk.matched} tokens are known, the snapshot is {current}")
        return replace(resume, walk=walk, pages=self._tree.pages(walk, resume.position), version=self._tree.version)

    def _anchor(self, lease: Lease, position: int) -> Node:
        """The node of the deepest snapshot known on the lease's path that is not beyond `position`, or the root."""
        node = self._node_of(lease.anchor)
        return node if node is not None and node.end <= position else self._tree.root(lease.space)

    def _node_of(self, ref: SnapshotRef | None) -> Node | None:
        """Where a snapshot hangs in the tree; None where it is not there any more."""
        return self._tree.node_of_snapshot(ref.snapshot_id) if ref is not None and self._ring.is_published(ref) else None

    def _publish(self, reservation: Reservation, now: float) -> None:
        """The snapshot and the pages of tokens[:position] have been written: makes them matchable.

        Edges that the tree knows keep their pages; the rest is referenced in the lease's. Where there is a snapshot already, the
        new one is freed - or the old one, if requests wait for the new one.
        """
        lease, position, ref = reservation.lease, reservation.position, reservation.ref
        if lease.closed or lease.reserved.get(position) is not reservation:
            raise StaleSnapshotError(f"{ref} was not reserved by {lease!r}")
        tokens = lease.tokens.array
        assert position <= min(len(tokens), lease.table.end), f"{ref} at {position} lies beyond the pages of {lease!r}"
        self._ring.mark_written(ref)
        del lease.reserved[position]
        node = self._tree.insert(tokens[:position], lease.table.pages, now, self._anchor(lease, position), lease.owner)
        if node.snapshot_id is not None:
            self._counters.num_duplicates += 1
            if self._ring.is_pinned(node.snapshot_id) or not self._ring.is_pinned(ref.snapshot_id):
                node.last_use = max(node.last_use, now)
                lease.anchor = self._ring.ref(node.snapshot_id)
                self._ring.release(ref)
                return
            self._evictor.release_snapshot(self._tree.swap(node, ref.snapshot_id))
        else:
            self._tree.attach(node, ref.snapshot_id, now)
            self._counters.num_published += 1
            self._counters.published[self._ring.kind(ref.snapshot_id)] += 1
        self._ring.mark_published(ref)
        self._evictor.published(node, tokens[:position], now)
        lease.anchor = ref
        lease.trail.append(ref)
        self.transfers.published(ref, lease.space)
        if self._ring.is_pinned(ref.snapshot_id):
            self._pins.pin_path(ref.snapshot_id)

    def _own_page(self, lease: Lease, index: int, *, copy: bool) -> None:
        """Makes the lease the writer of its shared partial page, or of a copy of it."""
        page = lease.table.page_at(index)
        lease.shared_page = None
        if not copy:
            self._pool.steal(page, lease.serial)
            self._counters.num_stolen_pages += 1
            return
        target = int(self._pool.allocate(1, lease.serial)[0])
        lease.table.replace(index, target, self._pool.device_place(target))
        lease.new_copy = page, target  # the table's pin becomes the copy's
        self._counters.num_page_copies += 1

    def _take_copy(self, copy: tuple[int, int]) -> tuple[int, int]:
        """The places of a copy, for the step that makes it. Its source may then be freed: only later steps write there."""
        places = self._pool.device_place(copy[0]), self._pool.device_place(copy[1])
        self._pool.unpin(np.array(copy[:1], np.int32))
        return places

    def _await_moves(self, lease: Lease, num_absent: int, walk: Walk) -> None:
        """Lets a new lease wait for the moves that bring its pages, and queues the one of its state where that is on the host."""
        if num_absent:
            self._tree.back_on_device(walk, lease.start)
        if self._arriving:  # pages that another lease fetches are waited for too
            lease.ready_after = max((self._arriving.get(page, 0) for page in lease.table.pages.tolist()), default=0)
        if lease.snapshot is not None and self._ring.on_host(lease.snapshot.snapshot_id):
            lease.row_comes = True
            lease.ready_after = self._moves.add(MoveKind.ROW_IN, self._ring.host_place(lease.snapshot), lease.row)
        self._counters.pages_moved_in += num_absent
        self._counters.rows_moved_in += lease.row_comes
        self._counters.num_host_resumes += bool(num_absent) or lease.row_comes

    def _note_moves(self, count: int) -> None:
        """The first `count` moves of all steps are done: leases that waited for them are ready."""
        self._moves.over(count)
        if self._arriving:
            self._arriving = {page: number for page, number in self._arriving.items() if number > count}
        for lease in self._leases.values():
            if lease.ready_after and lease.ready_after <= self._moves.num_over:
                lease.ready_after = 0

    def _drop_start(self, lease: Lease) -> None:
        """Unpins the snapshot it started from."""
        if lease.snapshot is not None:
            ref, lease.snapshot = lease.snapshot, None
            self.unpin(ref)
