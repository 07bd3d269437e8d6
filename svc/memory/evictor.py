"""Who goes when there is no room: pages and snapshots, from the device to the host, and from the host for good.

Without a host tier, or where it is full of what may not go, the device's go for good. What goes first: eviction.py.
"""

from svc.memory.eviction import worth
from svc.memory.moves import MoveKind, MoveQueue
from svc.memory.page_pool import PagePool
from svc.memory.prefix_tree import Node, PrefixTree
from svc.memory.snapshot_ring import SnapshotRef, SnapshotRing
from svc.memory.stats import Counters

# Moved to the host beyond what is needed now, so that the next place wanted is one whose copy is likely over; and at most one of so
# many that there are.
PAGES_AHEAD, OF_PAGES = 32, 16
SNAPSHOTS_AHEAD, OF_SNAPSHOTS = 8, 8


class Evictor:
    """Works on the pool, ring and tree of one SequenceCache, and queues the moves."""

    def __init__(self, pool: PagePool, ring: SnapshotRing, tree: PrefixTree, moves: MoveQueue, counters: Counters) -> None:
        self._pool = pool
        self._ring = ring
        self._tree = tree
        self._moves = moves
        self._counters = counters
        self._hybrid = tree.hybrid
        self._pages_ahead = min(PAGES_AHEAD, pool.num_pages // OF_PAGES)
        self._snapshots_ahead = min(SNAPSHOTS_AHEAD, ring.num_snapshots // OF_SNAPSHOTS)

    def make_room(self, count: int, now: float) -> bool:
        """At least `count` free pages on the device, moving to the host or evicting what is worth least; False when that cannot
        be."""
        if self._pool.num_available < count:
            return False
        while self._pool.num_free < count:
            wanted = count - self._pool.num_free
            if not self._pool.num_host_pages:
                self._evict_leaf(wanted, now)
            elif self._pool.num_free_on_host or self._evict_from_host(wanted, now):
                self._move_pages_out(wanted + self._pages_ahead, now)
            else:
                self._evict_leaf(wanted, now)
        return True

    def take_snapshot(self, position: int, shallower: int, now: float) -> SnapshotRef | None:
        """A snapshot for the state after `position` tokens, reserved: that of a published snapshot which is worth less, with
        `shallower` what the new one's path falls back to. None where none is worth less.

        The old one is taken off the tree or moves to the host; there the one that is worth least makes room, if need be.
        """
        new = worth(position, shallower, 0.0) if self._hybrid else worth(1, 0, 0.0)
        if not self._free_snapshot(new, now):
            return None
        for _ in range(min(self._snapshots_ahead, self._ring.num_free_on_host)):
            self._free_snapshot(new, now)
        return self._ring.reserve(position)

    def _free_snapshot(self, new: float, now: float) -> bool:
        """Frees the cheapest snapshot of the device, if what is lost for good by that is worth less than `new`."""
        cheap, value, looked = self._ring.find_cheap(lambda snapshot_id: self._tree.snapshot_worth(snapshot_id, now))
        self._counters.num_candidates += looked
        if cheap is None:
            return False
        lost: SnapshotRef | None = cheap
        if self._ring.num_free_on_host:
            lost, value = None, 0.0
        elif self._ring.num_host_snapshots:
            cheap_there, value_there, looked = self._ring.find_cheap_on_host(
                lambda snapshot_id: self._tree.snapshot_worth(snapshot_id, now)
            )
            self._counters.num_candidates += looked
            if cheap_there is not None and value_there < value:
                lost, value = cheap_there, value_there
        if value >= new:
            return False
        if lost is not None:
            self._counters.num_evicted_snapshots += 1
            self.give_up_snapshot(self._tree.detach(self._tree.node_of_snapshot(lost.snapshot_id)))
        if lost != cheap:
            self._moves.add(MoveKind.SNAPSHOT_OUT, *self._ring.move_out(cheap))
            self._counters.snapshots_moved_out += 1
        return True

    def give_up_snapshot(self, snapshot_id: int | None) -> None:
        """Ends the snapshot of a snapshot that has been taken off the tree, if there was one."""
        if snapshot_id is not None:
            self._ring.give_up(self._ring.ref(snapshot_id))

    def _move_pages_out(self, num_pages: int, now: float) -> None:
        """Moves at most so many pages to the host, as far as there is room: at least one where any can go."""
        num_pages = min(num_pages, self._pool.num_free_on_host)
        node, looked = self._tree.find_cheap_on_device(now)
        self._counters.num_candidates += looked
        pages = [] if node is None else self._tree.take_off_device(node, num_pages)
        if not pages and num_pages:
            # What is cached stands above pages that live leases still hold.
            idle = self._pool.find_idle()
            pages = [] if idle is None else [idle]
        for page in pages:
            self._moves.add(MoveKind.PAGE_OUT, *self._pool.move_out(page))
        self._counters.pages_moved_out += len(pages)

    def _evict_from_host(self, num_pages: int, now: float) -> bool:
        """Room on the host: gives up the leaf worth least of those that end there. False where there is none to give up."""
        leaf, looked = self._tree.find_cheap_host_leaf(now)
        self._counters.num_candidates += looked
        if leaf is not None:
            self._lose_leaf(leaf, num_pages + self._pages_ahead)
        return leaf is not None

    def _evict_leaf(self, num_pages: int, now: float) -> None:
        leaf, looked = self._tree.find_cheap_leaf(now, idle_only=True)
        if leaf is None:
            # What is cached stands above leaves that live leases still hold: their claims go first.
            leaf, more = self._tree.find_cheap_leaf(now, idle_only=False)
            looked += more
        self._counters.num_candidates += looked
        assert leaf is not None, f"no leaf to evict, yet {self._pool!r}"
        self._lose_leaf(leaf, num_pages)

    def _lose_leaf(self, leaf: Node, num_pages: int) -> None:
        """Gives up the claims of a leaf for good; of an attention-only model's only the last `num_pages`."""
        before = len(leaf.pages)
        if self._hybrid:
            snapshot_id = self._tree.drop_leaf(leaf)
            self._counters.evicted_pages += before
        else:
            snapshot_id = self._tree.trim_leaf(leaf, num_pages)
            self._counters.evicted_pages += min(num_pages, before)
        self._counters.num_evicted_snapshots += snapshot_id is not None
        self.give_up_snapshot(snapshot_id)
