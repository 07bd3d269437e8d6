"""Pins of published snapshots: with a snapshot the pages are pinned that a resume there reads."""

from svc.memory.page_pool import PagePool, Pages
from svc.memory.prefix_tree import Node, PrefixTree
from svc.memory.snapshot_ring import SnapshotRef, SnapshotRing
from svc.memory.tokens import TokenArray


class PathPins:
    """Part of one SequenceCache. `pages`: of the path of each snapshot that is published and pinned, by its id."""

    def __init__(self, pool: PagePool, ring: SnapshotRing, tree: PrefixTree) -> None:
        self.pages: dict[int, Pages] = {}
        self._pool = pool
        self._ring = ring
        self._tree = tree

    def pin(self, ref: SnapshotRef) -> None:
        """Keeps a snapshot (reserved or published), and once published its pages, from eviction. Counted."""
        if self._ring.pin(ref) and self._ring.is_published(ref):
            self.pin_path(ref.snapshot_id)

    def pin_at(self, tokens: TokenArray, root: Node) -> SnapshotRef | None:
        """Pins the published snapshot after exactly these tokens, or None when there is none."""
        node = self._tree.deepest_snapshot(self._tree.walk(tokens, root))
        if node is None or node.snapshot_id is None or node.end != len(tokens):
            return None
        ref = self._ring.ref(node.snapshot_id)
        self.pin(ref)
        return ref

    def unpin(self, ref: SnapshotRef) -> None:
        """One pin less. Allowed also after the snapshot was discarded or evicted meanwhile."""
        if self._ring.unpin(ref) and ref.snapshot_id in self.pages:
            self._pool.unpin(self.pages.pop(ref.snapshot_id))

    def pin_path(self, snapshot_id: int) -> None:
        """Pins the pages that a resume at the snapshot reads: what the pool says is available then is."""
        pages = self._tree.pages_of(self._tree.node_of_snapshot(snapshot_id))
        self._pool.pin(pages)
        self.pages[snapshot_id] = pages
