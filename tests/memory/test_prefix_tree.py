"""Edges, references and snapshots of the tree, on pages handed out by hand."""

import numpy as np
import pytest

from svc.memory.integrity import check_tree
from svc.memory.page_pool import PagePool
from svc.memory.placement import WantedKind
from svc.memory.prefix_tree import PrefixTree
from svc.memory.snapshot_ring import SnapshotRing
from svc.memory.tokens import TokenArray, token_array


class Planted:
    """A tree of 4-row pages whose texts are inserted from pages that nobody pins any more afterwards."""

    def __init__(self, *, hybrid: bool = True, num_pages: int = 1000, num_snapshots: int = 300) -> None:
        self.pool = PagePool(num_pages, 4)
        self.ring = SnapshotRing(num_snapshots)
        self.tree = PrefixTree(self.pool, self.ring, hybrid=hybrid)

    def plant(self, tokens: list[int], now: float = 0.0) -> tuple[list[int], int]:
        """Makes a text known with a snapshot at its end; returns the pages offered for it, and the snapshot."""
        pages = self.pool.allocate(self.pool.pages_for(len(tokens)), writer=1)
        ref = self.ring.reserve(len(tokens), WantedKind.SPARSE)
        assert ref is not None
        self.ring.mark_written(ref)
        self.tree.attach(self.tree.insert(token_array(tokens), pages, now), ref.snapshot_id, now)
        self.ring.mark_published(ref)
        self.pool.unpin(pages)
        return pages.tolist(), ref.snapshot_id

    def lose(self, snapshot_id: int) -> None:
        """Its text is known no longer, but for what other snapshots need."""
        self.ring.release(self.ring.ref(self.tree.detach(self.tree.node_of_snapshot(snapshot_id))))

    def pages(self, tokens: list[int]) -> list[int]:
        return self.tree.pages(self.tree.walk(token_array(tokens)), len(tokens)).tolist()

    def check(self) -> None:
        references, snapshots = check_tree(self.tree, self.pool)
        self.pool.check([], references)
        self.ring.check(snapshots, {})


def test_deepest_node_provides_a_page() -> None:
    """Two branches part in mid-page: each reads that tile from its own page, and the common part from one of them."""
    planted = Planted()
    one, _ = planted.plant([1, 2, 3, 4, 5, 6, 7, 8, 9])
    two, _ = planted.plant([1, 2, 3, 4, 5, 6, 70, 80, 90])
    assert planted.pages([1, 2, 3, 4, 5, 6, 7, 8, 9]) == one
    assert planted.pages([1, 2, 3, 4, 5, 6, 70, 80, 90]) == [one[0], two[1], two[2]]
    assert planted.pages([1, 2, 3, 4, 5, 6]) == one[:2]
    assert planted.pool.num_free == 1000 - 5  # two[0] was not needed
    planted.check()


def test_common_part_survives_either_branch() -> None:
    """When one branch goes, the other keeps all its pages, and the tile they shared belongs to it alone."""
    planted = Planted()
    _, first_snapshot = planted.plant([1, 2, 3, 4, 5, 6, 7, 8, 9])
    two, _ = planted.plant([1, 2, 3, 4, 5, 6, 70, 80, 90])
    before = planted.pages([1, 2, 3, 4, 5, 6, 70, 80, 90])
    planted.lose(first_snapshot)
    assert planted.pages([1, 2, 3, 4, 5, 6, 70, 80, 90]) == before
    assert planted.pages([1, 2, 3, 4, 5, 6]) == [before[0], two[1]]
    assert planted.pool.num_free == 1000 - 3
    assert sum(1 for _ in planted.tree.nodes()) == 1
    planted.check()


def test_snapshot_in_mid_edge_needs_no_new_page() -> None:
    """A snapshot at a known position only cuts the edge there; dropping it makes the edge whole again."""
    planted = Planted()
    pages, _ = planted.plant(list(range(11)))
    _, snapshot_id = planted.plant(list(range(6)))
    assert planted.pages(list(range(11))) == pages
    assert [node.end for node in planted.tree.walk(token_array(range(11))).path] == [6, 11]
    planted.check()
    planted.lose(snapshot_id)
    assert [node.end for node in planted.tree.walk(token_array(range(11))).path] == [11]
    planted.check()


def test_shallower_snapshot() -> None:
    """The fallback of a snapshot is the next one above it, across nodes that have none."""
    planted = Planted()
    _, top = planted.plant([1, 2, 3])
    _, left = planted.plant([1, 2, 3, 4, 5, 6, 7])
    _, right = planted.plant([1, 2, 3, 4, 5, 60, 70])
    shallower = [planted.tree.shallower_snapshot(planted.tree.node_of_snapshot(snapshot_id)) for snapshot_id in (top, left, right)]
    assert shallower == [0, 3, 3]


