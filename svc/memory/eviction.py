"""Eviction: which pages and snapshots leave when memory is short, from the device to the host, and from the host for good.

Without a host tier, or when everything there must stay, those of the device are lost. The candidate with the lowest score
(scoring.py) goes; a hand that moves on with every search finds it.
"""

import math
from collections.abc import Callable

from svc.memory.page_pool import PagePool
from svc.memory.placement import WantedKind
from svc.memory.prefix_tree import Node, PrefixTree
from svc.memory.scoring import Scorer
from svc.memory.snapshot_ring import SnapshotRef, SnapshotRing
from svc.memory.stats import CacheCounters
from svc.memory.tiers import MoveKind, MoveQueue
from svc.memory.tokens import TokenArray

WINDOW = 64  # candidates of one search: enough to be near the lowest score, few enough for the middle of a step

# Moved to the host beyond the present need, so that the copy out of the next place needed is likely over; at most 1/16 of all pages
# and 1/8 of all snapshots.
PAGES_AHEAD, OF_PAGES = 32, 16
SNAPSHOTS_AHEAD, OF_SNAPSHOTS = 8, 8


class Hand:
    """A hand that moves around a ring of candidates and finds a low score."""

    def __init__(self) -> None:
        self._at = 0
        self.num_candidates = 0  # looked at since start: the cost of eviction, independent of any clock

    def find(self, count: int, score_of: Callable[[int], float | None]) -> tuple[int | None, float]:
        """(index, score) of the lowest score among the next WINDOW of `count` candidates; goes on until it finds one or has seen
        all.

        `score_of(index)` is None for a candidate that must stay. (None, 0.0) when everything must.
        """
        best, lowest, looked = None, 0.0, 0
        while looked < count and (looked < WINDOW or best is None):
            index = (self._at + looked) % count
            looked += 1
            value = score_of(index)
            if value is not None and (best is None or value < lowest):
                best, lowest = index, value
        self._at = (self._at + looked) % max(count, 1)
        self.num_candidates += looked
        return best, lowest


