"""The integrity check: every page, snapshot and row is accounted for, and the tree keeps its rules. For tests and idle moments."""

from collections.abc import Mapping

import numpy as np

from svc.memory.lease import Lease, StateRows
from svc.memory.page_pool import PagePool, Pages
from svc.memory.prefix_tree import Node, PrefixTree
from svc.memory.snapshot_ring import SnapshotRing, SnapshotState
from svc.memory.transfers import Transfers


def check_cache(
    tree: PrefixTree,
    pool: PagePool,
    ring: SnapshotRing,
    rows: StateRows,
    leases: Mapping[int, Lease],
    pinned_pages: Mapping[int, Pages],
    transfers: Transfers,
) -> None:
    """AssertionError says what does not add up. `leases` by serial; `pinned_pages`: pages pinned with a snapshot, by snapshot
    id."""
    references, snapshots = check_tree(tree, pool)
    page_pins = [page for pages in pinned_pages.values() for page in pages.tolist()] + transfers.page_pins()
    snapshot_pins: dict[int, int] = {}
    num_reserved = transfers.num_reserved
    for lease in leases.values():
        page_pins += lease.table.pages.tolist() + ([lease.new_copy[0]] if lease.new_copy else [])
        if lease.snapshot is not None:
            snapshot_pins[lease.snapshot.snapshot_id] = snapshot_pins.get(lease.snapshot.snapshot_id, 0) + 1
        for position, reservation in lease.reserved.items():
            ref = reservation.ref
            assert ring.position(ref) == position, f"{lease!r} has {ref} under position {position}"
            assert ring.state(ref) is SnapshotState.RESERVED, f"{ref} of {lease!r} is {ring.state(ref).value}"
            num_reserved += 1
        _check_pages(lease, pool, leases)
    written = ring.count(SnapshotState.RESERVED) + ring.count(SnapshotState.WRITTEN)
    assert written == num_reserved, f"{written} snapshots are reserved or written, {num_reserved} have an owner"
    pool.check(page_pins, references)
    ring.check(snapshots, snapshot_pins)
    rows.check([lease.row for lease in leases.values()])
    for snapshot_id in pinned_pages:
        assert ring.is_pinned(snapshot_id), f"pages are pinned for snapshot {snapshot_id}, which nobody pins"


def _check_pages(lease: Lease, pool: PagePool, leases: Mapping[int, Lease]) -> None:
    for page in lease.table.pages.tolist():
        assert not pool.on_host(page), f"page {page} of {lease!r} is on the host"
        writer = pool.writer(page)
        assert writer == lease.serial or writer in leases or writer < 0, f"page {page} has the writer {writer}, which is closed"


def check_tree(tree: PrefixTree, pool: PagePool) -> tuple[list[int], set[int]]:
    """The shape of the tree; returns all referenced pages (once per reference) and its snapshots."""
    references: list[int] = []
    snapshots: dict[int, Node] = {}
    leaves = []
    num_nodes = 0
    for node in tree.nodes():
        num_nodes += 1
        _check_node(node, tree, pool)
        references += node.pages.tolist()
        if node.snapshot_id is not None:
            other = snapshots.setdefault(node.snapshot_id, node)
            assert other is node, f"snapshot {node.snapshot_id} hangs at {other!r} and {node!r}"
        if not node.children:
            leaves.append(node)
    assert snapshots == tree.nodes_of_snapshots, "snapshots found in the tree differ from the index of snapshots"
    assert {id(leaf) for leaf in leaves} == {id(leaf) for leaf in tree.leaves}, "leaves found differ from the list of leaves"
    assert len(leaves) == len(tree.leaves), "a leaf is listed twice"
    assert num_nodes == tree.num_nodes, f"{tree.num_nodes} nodes counted, {num_nodes} found"
    return references, set(snapshots)


def _check_node(node: Node, tree: PrefixTree, pool: PagePool) -> None:
    size, parent = pool.page_tokens, node.parent
    assert len(node.tokens) > 0, f"{node!r} has an empty edge"
    assert parent is not None, f"{node!r} has no parent"
    assert parent.end == node.start, f"{node!r} does not start where its parent ends"
    assert parent.children.get(int(node.tokens[0])) is node, f"{node!r} is not found under its first token"
    left_to_children = bool(node.end % size and node.children and node.snapshot_id is None)
    num_pages = tree.num_tiles(node) - left_to_children
    assert len(node.pages) == num_pages, f"{node!r} has {len(node.pages)} pages where it should have {num_pages}"
    assert 0 <= node.resident <= num_pages, f"{node!r} has {node.resident} of {num_pages} pages on the device"
    if node.whole_pages is not None:
        assert np.array_equal(node.whole_pages, _whole_pages(node, size)), f"the pages kept at {node!r} are not those of its path"
    for tile, page in enumerate(node.pages.tolist(), start=node.start // size):
        rows = min(node.end - tile * size, size)
        assert pool.sealed_rows(page) >= rows, f"{node!r} uses {rows} rows of page {page}, which are not sealed"
    if node.children:
        assert node.leaf_index == -1, f"{node!r} has children and is listed as a leaf"
        assert node.snapshot_id is not None or len(node.children) > 1, f"{node!r} should be one with its only child"
    else:
        listed = tree.leaves[node.leaf_index : node.leaf_index + 1]
        assert listed == [node], f"{node!r} is wrong in the list of leaves"
        assert node.snapshot_id is not None or not tree.hybrid, f"{node!r} leads to no snapshot"


def _whole_pages(node: Node, page_tokens: int) -> Pages:
    """The page of each whole tile of its path: of the deepest node that touches the tile."""
    parts = [np.zeros(0, np.int32)]
    end = node.end // page_tokens
    while node.parent is not None:
        first = node.start // page_tokens
        parts.append(node.pages[: end - first])
        end, node = first, node.parent
    return np.concatenate(parts[::-1])
