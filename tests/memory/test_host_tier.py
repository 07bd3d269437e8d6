"""The two tiers by hand: what leaves the device first, what is lost when the host is full, and how it all comes back."""

import pytest

from svc.memory.placement import WantedKind
from svc.memory.sequence_cache import COLD, SequenceCache
from svc.memory.tiers import Move, MoveKind
from svc.memory.tokens import FixedTokens
from tests.memory.device_model import Device, Run, converse, run_step, small_plan, text


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
    assert cache.match(first).position == 14
    assert cache.stats().num_host_pages - cache.stats().free_host_pages >= 4
    run = Run(cache, device, first, 4.0)
    assert run.lease.row_comes
    run.start()
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
    """Of a long text the last pages go; its beginning stays, and only what left is fetched again."""
    cache, device = two_tiers()
    converse(cache, device, text(1, 24))  # 6 of 8 pages
    converse(cache, device, text(2, 12), now=1.0)
    assert cache.stats().counters.pages_moved_out == 1
    lease = cache.open(text(1, 24), cache.match(text(1, 24)), 2.0)
    assert lease is not None
    assert kinds(cache.begin([]).moves).count(MoveKind.PAGE_IN) == 1
    cache.close(lease, 0, 2.0)
    cache.check()


def test_the_host_loses_the_lowest_score() -> None:
    """When both tiers are full, the text that has not been used for longest is gone for good, and only that one."""
    cache, device = two_tiers(pages=8, host_pages=8, host_snapshots=4)
    texts = [text(number, 15) for number in range(1, 6)]  # 4 pages each: two on the device, two on the host
    for number, tokens in enumerate(texts):
        converse(cache, device, tokens, now=100.0 * number)
        cache.check()
    found = [cache.match(tokens).position for tokens in texts]
    assert found == [0, 15, 15, 15, 15]
    assert cache.stats().counters.num_evicted_snapshots == 1


def test_a_snapshot_is_lost_only_for_a_higher_score() -> None:
    """Snapshots full in both tiers: a capture that would cost one with a higher score is skipped, and nothing moves."""
    cache, device = two_tiers(pages=40, host_pages=40, snapshots=1, host_snapshots=1)
    converse(cache, device, text(1, 60))
    converse(cache, device, text(2, 60))
    stats = cache.stats()
    assert (stats.free_snapshots, stats.free_host_snapshots) == (0, 0)
    run = Run(cache, device, text(3, 4), 0.0)
    assert run.write(4, captures=[4])
    run.close()
    assert cache.stats().counters.num_skipped == 1
    assert [cache.match(text(number, 60)).position for number in (1, 2)] == [60, 60]
    assert cache.begin([]).moves == ()


def test_reserved_and_pinned_snapshots_stay() -> None:
    """What a step writes, or somebody waits for, is not moved; where there is no other, a JOIN gets no snapshot either."""
    cache, device = two_tiers(pages=40, snapshots=2)
    converse(cache, device, text(1, 8))
    assert cache.pin_at(text(1, 8), 8) is not None
    run = Run(cache, device, text(2, 9))
    assert cache.extend(run.lease, 9, 0.0)
    assert cache.reserve(run.lease, 5, 0.0) is not None
    assert cache.reserve(run.lease, 9, 0.0) is None
    assert cache.reserve(run.lease, 9, 0.0, WantedKind.JOIN) is None
    assert cache.stats().counters.snapshots_moved_out == 0
    run.close()
    cache.check()


def test_a_lease_is_ready_when_its_moves_are_over() -> None:
    """Counted over all moves of all steps; what somebody else fetches is waited for too."""
    cache, device = two_tiers()
    first = text(1, 14)
    converse(cache, device, first)
    for number in (2, 3):
        converse(cache, device, text(number, 14), now=float(number))
    lease, twin = (cache.open(first, cache.match(first), 4.0) for _ in range(2))
    assert lease is not None
    assert twin is not None
    assert not lease.ready
    with pytest.raises(AssertionError, match="before its memory has arrived"):
        cache.begin([lease])
    step = cache.begin([])
    assert step.moves_before == device.num_moves
    assert kinds(step.moves).count(MoveKind.PAGE_IN) == 4
    assert kinds(step.moves).count(MoveKind.ROW_IN) == 2
    cache.finish(step, 4.0, step.moves_before + len(step.moves) - 1)
    assert lease.ready
    assert not twin.ready
    cache.finish(cache.begin([lease]), 4.0, step.moves_before + len(step.moves))
    assert twin.ready
    for each in (lease, twin):
        cache.close(each, 0, 5.0)
    cache.check()


