"""A radix tree over token ids: page references on every edge and at most one snapshot at the end of each.

Owner of the nodes and of their references to pages. A node's edge covers positions [start, end) of its path. It references one
page per page-sized tile that its edge touches; on a path, the deepest node that touches a tile provides the page, and that page
holds *all* rows of the path from the start of the tile up to the node's end. So an edge can be cut in mid-page (both parts use the
page) and two branches can leave from mid-page (each has its own page, with the common rows in both). A node that ends in mid-page,
has children and no snapshot references no page for that last tile: its children's pages hold those rows too.

In a hybrid model a node is kept only for a snapshot at its end or below it; in an attention-only model every page is of use. Nodes
that are neither a branch nor the place of a snapshot are merged with their child, so that the tree stays small.

The tree's shape does not depend on tiers. Pages leave the device from the ends of the tree backwards: `Node.resident` remembers how
far that has come.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from svc.memory.page_pool import PagePool, Pages
from svc.memory.snapshot_ring import SnapshotRing
from svc.memory.tokens import TokenArray, common_prefix, edge

TOKEN_BYTES = 4
KEPT_EVERY = 64  # nodes of a path after which the pages of the path are kept: what is looked at again is at most these


@dataclass(eq=False, slots=True)
class Node:
    """One edge, its pages and its snapshot. Only PrefixTree changes it."""

    parent: "Node | None"  # None: a root, which has no tokens
    start: int
    tokens: TokenArray  # [end - start], never empty except in the root
    data: bytearray  # the same, to compare with at once (with any buffer, without a copy of that)
    pages: Pages  # of tile start // P and following; the last may be left to the children
    children: dict[int, "Node"]  # by first token of the child's edge
    snapshot_id: int | None  # snapshot of the state after `end` tokens
    last_use: float  # seconds, on the caller's clock
    leaf_index: int  # its index in PrefixTree.leaves, -1 for inner nodes
    resident: int  # leading pages that may be on the device; a page behind can be too, if a neighbour shares it
    whole_pages: Pages | None = None  # all of its path but that of a partial last tile; kept at some nodes (_path_pages)
    owner: str = ""  # whose text the edge is, if one's alone (other_text.py); of a root: its space

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def __repr__(self) -> str:
        return f"Node([{self.start}, {self.end}), {len(self.children)} children, snapshot {self.snapshot_id})"


@dataclass(frozen=True, slots=True)
class Walk:
    """How far the tree follows some tokens from `base` downwards."""

    base: Node
    path: list[Node]  # below the base; only the last may be matched in part
    matched: int

    @property
    def full_path(self) -> list[Node]:
        """The path's nodes that are matched to their end."""
        return self.path[:-1] if self.path and self.path[-1].end > self.matched else self.path


