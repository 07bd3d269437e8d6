"""`check()` finds every kind of lost or double-counted page, snapshot, row and node: a check that cannot fail proves nothing."""

from collections.abc import Callable

import numpy as np
import pytest

from svc.memory.placement import WantedKind
from svc.memory.sequence_cache import COLD, SequenceCache
from svc.memory.transfers import Incoming
from tests.memory.device_model import Device, Run, converse, small_plan

Damage = Callable[[SequenceCache, Run], object]


def some_leaf(cache: SequenceCache):  # type: ignore[no-untyped-def]
    return cache._tree.leaves[0]


def keep_superseded_page(cache: SequenceCache, run: Run) -> None:
    """The branch at 13 tokens loses its snapshot, but its own page of that tile stays referenced."""
    branch = next(node for node in cache._tree.nodes() if node.end == 13)
    page = branch.pages[-1:].copy()
    cache._pool.add_references(page)
    cache._evictor.release_snapshot(cache._tree.detach(branch))
    branch.pages = np.concatenate([branch.pages, page])


DAMAGES: dict[str, Damage] = {
    "pin lost": lambda cache, run: cache._pool.unpin(run.lease.table.pages[:1]),
    "pin too many": lambda cache, run: cache._pool.pin(run.lease.table.pages[:1]),
    "reference lost": lambda cache, run: cache._pool.drop_references(some_leaf(cache).pages[:1]),
    "reference too many": lambda cache, run: cache._pool.add_references(some_leaf(cache).pages[:1]),
    "page lost": lambda cache, run: cache._pool.allocate(1, run.lease.serial),
    "page free twice": lambda cache, run: cache._pool._free.append(cache._pool._free[0]),
    "cached count": lambda cache, run: setattr(cache._pool, "num_cached", cache._pool.num_cached + 1),
    "reference not sealed": lambda cache, run: cache._pool._sealed_rows.__setitem__(some_leaf(cache).pages[-1], 0),
    "free page sealed": lambda cache, run: cache._pool.seal(cache._pool._free[0], 1),
    "writer left": lambda cache, run: cache._pool._writer.__setitem__(run.lease.table.pages[0], 999),
    "row lost": lambda cache, run: cache._rows.take(),
    "row free twice": lambda cache, run: cache._rows._free.append(cache._rows._free[0]),
    "pages of a pin lost": lambda cache, run: cache._pins.pages.clear(),
    "pages pinned for nobody": lambda cache, run: cache._pins.pages.__setitem__(11, np.zeros(0, np.int32)),
    "copy forgotten": lambda cache, run: setattr(run.lease, "new_copy", (0, 1)),
    "superseded page kept": keep_superseded_page,
    "lease forgotten": lambda cache, run: cache._leases.clear(),
    "snapshot reserved by nobody": lambda cache, run: cache._ring.reserve(3, WantedKind.SPARSE),
    "snapshot free twice": lambda cache, run: cache._ring._free.append(cache._ring._free[0]),
    "published snapshot not in the tree": lambda cache, run: cache._ring.release(cache._ring.ref(some_leaf(cache).snapshot_id)),
    "free snapshot pinned": lambda cache, run: cache._ring._pins.__setitem__(cache._ring._free[0], 1),
    "reservation forgotten": lambda cache, run: run.lease.reserved.clear(),
    "leaf unlisted": lambda cache, run: cache._tree.leaves.pop(),
    "leaf without snapshot": lambda cache, run: setattr(some_leaf(cache), "snapshot_id", None),
    "edge cut": lambda cache, run: setattr(some_leaf(cache), "tokens", some_leaf(cache).tokens[:1]),
    "page dropped from an edge": lambda cache, run: setattr(some_leaf(cache), "pages", some_leaf(cache).pages[:-1]),
    "place free twice": lambda cache, run: cache._pool._tiers._free_device.append(cache._pool._tiers._free_device[0]),
    "place lost": lambda cache, run: cache._ring._tiers._free_device.pop(),
    "place of the host lost": lambda cache, run: cache._pool._tiers._free_host.pop(),
    "snapshot of the host lost": lambda cache, run: cache._ring._tiers._free_host.pop(),
    "page is elsewhere": lambda cache, run: cache._pool._tiers.places.__setitem__(run.lease.table.pages[0], -1),
    "snapshot is nowhere": lambda cache, run: cache._ring._tiers.remove(some_leaf(cache).snapshot_id),
    "more on the device than there is": lambda cache, run: setattr(some_leaf(cache), "resident", 99),
    "node out of place": lambda cache, run: setattr(some_leaf(cache), "start", some_leaf(cache).start + 4),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_is_found(damage: Damage) -> None:
    """One number changed behind the cache's back fails the check."""
    cache = SequenceCache(small_plan(pages=32, rows=4, snapshots=12, host_pages=8, host_snapshots=4))
    device = Device(cache.plan)
    converse(cache, device, range(100, 120), captures=[7])
    converse(cache, device, [*range(100, 113), *range(50, 60)], captures=[13])
    converse(cache, device, [*range(100, 113), *range(70, 80)])
    run = Run(cache, device, range(200, 230))
    assert run.write(10, captures=[6])
    assert cache.reserve(run.lease, 10, 0.0) is not None
    pinned = cache.pin_at(range(100, 120), 20)
    assert pinned is not None
    cache.check()
    damage(cache, run)
    with pytest.raises(AssertionError):
        cache.check()


def test_misuse_is_caught_at_once() -> None:
    """A closed lease cannot be used, positions without pages or tokens are neither valid nor captured, and no step reads what has
    not arrived."""
    cache = SequenceCache(small_plan())
    lease = cache.open((1, 2, 3), COLD, 0.0)
    assert lease is not None
    assert cache.extend(lease, 3, 0.0)
    with pytest.raises(AssertionError, match="valid positions"):
        cache.close(lease, 4, 0.0)
    with pytest.raises(AssertionError, match="no state after 4"):
        cache.reserve(lease, 4, 0.0)
    lease.ready_after = 1
    with pytest.raises(AssertionError, match="before its memory has arrived"):
        cache.begin([lease])
    lease.ready_after = 0
    step = cache.begin([lease])
    cache.close(lease, 3, 0.0)
    for use in (
        lambda: cache.close(lease, 3, 0.0),
        lambda: cache.extend(lease, 5, 0.0),
        lambda: cache.reserve(lease, 3, 0.0),
        lambda: cache.begin([lease]),
    ):
        with pytest.raises(AssertionError, match="closed"):
            use()
    cache.finish(step, 0.0)  # a step under way when it was closed
    cache.check()


def test_it_covers_what_comes_in() -> None:
    """Pages and snapshots of an import are accounted for while it is open, and missed if it is lost."""
    cache = SequenceCache(small_plan())
    coming = cache.transfers.begin(np.arange(10, dtype=np.int32), [Incoming(10, WantedKind.PROMPT_END)], 0.0)
    assert coming is not None
    cache.check()
    cache.transfers.imports.clear()
    with pytest.raises(AssertionError):
        cache.check()
    cache.transfers.imports.append(coming)
    cache.transfers.finish(coming, 0.0)
    cache.check()


def test_it_covers_spaces() -> None:
    """Texts under other roots are looked at too."""
    cache = SequenceCache(small_plan())
    lease = cache.open((1, 2, 3), COLD, 0.0, space="a")
    assert lease is not None
    assert cache.extend(lease, 3, 0.0)
    reservation = cache.reserve(lease, 3, 0.0)
    assert reservation is not None
    cache.finish(cache.begin([lease], [reservation]), 0.0)
    cache.close(lease, 3, 0.0)
    cache.check()
    cache._tree.leaves[0].pages = cache._tree.leaves[0].pages[:0]
    with pytest.raises(AssertionError):
        cache.check()
