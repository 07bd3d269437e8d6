"""The two tiers by hand: what leaves the device first, what is lost when the host is full, and how it all comes back."""

import pytest

from svc.memory.moves import Move, MoveKind
from svc.memory.sequence_cache import COLD, SequenceCache
from tests.memory.device_model import Device, Run, converse, make_moves, small_plan


def text(start: int, length: int) -> tuple[int, ...]:
    """Tokens that no text with another start shares."""
    return tuple(range(start * 1000, start * 1000 + length))


def two_tiers(**sizes: int) -> tuple[SequenceCache, Device]:
    cache = SequenceCache(small_plan(**{"pages": 8, "rows": 2, "snapshots": 2, "host_pages": 16, "host_snapshots": 6, **sizes}))
    return cache, Device(cache.plan)


def kinds(moves: tuple[Move, ...]) -> list[MoveKind]:
    return [move.kind for move in moves]


def test_what_is_evicted_comes_back_whole() -> None:
    """Filled by others and asked for again: resumed at its very end, with pages and state from the host."""
    cache, device = two_tiers()
    first = text(1, 14)
    converse(cache, device, first)
    for number in (2, 3):
        converse(cache, device, text(number, 14), now=float(number))
    assert cache.match(first, 4.0).position == 14
    assert cache.stats().num_host_pages - cache.stats().free_host_pages >= 4
    run = Run(cache, device, first, 4.0)
    assert run.lease.row_comes
    assert device.rows[run.lease.row] == first
    device.expect_known(run.lease.table.array(14).tolist(), first)
    run.say(text(9, 3))
    assert run.write(17, captures=[17])
    run.close()
    cache.check()
    counters = cache.stats().counters
    assert (counters.num_host_resumes, counters.rows_moved_in) == (1, 1)
    assert counters.evicted_pages == counters.num_evicted_snapshots == 0


def test_only_as_many_pages_leave_as_are_needed_and_from_the_end() -> None:
    """A long text gives up its last pages; its beginning stays, and only what left is fetched again."""
    cache, device = two_tiers()
    converse(cache, device, text(1, 24))  # 6 of 8 pages
    converse(cache, device, text(2, 12), now=1.0)
    assert cache.stats().counters.pages_moved_out == 1
    lease = cache.open(text(1, 24), cache.match(text(1, 24), 2.0), 2.0)
    assert lease is not None
    _, moves = cache.take_moves()
    assert kinds(moves).count(MoveKind.PAGE_IN) == 1
    cache.close(lease, text(1, 24), 0, 2.0)
    cache.check()


def test_the_host_gives_up_what_is_worth_least() -> None:
    """When both tiers are full, the text that has not been used for longest is gone for good, and only that one."""
    cache, device = two_tiers(pages=8, host_pages=8, host_snapshots=4)
    texts = [text(number, 15) for number in range(1, 6)]  # 4 pages each: two on the device, two on the host
    for number, tokens in enumerate(texts):
        converse(cache, device, tokens, now=100.0 * number)
        cache.check()
    found = [cache.match(tokens, 500.0).position for tokens in texts]
    assert found == [0, 15, 15, 15, 15]
    assert cache.stats().counters.num_evicted_snapshots == 1


def test_a_snapshot_is_lost_only_where_it_is_worth_less() -> None:
    """Snapshots full in both tiers: a capture that would cost a more valuable snapshot is skipped, and nothing moves."""
    cache, device = two_tiers(pages=40, host_pages=40, snapshots=1, host_snapshots=1)
    converse(cache, device, text(1, 60))
    converse(cache, device, text(2, 60))
    stats = cache.stats()
    assert (stats.free_snapshots, stats.free_host_snapshots) == (0, 0)
    run = Run(cache, device, text(3, 4), 0.0)
    assert run.write(4, captures=[4])
    run.close()
    assert cache.stats().counters.num_skipped == 1
    assert [cache.match(text(number, 60), 0.0).position for number in (1, 2)] == [60, 60]
    assert cache.take_moves()[1] == ()


