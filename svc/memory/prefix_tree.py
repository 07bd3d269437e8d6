"""What is known: a radix tree over token ids with page claims on every edge and at most one snapshot at the end of each.

Owner of the nodes and of the claims they hold on pages. A node's edge covers positions [start, end) of its path. It claims one
page per page-sized tile that its edge touches; on a path, the deepest node that touches a tile provides the page, and that page
holds *all* rows of the path from the start of the tile up to the node's end. So an edge can be cut in mid-page (both parts claim
the page) and two branches can leave from mid-page (each has its own page, with the common rows in both).

In a hybrid model a node is worth keeping only for a snapshot at its end or below it; in an attention-only model every claim is.
Nodes that are neither a branch nor the place of a snapshot are merged with their child, so that the tree stays small.

Where pages and snapshots stand (tiers.py) is nothing to the shape of the tree. Pages leave the device from the ends of the tree
backwards: `Node.resident` remembers how far that has come.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from svc.memory.eviction import sweep, worth
from svc.memory.page_pool import PagePool
from svc.memory.snapshot_ring import SnapshotRing

TokenIds = Sequence[int] | NDArray[np.int32]
"""Token ids of a sequence. An int32 array is used as it is; anything else is converted on every call (about 40 ns per token)."""

TokenArray = NDArray[np.int32]


def token_array(tokens: TokenIds, end: int | None = None) -> TokenArray:
    """The first `end` tokens (all by default) as int32 `[end]`."""
    head = tokens if end is None or end == len(tokens) else tokens[:end]
    return np.asarray(head, dtype=np.int32)


@dataclass(eq=False, slots=True)
class Node:
    """One edge and what is known along it. Only PrefixTree changes it."""

    parent: "Node | None"  # None: the root, which has no tokens
    start: int
    tokens: TokenArray  # [end - start], never empty except in the root
    pages: list[int]  # tile start // P and following
    children: dict[int, "Node"]  # by first token of the child's edge
    snapshot_id: int | None  # snapshot of the state after `end` tokens
    last_use: float  # seconds, on the caller's clock
    leaf_index: int  # where it stands in PrefixTree.leaves, -1 for inner nodes
    resident: int  # leading claims that may still be on the device; a claim behind can be too, if a neighbour shares it

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def __repr__(self) -> str:
        return f"Node([{self.start}, {self.end}), {len(self.children)} children, snapshot {self.snapshot_id})"


@dataclass(frozen=True, slots=True)
class Walk:
    """How far the tree follows some tokens."""

    path: list[Node]  # from below the root down; only the last may be matched in part
    matched: int

    @property
    def full_path(self) -> list[Node]:
        """Those nodes that are matched to their end."""
        return self.path[:-1] if self.path and self.path[-1].end > self.matched else self.path

    def pages(self, position: int, page_tokens: int) -> list[int]:
        """Pages that hold positions [0, position) of the path; position <= matched."""
        pages: list[int] = []
        for node in self.path:
            if node.start >= position:
                break
            first = node.start // page_tokens
            del pages[first:]
            pages += node.pages[: -(-position // page_tokens) - first]
        return pages


class PrefixTree:
    """Over the pages of `pool` and the snapshots of `ring`; `hybrid` says whether a claim without a snapshot below is of use."""

    def __init__(self, pool: PagePool, ring: SnapshotRing, *, hybrid: bool) -> None:
        self.hybrid = hybrid
        self.leaves: list[Node] = []
        self._pool = pool
        self._ring = ring
        self._page_tokens = pool.page_tokens
        self._root = Node(None, 0, np.zeros(0, np.int32), [], {}, None, 0.0, -1, 0)
        self._node_of_snapshot: dict[int, Node] = {}
        self._hand = 0
        self._host_hand = 0

    def __repr__(self) -> str:
        return f"PrefixTree({len(self.leaves)} leaves, {len(self._node_of_snapshot)} snapshots)"

    # -- looking --------------------------------------------------------------------------------------------------------------
    def walk(self, tokens: TokenArray) -> Walk:
        """Follows `tokens` as far as the tree knows them, comparing every id."""
        path: list[Node] = []
        node, matched = self._root, 0
        while matched < len(tokens):
            child = node.children.get(int(tokens[matched]))
            if child is None:
                break
            common = _common_prefix(child.tokens, tokens[matched:])
            path.append(child)
            matched += common
            if common < len(child.tokens):
                break
            node = child
        return Walk(path, matched)

    def deepest_snapshot(self, walk: Walk) -> Node | None:
        """The last node on the walk that is matched to its end and has a snapshot."""
        return next((node for node in reversed(walk.full_path) if node.snapshot_id is not None), None)

    def node_of_snapshot(self, snapshot_id: int) -> Node:
        return self._node_of_snapshot[snapshot_id]

    def shallower_snapshot(self, node: Node) -> int:
        """Position of the next snapshot above `node`, 0 without one."""
        above = node.parent
        while above is not None and above.snapshot_id is None:
            above = above.parent
        return above.end if above is not None else 0

    def claims_on_path(self, node: Node) -> list[int]:
        """Every page claimed by the node and its ancestors, once per claim."""
        pages: list[int] = []
        above: Node | None = node
        while above is not None:
            pages += above.pages
            above = above.parent
        return pages

    def nodes(self) -> Iterator[Node]:
        """All nodes but the root."""
        pending = list(self._root.children.values())
        while pending:
            node = pending.pop()
            pending.extend(node.children.values())
            yield node

    # -- growing --------------------------------------------------------------------------------------------------------------
    def insert(self, tokens: TokenArray, pages: Sequence[int], now: float) -> Node:
        """The node that ends exactly at len(tokens) > 0, made if need be; what is known already keeps its own pages.

        `pages` covers all of `tokens`. The rows newly claimed are sealed. Unless the node has a snapshot, the caller attaches one
        before anything else happens to the tree.
        """
        walk = self.walk(tokens)
        base = walk.path[-1] if walk.path else self._root
        if base.end > walk.matched:
            base = self._split(base, walk.matched)
        if walk.matched == len(tokens):
            return base
        return self._add_leaf(base, tokens, pages, now)

    def claim(self, tokens: TokenArray, pages: Sequence[int], now: float) -> None:
        """Attention-only: makes all of `tokens` known without a snapshot. `pages` covers them."""
        assert not self.hybrid, "a claim of a hybrid model needs a snapshot"
        walk = self.walk(tokens)
        if walk.matched < len(tokens):
            self.insert(tokens, pages, now)
        self.touch(walk, now)

    def touch(self, walk: Walk, now: float) -> None:
        """Notes a use of everything on the walk."""
        for node in walk.path:
            node.last_use = max(node.last_use, now)

    def attach(self, node: Node, snapshot_id: int, now: float) -> None:
        """Makes `snapshot` the snapshot at the end of `node`."""
        assert node.snapshot_id is None, f"{node!r} already has a snapshot"
        node.snapshot_id = snapshot_id
        node.last_use = now
        self._node_of_snapshot[snapshot_id] = node

    def swap(self, node: Node, snapshot_id: int) -> int:
        """Puts `snapshot` in the place of the node's snapshot and returns the old one."""
        old = self._take_snapshot(node)
        node.snapshot_id = snapshot_id
        self._node_of_snapshot[snapshot_id] = node
        return old

    # -- shrinking ------------------------------------------------------------------------------------------------------------
    def detach(self, node: Node) -> int:
        """Takes the snapshot off `node`, drops the claims that were only there for it, and returns the snapshot."""
        snapshot_id = self._take_snapshot(node)
        self._tidy(node)
        return snapshot_id

    def drop_leaf(self, leaf: Node) -> int | None:
        """Removes a leaf with its claims, and what above it was there only for it; returns its snapshot, if it had one."""
        snapshot_id = None if leaf.snapshot_id is None else self._take_snapshot(leaf)
        self._remove(leaf)
        return snapshot_id

    def trim_leaf(self, leaf: Node, num_pages: int) -> int | None:
        """Attention-only: gives up the last `num_pages` claims of a leaf; returns the snapshot of its snapshot, now useless."""
        assert not self.hybrid, "a hybrid leaf is of no use without its end"
        keep = len(leaf.pages) - num_pages
        if keep <= 0:
            return self.drop_leaf(leaf)
        snapshot_id = None if leaf.snapshot_id is None else self._take_snapshot(leaf)
        end = (leaf.start // self._page_tokens + keep) * self._page_tokens
        leaf.tokens = leaf.tokens[: end - leaf.start].copy()
        self._pool.unclaim(leaf.pages[keep:])
        del leaf.pages[keep:]
        leaf.resident = min(leaf.resident, keep)
        return snapshot_id

    def find_cheap_leaf(self, now: float, *, idle_only: bool) -> tuple[Node | None, int]:
        """Moves the hand on and returns the leaf that is worth least per page among those it saw, and how many it looked at.

        Leaves with a pinned snapshot stay. `idle_only` also spares those whose last page a live lease holds: dropping them frees
        little now.
        """

        def leaf_worth(index: int) -> float | None:
            leaf = self.leaves[index]
            if leaf.snapshot_id is not None and self._ring.is_pinned(leaf.snapshot_id):
                return None
            if idle_only and self._pool.is_held(leaf.pages[-1]):
                return None
            return self._worth_per_page(leaf, now)

        index, _, looked = sweep(self._hand, len(self.leaves), leaf_worth)
        self._hand = (self._hand + looked) % max(len(self.leaves), 1)
        return (None if index is None else self.leaves[index]), looked

    def find_cheap_host_leaf(self, now: float) -> tuple[Node | None, int]:
        """The same among the leaves whose end stands on the host: what is dropped where the host tier is full."""

        def leaf_worth(index: int) -> float | None:
            leaf = self.leaves[index]
            if leaf.snapshot_id is not None and self._ring.is_pinned(leaf.snapshot_id):
                return None
            if not self._pool.on_host(leaf.pages[-1]) or self._pool.is_held(leaf.pages[-1]):
                return None
            return self._worth_per_page(leaf, now)

        index, _, looked = sweep(self._host_hand, len(self.leaves), leaf_worth)
        self._host_hand = (self._host_hand + looked) % max(len(self.leaves), 1)
        return (None if index is None else self.leaves[index]), looked

    # -- leaving the device and coming back -------------------------------------------------------------------------------------
    def find_cheap_on_device(self, now: float) -> tuple[Node | None, int]:
        """Moves the hand on and returns, of the nodes at the ends of what stands on the device, the one worth least per page.

        Those whose last page there is held stay.
        """

        def edge_worth(index: int) -> float | None:
            node = self._device_edge(self.leaves[index])
            if node is None or self._pool.is_held(node.pages[node.resident - 1]):
                return None
            return self._worth_per_page(node, now)

        index, _, looked = sweep(self._hand, len(self.leaves), edge_worth)
        self._hand = (self._hand + looked) % max(len(self.leaves), 1)
        return (None if index is None else self._device_edge(self.leaves[index])), looked

    def take_off_device(self, node: Node, num_pages: int) -> list[int]:
        """The last pages of the node that stand on the device and that nobody holds, at most `num_pages`: the caller moves them."""
        pages: list[int] = []
        while node.resident and len(pages) < num_pages:
            page = node.pages[node.resident - 1]
            if not self._pool.on_host(page):
                if self._pool.is_held(page):
                    break
                pages.append(page)
            node.resident -= 1
        if not node.resident and node.parent is not None:
            # What is used below a node uses its pages too; from now on it answers for them alone.
            node.parent.last_use = max(node.parent.last_use, node.last_use)
        return pages

    def back_on_device(self, walk: Walk, position: int) -> None:
        """The pages of the walk up to `position` stand on the device again."""
        for node in walk.path:
            claims = -(-min(position, node.end) // self._page_tokens) - node.start // self._page_tokens
            node.resident = max(node.resident, claims)

    def _device_edge(self, leaf: Node) -> Node | None:
        """The deepest node from the leaf upwards that has pages on the device."""
        node: Node | None = leaf
        while node is not None:
            while node.resident and self._pool.on_host(node.pages[node.resident - 1]):
                node.resident -= 1
            if node.resident:
                return node
            node = node.parent
        return None

    def _worth_per_page(self, node: Node, now: float) -> float:
        shallower = self.shallower_snapshot(node) if self.hybrid else node.start
        return worth(node.end, shallower, now - node.last_use) / len(node.pages)

    def snapshot_worth(self, snapshot_id: int, now: float) -> float:
        """What a published snapshot is worth (see eviction.py). Attention-only: it saves one token wherever it stands."""
        node = self._node_of_snapshot[snapshot_id]
        if not self.hybrid:
            return worth(1, 0, now - node.last_use)
        return worth(node.end, self.shallower_snapshot(node), now - node.last_use)

    # -- checks ---------------------------------------------------------------------------------------------------------------
    def check(self) -> tuple[list[int], set[int]]:
        """Proves the shape of the tree; returns all claims (page once per claim) and the snapshots it has."""
        claims: list[int] = []
        snapshots: dict[int, Node] = {}
        leaves = []
        for node in self.nodes():
            self._check_node(node)
            claims += node.pages
            if node.snapshot_id is not None:
                assert node.snapshot_id not in snapshots, (
                    f"snapshot {node.snapshot_id} hangs at {snapshots[node.snapshot_id]!r} and {node!r}"
                )
                snapshots[node.snapshot_id] = node
            if not node.children:
                leaves.append(node)
        assert snapshots == self._node_of_snapshot, "snapshots found in the tree differ from the index of snapshots"
        assert {id(leaf) for leaf in leaves} == {id(leaf) for leaf in self.leaves}, "leaves found differ from the list of leaves"
        assert len(leaves) == len(self.leaves), "a leaf is listed twice"
        return claims, set(snapshots)

    def _check_node(self, node: Node) -> None:
        size, parent = self._page_tokens, node.parent
        assert len(node.tokens) > 0, f"{node!r} has an empty edge"
        assert parent is not None, f"{node!r} has no parent"
        assert parent.end == node.start, f"{node!r} does not start where its parent ends"
        assert parent.children.get(int(node.tokens[0])) is node, f"{node!r} is not found under its first token"
        tiles = range(node.start // size, -(-node.end // size))
        assert len(node.pages) == len(tiles), f"{node!r} claims {len(node.pages)} pages for {len(tiles)} tiles"
        assert 0 <= node.resident <= len(tiles), f"{node!r} has {node.resident} of {len(tiles)} pages on the device"
        for tile, page in zip(tiles, node.pages, strict=True):
            rows = min(node.end - tile * size, size)
            assert self._pool.sealed_rows(page) >= rows, f"{node!r} claims {rows} rows of page {page}, which are not sealed"
        if node.children:
            assert node.leaf_index == -1, f"{node!r} has children and is listed as a leaf"
            assert node.snapshot_id is not None or len(node.children) > 1, f"{node!r} should be one with its only child"
        else:
            listed = self.leaves[node.leaf_index : node.leaf_index + 1]
            assert listed == [node], f"{node!r} stands wrong in the list of leaves"
            assert node.snapshot_id is not None or not self.hybrid, f"{node!r} leads to no snapshot"

    # -- parts ----------------------------------------------------------------------------------------------------------------
    def _add_leaf(self, base: Node, tokens: TokenArray, pages: Sequence[int], now: float) -> Node:
        start, end, size = base.end, len(tokens), self._page_tokens
        first = start // size
        claimed = list(pages[first : -(-end // size)])
        assert len(claimed) == -(-end // size) - first, f"{len(pages)} pages do not cover {end} tokens"
        leaf = Node(base, start, tokens[start:].copy(), claimed, {}, None, now, -1, len(claimed))
        self._pool.claim(claimed)
        for tile, page in enumerate(claimed, start=first):
            self._pool.seal(page, min(end - tile * size, size))
        base.children[int(leaf.tokens[0])] = leaf
        self._unlist(base)
        self._list(leaf)
        self._tidy(base)
        return leaf

    def _split(self, node: Node, position: int) -> Node:
        """Cuts an edge; returns the new upper part. The lower part stays the same object: its snapshot and children hang there."""
        size, parent = self._page_tokens, node.parent
        assert parent is not None, "the root is never cut"
        assert node.start < position < node.end, f"{node!r} cannot be cut at {position}"
        first, offset = node.start // size, position - node.start
        upper_pages = node.pages[: -(-position // size) - first]
        lower_pages = node.pages[position // size - first :]
        if position % size:
            self._pool.claim(lower_pages[:1])
        resident = min(node.resident, len(upper_pages))
        upper = Node(parent, node.start, node.tokens[:offset].copy(), upper_pages, {}, None, node.last_use, -1, resident)
        parent.children[int(upper.tokens[0])] = upper
        upper.children[int(node.tokens[offset])] = node
        node.parent, node.start, node.tokens, node.pages = upper, position, node.tokens[offset:].copy(), lower_pages
        node.resident = max(node.resident - (position // size - first), 0)
        return upper

    def _tidy(self, node: Node) -> None:
        """Restores the rule of the tree at a node that has lost a snapshot or a child, or a leaf that has gained one."""
        if node.parent is None or node.snapshot_id is not None:
            return
        if not node.children:
            if self.hybrid:
                self._remove(node)
        elif len(node.children) == 1:
            self._merge(node, next(iter(node.children.values())))

    def _merge(self, node: Node, child: Node) -> None:
        """Joins a node with its only child, which stays the same object. The child provides the tile they share."""
        first = node.start // self._page_tokens
        shared = child.start // self._page_tokens - first
        self._pool.unclaim(node.pages[shared:])
        assert node.parent is not None, "the root is never merged"
        node.parent.children[int(node.tokens[0])] = child
        child.resident = shared + child.resident if child.resident else min(node.resident, shared)
        child.pages = node.pages[:shared] + child.pages
        child.tokens = np.concatenate([node.tokens, child.tokens])
        child.parent, child.start = node.parent, node.start

    def _remove(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None, "the root is never removed"
        assert not leaf.children, f"{leaf!r} is no leaf"
        assert leaf.snapshot_id is None, f"the snapshot of {leaf!r} would be lost"
        del parent.children[int(leaf.tokens[0])]
        self._unlist(leaf)
        self._pool.unclaim(leaf.pages)
        if not parent.children and parent.parent is not None:
            self._list(parent)
        self._tidy(parent)

    def _take_snapshot(self, node: Node) -> int:
        assert node.snapshot_id is not None, f"{node!r} has no snapshot"
        snapshot_id, node.snapshot_id = node.snapshot_id, None
        del self._node_of_snapshot[snapshot_id]
        return snapshot_id

    def _list(self, node: Node) -> None:
        node.leaf_index = len(self.leaves)
        self.leaves.append(node)

    def _unlist(self, node: Node) -> None:
        if node.leaf_index < 0:
            return
        last = self.leaves.pop()
        if last is not node:
            self.leaves[node.leaf_index] = last
            last.leaf_index = node.leaf_index
        node.leaf_index = -1


def _common_prefix(edge: TokenArray, tokens: TokenArray) -> int:
    length = min(len(edge), len(tokens))
    differ = edge[:length] != tokens[:length]
    first = int(differ.argmax()) if length else 0
    return first if length and differ[first] else length