@pytest.mark.parametrize("length", [0, 1, 4, 7, 12, 13])
def test_walk_counts_common_tokens(length: int) -> None:
    """`matched` is the exact common prefix, whether it ends in an edge, at its end or beyond what is known."""
    planted = Planted()
    planted.plant(list(range(12)))
    tokens: TokenArray = np.array([*range(length), 99], np.int32)
    assert planted.tree.walk(tokens).matched == min(length, 12)


def test_token_array_takes_arrays_as_they_are() -> None:
    """An int32 array is not copied; other sequences are converted, up to the end asked for."""
    array = np.arange(5, dtype=np.int32)
    assert np.shares_memory(token_array(array, 3), array)
    assert token_array((7, 8, 9), 2).tolist() == [7, 8]
    assert token_array([7, 8, 9]).dtype == np.int32


# -- superseded pages -----------------------------------------------------------------------------------------------------------
def test_superseded_page_is_freed_with_its_snapshot() -> None:
    """A text that ends in mid-page and goes on in two ways: its own last page is needed for its snapshot alone."""
    planted = Planted()
    stem, snapshot_id = planted.plant([1, 2, 3, 4, 5, 6])
    one, _ = planted.plant([1, 2, 3, 4, 5, 6, 7, 8, 9])
    two, _ = planted.plant([1, 2, 3, 4, 5, 6, 70, 80, 90])
    assert planted.pages([1, 2, 3, 4, 5, 6]) == stem
    assert planted.pool.num_free == 1000 - 6
    planted.lose(snapshot_id)
    assert planted.pool.num_free == 1000 - 5
    assert planted.pages([1, 2, 3, 4, 5, 6]) in ([stem[0], one[1]], [stem[0], two[1]])
    assert planted.pages([1, 2, 3, 4, 5, 6, 7, 8, 9]) == [stem[0], *one[1:]]
    planted.check()


def test_branch_without_a_snapshot_keeps_no_page_of_its_own() -> None:
    """Where texts part in mid-page and nothing resumes there, the tile costs one page for each branch and none for the stem."""
    planted = Planted()
    for number in range(1, 6):
        planted.plant([1, 2, 3, 4, 5, 6, 10 * number, 0])
        assert planted.pool.num_free == 1000 - 1 - number
        planted.check()


def test_snapshot_at_a_branch_references_a_page_of_its_children() -> None:
    """A snapshot that comes later to such a place uses the rows in a child's page, also when that child goes."""
    planted = Planted()
    one, first = planted.plant([1, 2, 3, 4, 5, 6, 7, 8])
    two, second = planted.plant([1, 2, 3, 4, 5, 6, 70, 80])
    planted.plant([1, 2, 3, 4, 5, 6])
    assert planted.pool.num_free == 1000 - 3
    known = planted.pages([1, 2, 3, 4, 5, 6])
    assert known in ([one[0], one[1]], [one[0], two[1]])
    planted.check()
    for snapshot_id in (first, second):
        planted.lose(snapshot_id)
        assert planted.pages([1, 2, 3, 4, 5, 6]) == known
        planted.check()
    assert planted.pool.num_free == 1000 - 2


def test_superseded_snapshot_is_found() -> None:
    """`find_superseded` finds a snapshot that alone keeps a cached page; none that is pinned, at a page's end or at a leaf."""
    planted = Planted()
    planted.plant([1, 2, 3, 4, 5, 6, 7, 8, 9])
    planted.plant([1, 2, 3, 4])
    assert planted.tree.find_superseded() is None
    planted.plant([2, 2, 3, 4, 5, 6])
    _, inner = planted.plant([2, 2, 3, 4, 5])
    planted.plant([2, 2, 3, 4, 5, 7])
    found = planted.tree.find_superseded()
    assert found is planted.tree.node_of_snapshot(inner)
    planted.ring.pin(planted.ring.ref(inner))
    assert planted.tree.find_superseded() is None


# -- long paths -----------------------------------------------------------------------------------------------------------------
def test_pages_of_a_long_path_are_kept() -> None:
    """A path of many nodes gives the same pages when part of them is kept, and after what can happen around a kept node: cuts
    above it, merges, lost snapshots, branches."""
    planted = Planted(num_pages=4_000)
    text = list(range(1_000, 1_400))
    pages, _ = planted.plant(text)
    snapshots = {end: planted.plant(text[:end])[1] for end in range(3, 400, 3)}
    assert planted.pages(text) == pages
    assert sum(node.whole_pages is not None for node in planted.tree.nodes()) > 10
    assert planted.pages(text) == pages
    for end in range(2, 400, 7):
        if end % 3:
            planted.plant(text[:end])
        planted.plant([*text[:end], 1, 2, 3])
    for end in range(6, 400, 9):
        planted.lose(snapshots[end])
    assert planted.pages(text) == pages
    for end in range(1, 400):
        assert planted.pages(text[:end])[: end // 4] == pages[: end // 4]
    planted.check()
