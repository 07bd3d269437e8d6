"""Life of a snapshot."""

from collections.abc import Callable

import pytest

from svc.memory.placement import WantedKind
from svc.memory.snapshot_ring import TRANSITIONS, SnapshotRef, SnapshotRing, SnapshotState, StaleSnapshotError


def reach(ring: SnapshotRing, state: SnapshotState) -> SnapshotRef:
    """A reference to snapshot 0 in that state (pinned once if stranded); for FREE, the one that has just ended."""
    ref = ring.reserve(5, WantedKind.BRANCH)
    assert ref is not None
    if state is SnapshotState.STRANDED:
        ring.pin(ref)
        ring.release(ref)
    if state in (SnapshotState.WRITTEN, SnapshotState.PUBLISHED):
        ring.mark_written(ref)
    if state is SnapshotState.PUBLISHED:
        ring.mark_published(ref)
    if state is SnapshotState.FREE:
        ring.release(ref)
    return ref


def release_pinned(ring: SnapshotRing, ref: SnapshotRef) -> None:
    if not ring.is_pinned(ref.snapshot_id):
        ring.pin(ref)
    ring.release(ref)


MOVES: dict[SnapshotState, Callable[[SnapshotRing, SnapshotRef], None]] = {
    SnapshotState.WRITTEN: SnapshotRing.mark_written,
    SnapshotState.PUBLISHED: SnapshotRing.mark_published,
    SnapshotState.STRANDED: release_pinned,
}


@pytest.mark.parametrize("before", SnapshotState)
@pytest.mark.parametrize("after", MOVES)
def test_transitions(before: SnapshotState, after: SnapshotState) -> None:
    """reserved -> written -> published in that order, released from any of them; everything else is an error and no move."""
    allowed = {
        (SnapshotState.RESERVED, SnapshotState.WRITTEN),
        (SnapshotState.WRITTEN, SnapshotState.PUBLISHED),
        (SnapshotState.RESERVED, SnapshotState.STRANDED),
        (SnapshotState.WRITTEN, SnapshotState.STRANDED),
        (SnapshotState.PUBLISHED, SnapshotState.STRANDED),
    }
    ring = SnapshotRing(1)
    ref = reach(ring, before)
    if (before, after) in allowed:
        MOVES[after](ring, ref)
        assert ring.state(ref) is after
    else:
        with pytest.raises(StaleSnapshotError):
            MOVES[after](ring, ref)
        assert ring.count(before) == 1


def test_table_covers_every_state() -> None:
    """No state without an exit, and only the free one leads to a reservation."""
    assert set(TRANSITIONS) == set(SnapshotState)
    assert all(TRANSITIONS.values())
    assert [state for state in SnapshotState if SnapshotState.RESERVED in TRANSITIONS[state]] == [SnapshotState.FREE]


@pytest.mark.parametrize("state", [state for state in SnapshotState if state is not SnapshotState.FREE])
def test_an_ended_use_stays_ended(state: SnapshotState) -> None:
    """Once a use of a snapshot has ended, its reference is stale: also when the same snapshot is in use again."""
    ring = SnapshotRing(1)
    ref = reach(ring, state)
    if state is SnapshotState.STRANDED:
        ring.unpin(ref)
    else:
        ring.release(ref)
    for in_use_again in (False, True):
        if in_use_again:
            reach(ring, SnapshotState.PUBLISHED)
        assert not ring.is_published(ref)
        for use in (ring.state, ring.position, ring.pin, ring.unpin, ring.release, ring.mark_written, ring.mark_published):
            with pytest.raises(StaleSnapshotError):
                use(ref)


def test_pins_are_counted() -> None:
    """Only the last unpin lets go; one too many is caught."""
    ring = SnapshotRing(2)
    ref = reach(ring, SnapshotState.PUBLISHED)
    assert [ring.pin(ref), ring.pin(ref)] == [True, False]
    assert ring.evictable_on_device(0) is None
    assert [ring.unpin(ref), ring.unpin(ref)] == [False, True]
    assert ring.evictable_on_device(0) == ref
    with pytest.raises(AssertionError, match="unpinned more often"):
        ring.unpin(ref)


@pytest.mark.parametrize("state", SnapshotState)
def test_only_published_snapshots_may_go(state: SnapshotState) -> None:
    """Eviction never sees one that a step writes, nor one that is kept for its pins alone."""
    ring = SnapshotRing(2)
    ref = reach(ring, state)
    found = [ring.evictable_on_device(place) for place in range(2)]
    assert found.count(ref) == (state is SnapshotState.PUBLISHED)
    assert found.count(None) == (1 if state is SnapshotState.PUBLISHED else 2)


def test_kind_is_that_of_the_use() -> None:
    """A snapshot keeps the kind it was captured as until it ends; the next use of the same id has its own."""
    ring = SnapshotRing(1)
    for kind in (WantedKind.SYSTEM_END, WantedKind.CANCELLED):
        ref = ring.reserve(5, kind)
        assert ref is not None
        ring.mark_written(ref)
        ring.mark_published(ref)
        assert ring.kind(ref.snapshot_id) is kind
        ring.release(ref)
    with pytest.raises(AssertionError, match="is free"):
        ring.kind(0)
