"""Life of a cell."""

from collections.abc import Callable

import pytest

from svc.memory.snapshot_ring import TRANSITIONS, CellState, SnapshotRef, SnapshotRing, StaleSnapshotError


def reach(ring: SnapshotRing, state: CellState) -> SnapshotRef:
    """A reference to cell 0 in that state (pinned once if stranded); for FREE, the one that has just ended."""
    ref = ring.reserve(5)
    assert ref is not None
    if state is CellState.STRANDED:
        ring.pin(ref)
        ring.give_up(ref)
    if state in (CellState.WRITTEN, CellState.PUBLISHED):
        ring.mark_written(ref)
    if state is CellState.PUBLISHED:
        ring.mark_published(ref)
    if state is CellState.FREE:
        ring.give_up(ref)
    return ref


def give_up_pinned(ring: SnapshotRing, ref: SnapshotRef) -> None:
    if not ring.is_pinned(ref.cell):
        ring.pin(ref)
    ring.give_up(ref)


MOVES: dict[CellState, Callable[[SnapshotRing, SnapshotRef], None]] = {
    CellState.WRITTEN: SnapshotRing.mark_written,
    CellState.PUBLISHED: SnapshotRing.mark_published,
    CellState.STRANDED: give_up_pinned,
}


@pytest.mark.parametrize("before", CellState)
@pytest.mark.parametrize("after", MOVES)
def test_transitions(before: CellState, after: CellState) -> None:
    """reserved -> written -> published in that order, given up from any of them; everything else is an error and no move."""
    allowed = {
        (CellState.RESERVED, CellState.WRITTEN),
        (CellState.WRITTEN, CellState.PUBLISHED),
        (CellState.RESERVED, CellState.STRANDED),
        (CellState.WRITTEN, CellState.STRANDED),
        (CellState.PUBLISHED, CellState.STRANDED),
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
    assert set(TRANSITIONS) == set(CellState)
    assert all(TRANSITIONS.values())
    assert [state for state in CellState if CellState.RESERVED in TRANSITIONS[state]] == [CellState.FREE]


@pytest.mark.parametrize("state", [state for state in CellState if state is not CellState.FREE])
def test_an_ended_filling_stays_ended(state: CellState) -> None:
    """Once a filling has ended, its reference is stale: also when the same cell is in use again."""
    ring = SnapshotRing(1)
    ref = reach(ring, state)
    if state is CellState.STRANDED:
        ring.unpin(ref)
    else:
        ring.give_up(ref)
    for in_use_again in (False, True):
        if in_use_again:
            reach(ring, CellState.PUBLISHED)
        assert not ring.is_published(ref)
        for use in (ring.state, ring.position, ring.pin, ring.unpin, ring.give_up, ring.mark_written, ring.mark_published):
            with pytest.raises(StaleSnapshotError):
                use(ref)


def test_pins_are_counted() -> None:
    """Only the last unpin lets go; one too many is caught."""
    ring = SnapshotRing(2)
    ref = reach(ring, CellState.PUBLISHED)
    assert [ring.pin(ref), ring.pin(ref)] == [True, False]
    assert ring.find_cheap(lambda cell: 0.0)[0] is None
    assert [ring.unpin(ref), ring.unpin(ref)] == [False, True]
    assert ring.find_cheap(lambda cell: 0.0)[0] == ref
    with pytest.raises(AssertionError, match="unpinned more often"):
        ring.unpin(ref)


def test_hand_moves_on() -> None:
    """A ring larger than the window is looked at part by part, the cheapest of each part found, everything within few calls."""
    ring = SnapshotRing(200)
    for _ in range(200):
        reach(ring, CellState.PUBLISHED)
    worths = [float((cell * 37) % 200) for cell in range(200)]
    seen: set[int] = set()
    for _ in range(4):
        looked_at: list[int] = []

        def worth_of(cell: int, looked_at: list[int] = looked_at) -> float:
            looked_at.append(cell)
            return worths[cell]

        ref, worth, looked = ring.find_cheap(worth_of)
        assert ref is not None
        assert looked == len(looked_at) == 64
        assert worth == worths[ref.cell] == min(worths[cell] for cell in looked_at)
        seen.update(looked_at)
    assert len(seen) == 200


def test_hand_goes_on_until_it_finds_one() -> None:
    """A single candidate among many pinned cells is found, wherever the hand stands."""
    ring = SnapshotRing(200)
    refs = [reach(ring, CellState.PUBLISHED) for _ in range(200)]
    for ref in refs:
        if ref.cell != 150:
            ring.pin(ref)
    for _ in range(3):
        found = ring.find_cheap(lambda cell: 1.0)[0]
        assert found is not None
        assert found.cell == 150