class Evictor:
    """Works on the pool, ring and tree of one SequenceCache, and queues the moves."""

    def __init__(
        self, pool: PagePool, ring: SnapshotRing, tree: PrefixTree, moves: MoveQueue, counters: CacheCounters, scorer: Scorer
    ) -> None:
        self._scorer = scorer
        self._pool = pool
        self._ring = ring
        self._tree = tree
        self._moves = moves
        self._counters = counters
        self._hybrid = tree.hybrid
        self._pages_ahead = min(PAGES_AHEAD, pool.num_pages // OF_PAGES)
        self._snapshots_ahead = min(SNAPSHOTS_AHEAD, ring.num_snapshots // OF_SNAPSHOTS)
        self._leaf_hand, self._host_leaf_hand, self._hand, self._host_hand = Hand(), Hand(), Hand(), Hand()

    @property
    def num_candidates(self) -> int:
        """Snapshots and leaves that the hands have looked at."""
        hands = (self._leaf_hand, self._host_leaf_hand, self._hand, self._host_hand)
        return sum(hand.num_candidates for hand in hands)

    # -- pages ----------------------------------------------------------------------------------------------------------------
    def free_pages(self, count: int, now: float) -> bool:
        """At least `count` free pages on the device, by moving or evicting those with the lowest score; False when that is
        impossible.

        Possible is exactly `pool.num_available`: a cached page belongs to a leaf that may go, or to an inner node's snapshot that
        may.
        """
        if self._pool.num_available < count:
            return False
        while self._pool.num_free < count:
            wanted = count - self._pool.num_free
            if not self._pool.num_host_pages:
                self._evict_pages(wanted, now)
            elif self._pool.num_free_on_host or self._evict_from_host(wanted, now):
                self._move_pages_out(wanted + self._pages_ahead, now)
            else:
                self._evict_pages(wanted, now)
        return True

    def _evict_pages(self, num_pages: int, now: float) -> None:
        tree = self._tree
        # First leaves whose last page is not pinned; then, where cached pages lie above pages of live leases, those leaves too.
        index, _ = self._leaf_hand.find(len(tree.leaves), lambda index: self._leaf_score(tree.leaves[index], now, pinned=False))
        if index is None:
            index, _ = self._leaf_hand.find(len(tree.leaves), lambda index: self._leaf_score(tree.leaves[index], now, pinned=True))
        if index is not None:
            self._lose_leaf(tree.leaves[index], num_pages, now)
            return
        superseded = tree.find_superseded()
        assert superseded is not None, f"nothing to evict, yet {self._pool!r}"
        self._lose_snapshot(superseded, now)

    def _leaf_score(self, leaf: Node, now: float, *, pinned: bool) -> float | None:
        """None where its snapshot is pinned, and unless `pinned` where its last page is: dropping it frees little now."""
        if leaf.snapshot_id is not None and self._ring.is_pinned(leaf.snapshot_id):
            return None
        if not pinned and self._pool.is_pinned(int(leaf.pages[-1])):
            return None
        return self._score_per_page(leaf, now)

    def _lose_leaf(self, leaf: Node, num_pages: int, now: float) -> None:
        """Drops the pages of a leaf for good; of an attention-only model's only the last `num_pages`."""
        before, heir = len(leaf.pages), self._tree.snapshot_above(leaf)
        if self._hybrid:
            snapshot_id = self._tree.drop_leaf(leaf)
            self._counters.evicted_pages += before
        else:
            snapshot_id = self._tree.trim_leaf(leaf, num_pages)
            self._counters.evicted_pages += min(num_pages, before)
        self._release(snapshot_id, heir, now)

    def _move_pages_out(self, num_pages: int, now: float) -> None:
        """Moves at most `num_pages` pages to the host, as far as it has places: at least one where any can go."""
        num_pages = min(num_pages, self._pool.num_free_on_host)
        leaves = self._tree.leaves

        def edge_score(index: int) -> float | None:
            node = self._tree.device_edge(leaves[index])
            if node is None or self._pool.is_pinned(int(node.pages[node.resident - 1])):
                return None
            return self._score_per_page(node, now)

        index, _ = self._leaf_hand.find(len(leaves), edge_score)
        node = None if index is None else self._tree.device_edge(leaves[index])
        pages = [] if node is None else self._tree.take_off_device(node, num_pages)
        if not pages and num_pages:
            # The cached pages lie above pages of live leases.
            cached = self._pool.find_cached()
            pages = [] if cached is None else [cached]
        for page in pages:
            self._moves.add(MoveKind.PAGE_OUT, *self._pool.move_out(page))
        self._counters.pages_moved_out += len(pages)

    def _evict_from_host(self, num_pages: int, now: float) -> bool:
        """Frees places on the host: drops the leaf with the lowest score of those that end there. False where there is none."""
        leaves = self._tree.leaves

        def leaf_score(index: int) -> float | None:
            on_host = self._pool.on_host(int(leaves[index].pages[-1]))
            return self._leaf_score(leaves[index], now, pinned=False) if on_host else None

        index, _ = self._host_leaf_hand.find(len(leaves), leaf_score)
        if index is not None:
            self._lose_leaf(leaves[index], num_pages + self._pages_ahead, now)
        return index is not None

    def _score_per_page(self, node: Node, now: float) -> float:
        shallower = self._tree.shallower_snapshot(node) if self._hybrid else node.start
        return self._scorer.pages(node, self._pool.num_freed_with(node.pages), shallower, now)

    # -- snapshots ------------------------------------------------------------------------------------------------------------
    def published(self, node: Node, tokens: TokenArray, now: float) -> None:
        """The snapshot at the end of `node`, after `tokens`, can be matched from now on."""
        if node.snapshot_id is not None:
            self._scorer.published(node, tokens, self._ring.kind(node.snapshot_id), now)

    def opened(self, ref: SnapshotRef | None, tokens: TokenArray, position: int, now: float) -> None:
        """A request with these tokens resumes at `position`: at that snapshot, if at one."""
        node = None if ref is None else self._tree.node_of_snapshot(ref.snapshot_id)
        self._scorer.opened(node, tokens, position, now)
        if node is not None:
            node.last_use = max(node.last_use, now)

    def take_snapshot(self, tokens: TokenArray, position: int, shallower: int, kind: WantedKind, now: float) -> SnapshotRef | None:
        """A snapshot for the state after tokens[:position], reserved: a free one, or that of a published one with a lower score,
        where `shallower` is what the new one's path falls back to. None where none has a lower score, or the capture is not
        wanted; for a JOIN, where all are pinned.

        The old one leaves the tree or moves to the host. If the host is full, the snapshot with the lowest score there is lost.
        """
        new = self._scorer.capture(tokens, position, shallower if self._hybrid else position - 1, kind, now)
        if kind is WantedKind.JOIN:
            new = math.inf  # requests wait for it: it is certain to be used, at once
        if new is None:
            return None
        if self._ring.num_free:
            return self._ring.reserve(position, kind)
        if not self._free_snapshot(new, now):
            return None
        for _ in range(min(self._snapshots_ahead, self._ring.num_free_on_host)):
            self._free_snapshot(new, now)
        return self._ring.reserve(position, kind)

    def _free_snapshot(self, new: float, now: float) -> bool:
        """Frees the snapshot of the device with the lowest score, if the one lost for good by that has a lower score than `new`."""
        ring = self._ring

        def score_of(ref: SnapshotRef | None) -> float | None:
            return None if ref is None else self._snapshot_score(ref, now)

        place, value = self._hand.find(ring.num_snapshots, lambda place: score_of(ring.evictable_on_device(place)))
        if place is None:
            return False
        lowest = ring.evictable_on_device(place)
        lost = lowest
        if ring.num_free_on_host:
            lost, value = None, 0.0
        elif ring.num_host_snapshots:
            place, value_there = self._host_hand.find(ring.num_host_snapshots, lambda p: score_of(ring.evictable_on_host(p)))
            if place is not None and value_there < value:
                lost, value = ring.evictable_on_host(place), value_there
        if value >= new:
            return False
        if lost is not None:
            self._lose_snapshot(self._tree.node_of_snapshot(lost.snapshot_id), now)
        if lowest is not None and lost != lowest:
            self._moves.add(MoveKind.SNAPSHOT_OUT, *ring.move_out(lowest))
            self._counters.snapshots_moved_out += 1
        return True

    def _snapshot_score(self, ref: SnapshotRef, now: float) -> float:
        """Attention-only: a snapshot saves one token wherever it is."""
        node = self._tree.node_of_snapshot(ref.snapshot_id)
        return self._scorer.snapshot(node, self._tree.shallower_snapshot(node) if self._hybrid else node.end - 1, now)

    def _lose_snapshot(self, node: Node, now: float) -> None:
        heir = self._tree.snapshot_above(node)
        self._release(self._tree.detach(node), heir, now)

    def release_snapshot(self, snapshot_id: int | None) -> None:
        """Ends a snapshot that has left the tree because it is wrong, or for another of the same text; if there was one."""
        self._release(snapshot_id, None, None)

    def _release(self, snapshot_id: int | None, heir: Node | None, now: float | None) -> None:
        """`heir`: where its text resumes from now on. `now`: None where it was not evicted."""
        if snapshot_id is None:
            return
        if now is not None:
            self._counters.num_evicted_snapshots += 1
            self._counters.evicted[self._ring.kind(snapshot_id)] += 1
        self._scorer.lost(snapshot_id, None if heir is None else heir.snapshot_id, now)
        self._ring.release(self._ring.ref(snapshot_id))
