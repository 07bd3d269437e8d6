"""Life of a snapshot."""

from collections.abc import Callable

import pytest

from svc.memory.snapshot_ring import TRANSITIONS, SnapshotRef, SnapshotRing, SnapshotState, StaleSnapshotError


def reach(ring: SnapshotRing, state: SnapshotState) -> SnapshotRef:
    """A reference to snapshot 0 in that state (pinned once if stranded); for FREE, the one that has just ended."""
    ref = ring.reserve(5)
    assert ref is not None
    if state is SnapshotState.STRANDED:
        ring.pin(ref)
        ring.give_up(ref)
    if state in (SnapshotState.WRITTEN, SnapshotState.PUBLISHED):
        ring.mark_written(ref)
    if state is SnapshotState.PUBLISHED:
        ring.mark_published(ref)
    if state is SnapshotState.FREE:
        ring.give_up(ref)
    return ref


def give_up_pinned(ring: SnapshotRing, ref: SnapshotRef) -> None:
    if not ring.is_pinned(ref.snapshot_id):
        ring.pin(ref)
    ring.give_up(ref)


MOVES: dict[SnapshotState, Callable[[SnapshotRing, SnapshotRef], None]] = {
    SnapshotState.WRITTEN: SnapshotRing.mark_written,
    SnapshotState.PUBLISHED: SnapshotRing.mark_published,
    SnapshotState.STRANDED: give_up_pinned,
}


@pytest.mark.parametrize("before", SnapshotState)
@pytest.mark.parametrize("after", MOVES)
def test_transitions(before: SnapshotState, after: SnapshotState) -> None:
    """reserved -> written -> published in that order, given up from any of them; everything else is an error and no move."""
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
def test_an_ended_filling_stays_ended(state: SnapshotState) -> None:
    """Once a filling has ended, its reference is stale: also when the same snapshot is in use again."""
    ring = SnapshotRing(1)
    ref = reach(ring, state)
    if state is SnapshotState.STRANDED:
        ring.unpin(ref)
    else:
        ring.give_up(ref)
    for in_use_again in (False, True):
        if in_use_again:
            reach(ring, SnapshotState.PUBLISHED)
        assert not ring.is_published(ref)
        for use in (ring.state, ring.position, ring.pin, ring.unpin, ring.give_up, ring.mark_written, ring.mark_published):
            with pytest.raises(StaleSnapshotError):
                use(ref)


def test_pins_are_counted() -> None:
    """Only the last unpin lets go; one too many is caught."""
    ring = SnapshotRing(2)
    ref = reach(ring, SnapshotState.PUBLISHED)
    assert [ring.pin(ref), ring.pin(ref)] == [True, False]
    assert ring.find_cheap(lambda snapshot_id: 0.0)[0] is None
    assert [ring.unpin(ref), ring.unpin(ref)] == [False, True]
    assert ring.find_cheap(lambda snapshot_id: 0.0)[0] == ref
    with pytest.raises(AssertionError, match="unpinned more often"):
        ring.unpin(ref)


def test_hand_moves_on() -> None:
    """A ring larger than the window is looked at part by part, the cheapest of each part found, everything within few calls."""
    ring = SnapshotRing(200)
    for _ in range(200):
        reach(ring, SnapshotState.PUBLISHED)
    worths = [float((snapshot_id * 37) % 200) for snapshot_id in range(200)]
    seen: set[int] = set()
    for _ in range(4):
        looked_at: list[int] = []

        def worth_of(snapshot_id: int, looked_at: list[int] = looked_at) -> float:
            looked_at.append(snapshot_id)
            return worths[snapshot_id]

        ref, worth, looked = ring.find_cheap(worth_of)
        assert ref is not None
        assert looked == len(looked_at) == 64
        assert worth == worths[ref.snapshot_id] == min(worths[snapshot_id] for snapshot_id in looked_at)
        seen.update(looked_at)
    assert len(seen) == 200


def test_hand_goes_on_until_it_finds_one() -> None:
    """A single candidate among many pinned snapshots is found, wherever the hand stands."""
    ring = SnapshotRing(200)
    refs = [reach(ring, SnapshotState.PUBLISHED) for _ in range(200)]
    for ref in refs:
        if ref.snapshot_id != 150:
            ring.pin(ref)
    for _ in range(3):
        found = ring.find_cheap(lambda snapshot_id: 1.0)[0]
        assert found is not None
        assert found.snapshot_id == 150