class PrefixTree:
    """Over the pages of `pool` and the snapshots of `ring`; `hybrid`: pages without a snapshot at or below them are of no use."""

    def __init__(self, pool: PagePool, ring: SnapshotRing, *, hybrid: bool) -> None:
        self.hybrid = hybrid
        self.leaves: list[Node] = []
        self.num_nodes = 0
        self.num_walks = 0  # since start: the cost of planning, independent of any clock
        self.version = 0  # grows with every change that can move a resume point
        self._pool = pool
        self._ring = ring
        self._page_tokens = pool.page_tokens
        self._root = _root_of("")
        self._roots = {"": self._root}  # by space; others than the first only while there is something below
        self._node_of_snapshot: dict[int, Node] = {}

    def __repr__(self) -> str:
        return f"PrefixTree({len(self.leaves)} leaves, {len(self._node_of_snapshot)} snapshots)"

    # -- looking --------------------------------------------------------------------------------------------------------------
    def walk(self, tokens: TokenArray, base: Node | None = None) -> Walk:
        """Follows `tokens` as far as the tree knows them, comparing every id from `base` (default: the root) on.

        The path of `base` must be known to spell tokens[:base.end].
        """
        self.num_walks += 1
        path: list[Node] = []
        base = base or self._root
        node, matched = base, base.end
        ids = tokens.data
        while matched < len(ids):
            child = node.children.get(ids[matched])
            if child is None:
                break
            path.append(child)
            end = matched + len(child.data) // TOKEN_BYTES
            if child.data != ids[matched:end]:
                matched += common_prefix(child.tokens, tokens[matched:])
                break
            matched = end
            node = child
        return Walk(base, path, matched)

    def root(self, space: str) -> Node:
        """Where walks of a space begin. Texts of two spaces have nothing in common, however equal they are."""
        return self._roots.get(space) or _root_of(space)

    def deepest_snapshot(self, walk: Walk) -> Node | None:
        """The deepest node at or above the end of the walk that is matched to its end and has a snapshot."""
        below = next((node for node in reversed(walk.full_path) if node.snapshot_id is not None), None)
        return below or (walk.base if walk.base.snapshot_id is not None else self.snapshot_above(walk.base))

    def deepest_position(self, walk: Walk) -> int:
        """Where that node ends, 0 without one."""
        node = self.deepest_snapshot(walk)
        return node.end if node is not None else 0

    def node_of_snapshot(self, snapshot_id: int) -> Node:
        return self._node_of_snapshot[snapshot_id]

    def shallower_snapshot(self, node: Node) -> int:
        """Position of the next snapshot above `node`, 0 without one."""
        above = self.snapshot_above(node)
        return above.end if above is not None else 0

    def snapshot_above(self, node: Node) -> Node | None:
        """The node of the next snapshot above `node`."""
        above = node.parent
        while above is not None and above.snapshot_id is None:
            above = above.parent
        return above

    def pages(self, walk: Walk, position: int) -> Pages:
        """Pages that hold positions [0, position) of a walk; position <= walk.matched."""
        return self._path_pages(self._whole_path(walk), position)

    def pages_of(self, node: Node) -> Pages:
        """Pages that hold positions [0, node.end) of its path: what a resume at its snapshot reads."""
        return self._path_pages(self._upwards(node), node.end)

    def path_tokens(self, node: Node) -> TokenArray:
        """The tokens [0, node.end) of its path, int32."""
        parts = [each.tokens for each in self._upwards(node)]
        return np.concatenate(parts[::-1]) if parts else np.zeros(0, np.int32)

    @property
    def nodes_of_snapshots(self) -> dict[int, Node]:
        """Node by snapshot id. A view."""
        return self._node_of_snapshot

    def nodes(self) -> Iterator[Node]:
        """All nodes but the roots."""
        pending = [node for root in self._roots.values() for node in root.children.values()]
        while pending:
            node = pending.pop()
            pending.extend(node.children.values())
            yield node

    def num_tiles(self, node: Node) -> int:
        """Page-sized tiles that the node's edge touches."""
        return -(-node.end // self._page_tokens) - node.start // self._page_tokens

    # -- growing --------------------------------------------------------------------------------------------------------------
    def insert(self, tokens: TokenArray, pages: Pages, now: float, base: Node | None = None, owner: str = "") -> Node:
        """The node that ends exactly at len(tokens) > 0, made if need be; known edges keep their own pages.

        `pages` covers all of `tokens`, whose first base.end are known to be the path of `base`. The rows newly referenced are
        sealed. Unless the node has a snapshot, the caller attaches one before anything else happens to the tree.
        """
        return self._insert(self.walk(tokens, base), tokens, pages, now, owner)

    def insert_pages(self, tokens: TokenArray, pages: Pages, now: float, owner: str = "", base: Node | None = None) -> None:
        """Attention-only: makes all of `tokens` known without a snapshot. `pages` covers them."""
        assert not self.hybrid, "pages of a hybrid model need a snapshot"
        walk = self.walk(tokens, base)
        self.touch(walk, now)
        if walk.matched < len(tokens):
            self._insert(walk, tokens, pages, now, owner)

    def touch(self, walk: Walk, now: float) -> None:
        """Notes a use of everything on the walk."""
        for node in walk.path:
            node.last_use = max(node.last_use, now)

    def attach(self, node: Node, snapshot_id: int, now: float) -> None:
        """Makes `snapshot_id` the snapshot at the end of `node`."""
        assert node.snapshot_id is None, f"{node!r} already has a snapshot"
        if len(node.pages) < self.num_tiles(node):
            page = np.array([self._last_tile_page(node)], np.int32)
            self._pool.add_references(page)
            node.pages = np.concatenate([node.pages, page])
            node.resident = len(node.pages)
        node.snapshot_id = snapshot_id
        node.last_use = now
        self._node_of_snapshot[snapshot_id] = node
        self.version += 1

    def swap(self, node: Node, snapshot_id: int) -> int:
        """Puts `snapshot_id` in the place of the node's snapshot and returns the old one."""
        old = self._take_snapshot(node)
        node.snapshot_id = snapshot_id
        self._node_of_snapshot[snapshot_id] = node
        return old

    # -- shrinking ------------------------------------------------------------------------------------------------------------
    def detach(self, node: Node) -> int:
        """Takes the snapshot off `node`, drops the pages that were only kept for it, and returns the snapshot."""
        snapshot_id = self._take_snapshot(node)
        self._tidy(node)
        return snapshot_id

    def drop_leaf(self, leaf: Node) -> int | None:
        """Removes a leaf with its pages, and nodes above that were only kept for it; returns its snapshot, if it had one."""
        snapshot_id = None if leaf.snapshot_id is None else self._take_snapshot(leaf)
        self._remove(leaf)
        return snapshot_id

    def trim_leaf(self, leaf: Node, num_pages: int) -> int | None:
        """Attention-only: drops the last `num_pages` pages of a leaf; returns its snapshot, now useless."""
        assert not self.hybrid, "a hybrid leaf is of no use without its end"
        keep = len(leaf.pages) - num_pages
        if keep <= 0:
            return self.drop_leaf(leaf)
        snapshot_id = None if leaf.snapshot_id is None else self._take_snapshot(leaf)
        end = (leaf.start // self._page_tokens + keep) * self._page_tokens
        leaf.tokens, leaf.data = edge(leaf.tokens[: end - leaf.start])
        self._pool.drop_references(leaf.pages[keep:])
        leaf.pages = leaf.pages[:keep]
        leaf.whole_pages = None
        leaf.resident = min(leaf.resident, keep)
        self.version += 1
        return snapshot_id

    def find_superseded(self) -> Node | None:
        """An inner node whose unpinned snapshot alone keeps a cached page on the device: that of its last tile. Looks at all."""
        for node in self._node_of_snapshot.values():
            if not node.children or not node.end % self._page_tokens or node.snapshot_id is None:
                continue
            page = int(node.pages[-1])
            if not (self._ring.is_pinned(node.snapshot_id) or self._pool.is_pinned(page) or self._pool.on_host(page)):
                return node
        return None

    # -- leaving the device and coming back -------------------------------------------------------------------------------------
    def device_edge(self, leaf: Node) -> Node | None:
        """The deepest node from the leaf upwards that has pages on the device."""
        for node in self._upwards(leaf):
            while node.resident and self._pool.on_host(int(node.pages[node.resident - 1])):
                node.resident -= 1
            if node.resident:
                return node
        return None

    def take_off_device(self, node: Node, num_pages: int) -> list[int]:
        """The last pages of the node on the device that are not pinned, at most `num_pages`: the caller moves them."""
        pages: list[int] = []
        while node.resident and len(pages) < num_pages:
            page = int(node.pages[node.resident - 1])
            if not self._pool.on_host(page):
                if self._pool.is_pinned(page):
                    break
                pages.append(page)
            node.resident -= 1
        if not node.resident and node.parent is not None:
            # A use below a node is a use of its pages too; from now on only the parent's age tells of it.
            node.parent.last_use = max(node.parent.last_use, node.last_use)
        return pages

    def back_on_device(self, walk: Walk, position: int) -> None:
        """The pages of the walk up to `position` are on the device again."""
        for node in self._whole_path(walk):
            num_tiles = -(-min(position, node.end) // self._page_tokens) - node.start // self._page_tokens
            node.resident = min(max(node.resident, num_tiles), len(node.pages))

    # -- parts ----------------------------------------------------------------------------------------------------------------
    def _upwards(self, node: Node) -> Iterator[Node]:
        """The node and its ancestors without the root."""
        above: Node | None = node
        while above is not None and above.parent is not None:
            yield above
            above = above.parent

    def _whole_path(self, walk: Walk) -> Iterator[Node]:
        """The nodes of the walk and those above its base, from the deepest up."""
        yield from reversed(walk.path)
        yield from self._upwards(walk.base)

    def _path_pages(self, path: Iterable[Node], position: int) -> Pages:
        """The pages of [0, position); read-only. `path`: nodes from the deepest up to the one below the root.

        A node's first page replaces its ancestors' page of the same tile. So the pages of whole tiles never change as long as a
        node lives and its end stays, whatever is cut, merged, added or evicted around it: every so many nodes of a path they are
        kept, and a long path is put together once.
        """
        size = self._page_tokens
        wanted = -(-position // size)
        pages = np.empty(wanted, np.int32)
        missing = wanted  # pages[missing:] are there
        passed: list[Node] = []
        for node in path:
            if node.start >= position:
                continue
            first, own = (node.start // size, node.pages) if node.whole_pages is None else (0, node.whole_pages)
            own = own[: missing - first]
            pages[first : first + len(own)] = own
            if first + len(own) < missing:
                pages[missing - 1] = self._last_tile_page(node)
            missing = first
            if not missing:
                break
            passed.append(node)
        assert not missing, f"no pages for the first {missing} tiles of the path"
        pages.setflags(write=False)
        for node in passed[KEPT_EVERY // 2 :: KEPT_EVERY]:
            node.whole_pages = pages[: node.end // size]
        return pages

    def _last_tile_page(self, node: Node) -> int:
        """The page of the node's last tile: its own, or that of a child to which it leaves the tile."""
        if len(node.pages) == self.num_tiles(node):
            return int(node.pages[-1])
        child = next(iter(node.children.values()))
        while not len(child.pages):
            child = next(iter(child.children.values()))
        return int(child.pages[0])

    def _insert(self, walk: Walk, tokens: TokenArray, pages: Pages, now: float, owner: str) -> Node:
        """`insert`, when the tree has been walked."""
        last = walk.path[-1] if walk.path else walk.base
        if last.end > walk.matched:
            last = self._split(last, walk.matched)
        if walk.matched == len(tokens):
            return last
        return self._add_leaf(last, tokens, pages, now, owner)

    def _add_leaf(self, base: Node, tokens: TokenArray, pages: Pages, now: float, owner: str) -> Node:
        start, end, size = base.end, len(tokens), self._page_tokens
        first = start // size
        own = pages[first : -(-end // size)].copy()
        assert len(own) == -(-end // size) - first, f"{len(pages)} pages do not cover {end} tokens"
        leaf = Node(base, start, *edge(tokens[start:]), own, {}, None, now, -1, len(own), owner=owner)
        self._pool.add_references(own)
        self._pool.seal_whole(own[: end // size - first])
        if end % size:
            self._pool.seal(int(own[-1]), end % size)
        base.children[int(leaf.tokens[0])] = leaf
        if base.parent is None:
            self._roots[base.owner] = base
        self.num_nodes += 1
        self.version += 1
        self._unlist(base)
        self._list(leaf)
        self._tidy(base)
        return leaf

    def _split(self, node: Node, position: int) -> Node:
        """Cuts an edge; returns the new upper part. The lower part is the same object: its snapshot and children stay with it."""
        size, parent = self._page_tokens, node.parent
        assert parent is not None, "the root is never cut"
        assert node.start < position < node.end, f"{node!r} cannot be cut at {position}"
        offset, num_upper = position - node.start, position // size - node.start // size
        resident = min(node.resident, num_upper)
        upper_pages = node.pages[:num_upper].copy()
        upper = Node(parent, node.start, *edge(node.tokens[:offset]), upper_pages, {}, None, node.last_use, -1, resident)
        upper.owner = node.owner
        parent.children[int(upper.tokens[0])] = upper
        upper.children[int(node.tokens[offset])] = node
        node.tokens, node.data = edge(node.tokens[offset:])
        node.parent, node.start, node.pages = upper, position, node.pages[num_upper:].copy()
        node.resident = max(node.resident - num_upper, 0)
        self.num_nodes += 1
        self.version += 1
        return upper

    def _tidy(self, node: Node) -> None:
        """Restores the rules of the tree at a node that has lost a snapshot or a child, or a leaf that has gained one."""
        if node.parent is None or node.snapshot_id is not None:
            return
        if not node.children:
            if self.hybrid:
                self._remove(node)
        elif len(node.children) == 1:
            self._merge(node, next(iter(node.children.values())))
        elif node.end % self._page_tokens and len(node.pages) == self.num_tiles(node):
            self._pool.drop_references(node.pages[-1:])
            node.pages = node.pages[:-1]
            node.resident = min(node.resident, len(node.pages))

    def _merge(self, node: Node, child: Node) -> None:
        """Joins a node with its only child, which remains the same object. The child provides the tile they share."""
        first = node.start // self._page_tokens
        shared = child.start // self._page_tokens - first
        self._pool.drop_references(node.pages[shared:])
        assert node.parent is not None, "the root is never merged"
        node.parent.children[int(node.tokens[0])] = child
        child.resident = shared + child.resident if child.resident else min(node.resident, shared)
        child.pages = np.concatenate([node.pages[:shared], child.pages])
        child.tokens, child.data = edge(np.concatenate([node.tokens, child.tokens]))
        child.parent, child.start = node.parent, node.start
        child.owner = child.owner if child.owner == node.owner else ""
        self.num_nodes -= 1
        self.version += 1

    def _remove(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None, "the root is never removed"
        assert not leaf.children, f"{leaf!r} is no leaf"
        assert leaf.snapshot_id is None, f"the snapshot of {leaf!r} would be lost"
        del parent.children[int(leaf.tokens[0])]
        self.num_nodes -= 1
        self.version += 1
        self._unlist(leaf)
        self._pool.drop_references(leaf.pages)
        if not parent.children and parent.parent is not None:
            self._list(parent)
        elif not parent.children and parent.owner:
            del self._roots[parent.owner]
        self._tidy(parent)

    def _take_snapshot(self, node: Node) -> int:
        assert node.snapshot_id is not None, f"{node!r} has no snapshot"
        snapshot_id, node.snapshot_id = node.snapshot_id, None
        del self._node_of_snapshot[snapshot_id]
        self.version += 1
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


def _root_of(space: str) -> Node:
    return Node(None, 0, np.zeros(0, np.int32), bytearray(), np.zeros(0, np.int32), {}, None, 0.0, -1, 0, owner=space)