def test_reserved_and_pinned_snapshots_stay() -> None:
    """What a step writes, or somebody waits for, is not moved; without any other there is no snapshot."""
    cache, device = two_tiers(pages=40, snapshots=2)
    converse(cache, device, text(1, 8))
    assert cache.pin_at(text(1, 8), 8) is not None
    run = Run(cache, device, text(2, 9))
    assert cache.extend(run.lease, 9, 0.0)
    assert cache.reserve(run.lease, run.tokens, 5, 0.0) is not None
    assert cache.reserve(run.lease, run.tokens, 9, 0.0) is None
    assert cache.stats().counters.snapshots_moved_out == 0
    run.close()
    cache.check()


def test_a_lease_is_ready_when_its_moves_are_over() -> None:
    """Counted over all moves ever taken; what somebody else fetches is waited for too."""
    cache, device = two_tiers()
    first = text(1, 14)
    converse(cache, device, first)
    for number in (2, 3):
        converse(cache, device, text(number, 14), now=float(number))
    before, moves = cache.take_moves()
    assert moves == ()
    lease = cache.open(first, cache.match(first, 4.0), 4.0)
    assert lease is not None
    twin = cache.open(first, cache.match(first, 4.0), 4.0)
    assert twin is not None
    assert not cache.ready(lease)
    with pytest.raises(AssertionError, match="before its memory has arrived"):
        cache.start_snapshot(lease)
    again, moves = cache.take_moves()
    assert again == before
    assert kinds(moves).count(MoveKind.PAGE_IN) == 4
    assert kinds(moves).count(MoveKind.ROW_IN) == 2
    cache.moves_over(before + len(moves) - 1)
    assert cache.ready(lease)
    assert not cache.ready(twin)
    cache.moves_over(before + len(moves))
    assert cache.ready(twin)
    for each in (lease, twin):
        cache.close(each, first, 0, 5.0)
    cache.check()


def test_no_room_for_what_has_to_come() -> None:
    """Others hold the device: `open` gives no slot and changes nothing that can be matched or counted."""
    cache, device = two_tiers()
    converse(cache, device, text(1, 14))
    run = Run(cache, device, text(2, 27), 1.0)
    assert run.write(27)
    resume = cache.match(text(1, 14), 2.0)
    assert resume.position == 14
    assert cache.open(text(1, 14), resume, 2.0) is None
    assert cache.match(text(1, 14), 2.0) == resume
    assert cache.num_free_rows == 1
    cache.check()
    run.close()
    assert cache.open(text(1, 14), resume, 3.0) is not None
    cache.check()


def test_pinned_pages_on_the_host_need_room_too() -> None:
    """A joiner's pin keeps them, but where they stand: whoever resumes there has to fetch them, and admission knows."""
    cache, device = two_tiers()
    first = text(1, 14)
    converse(cache, device, first)
    for number in (2, 3):
        converse(cache, device, text(number, 14), now=float(number))
    pin = cache.pin_at(first, 14)
    assert pin is not None
    resume, possible = cache.match(first, 4.0), cache.free_pages_possible()
    assert cache.idle_pages(first, resume) == 4
    lease = cache.open(first, resume, 4.0)
    assert lease is not None
    assert cache.free_pages_possible() == possible - 4
    cache.close(lease, first, 0, 5.0)
    cache.unpin(pin)
    cache.check()


def test_a_poisoned_sequence_is_not_matched_on_the_host_either() -> None:
    """What it published has moved to the host meanwhile: the reference is still good, and the snapshot is gone."""
    cache, device = two_tiers(pages=40, snapshots=1)
    run = Run(cache, device, text(1, 20))
    assert run.write(8, captures=[8])
    assert run.write(12, captures=[12])
    assert cache.stats().counters.snapshots_moved_out == 1
    cache.distrust(run.lease)
    run.close()
    assert cache.match(text(1, 20), 1.0) == COLD
    cache.check()


def test_after_failed_moves_nothing_is_matched() -> None:
    """Only if some were under way."""
    cache, device = two_tiers()
    for number in (1, 2, 3):
        converse(cache, device, text(number, 14), now=float(number))
    cache.moves_failed()
    assert cache.match(text(1, 14), 4.0).position == 14
    lease = cache.open(text(1, 14), cache.match(text(1, 14), 4.0), 4.0)
    assert lease is not None
    cache.take_moves()
    cache.close(lease, text(1, 14), 0, 4.0)
    cache.moves_failed()
    assert cache.match(text(3, 14), 4.0) == COLD
    assert cache.stats().free_host_pages == cache.stats().num_host_pages
    make_moves(cache, device)
    cache.check()