def test_pages_that_another_lease_fetches_are_waited_for() -> None:
    """Attention-only: a lease that finds its pages on their way to the device is ready when they have arrived, and no sooner."""
    cache, device = two_tiers(hybrid=False)
    first = text(1, 14)
    for number in (1, 2, 3):
        converse(cache, device, text(number, 14), now=float(number))
    run_step(cache, device)
    fetching, waiting = (cache.open(first[:9], cache.match(first[:9]), 4.0) for _ in range(2))
    assert fetching is not None
    assert waiting is not None
    step = cache.begin([])
    assert step.moves[-1].kind is MoveKind.PAGE_IN
    assert kinds(step.moves).count(MoveKind.PAGE_IN) == len(waiting.table)
    assert not fetching.ready
    assert not waiting.ready
    cache.finish(step, 4.0, step.moves_before + len(step.moves) - 1)
    assert not waiting.ready
    cache.finish(cache.begin([]), 4.0, step.moves_before + len(step.moves))
    assert fetching.ready
    assert waiting.ready
    for lease in (fetching, waiting):
        cache.close(lease, 0, 5.0)
    cache.check()


def test_no_pages_for_what_has_to_come() -> None:
    """Others have pinned the device's pages: `open` gives no lease and changes nothing that can be matched or counted."""
    cache, device = two_tiers()
    converse(cache, device, text(1, 14))
    run = Run(cache, device, text(2, 27), 1.0)
    assert run.write(27)
    resume = cache.match(text(1, 14))
    assert resume.position == 14
    assert cache.open(text(1, 14), resume, 2.0) is None
    assert cache.match(text(1, 14)) == resume
    assert cache.stats().free_rows == 1
    cache.check()
    run.close()
    assert cache.open(text(1, 14), resume, 3.0) is not None
    cache.check()


def test_pinned_pages_on_the_host_need_pages_of_the_device() -> None:
    """A joiner's pin keeps them where they are: a sequence that resumes there has to fetch them, and admission knows."""
    cache, device = two_tiers()
    first = text(1, 14)
    converse(cache, device, first)
    for number in (2, 3):
        converse(cache, device, text(number, 14), now=float(number))
    pin = cache.pin_at(first, 14)
    assert pin is not None
    resume, available = cache.match(first), cache.num_available_pages()
    assert cache.num_pages_to_pin(FixedTokens.of(first), resume) == 4
    lease = cache.open(first, resume, 4.0)
    assert lease is not None
    assert cache.num_available_pages() == available - 4
    cache.close(lease, 0, 5.0)
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
    assert cache.match(text(1, 20)) == COLD
    cache.check()


def test_after_failed_moves_nothing_is_matched() -> None:
    """Only if some were under way."""
    cache, device = two_tiers()
    for number in (1, 2, 3):
        converse(cache, device, text(number, 14), now=float(number))
    cache.abort(cache.begin([]), 4.0)
    cache.recover()
    assert cache.match(text(1, 14)).position == 14
    lease = cache.open(text(1, 14), cache.match(text(1, 14)), 4.0)
    assert lease is not None
    step = cache.begin([])
    assert step.moves
    cache.abort(step, 4.0)
    cache.close(lease, 0, 4.0)
    cache.recover()
    assert cache.match(text(3, 14)) == COLD
    assert cache.stats().free_host_pages == cache.stats().num_host_pages
    device.drop(step.moves_before + len(step.moves))
    assert run_step(cache, device).moves == ()
    converse(cache, device, text(1, 14), now=5.0)
    cache.check()
