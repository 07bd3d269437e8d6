"""What goes when pages or snapshots are short, seen through the cache."""

from svc.memory.lease import COLD
from svc.memory.placement import WantedKind
from svc.memory.sequence_cache import SequenceCache
from tests.memory.device_model import Device, Run, converse, small_plan, text


def test_live_pages_are_never_taken(cache: SequenceCache, device: Device) -> None:
    """With every page pinned by live leases an extension fails, changes nothing, and works once one of them has left."""
    one, two = Run(cache, device, text(1, 60)), Run(cache, device, text(2, 90))
    assert one.write(60, captures=[60])
    assert two.write(64)
    before = (two.lease.table.pages.tolist(), cache.stats())
    assert not cache.extend(two.lease, 90, 0.0)
    assert (two.lease.table.pages.tolist(), cache.stats()) == before
    assert cache.num_available_pages() == 1
    one.close()
    assert cache.num_available_pages() == 16
    assert two.write(90)
    two.close()


def test_last_cached_page_is_found_above_a_live_leaf(cache: SequenceCache, device: Device) -> None:
    """What `num_available_pages` counts can be had: also a page that only an inner node references, above pages that a live
    sequence has pinned. Those leave the tree; a pinned leaf, though its score is lower, stays."""
    prompt = text(1, 6)
    converse(cache, device, prompt)
    writer, copier = Run(cache, device, prompt + text(2, 9)), Run(cache, device, prompt + text(3, 9))
    assert writer.write(7)
    assert copier.write(15, captures=[15])  # its own copy of the second page; the tree keeps the first one for the prompt alone
    writer.close()
    converse(cache, device, text(4, 1))
    pinned = cache.pin_at(text(4, 1), 1)
    assert pinned is not None
    filler = Run(cache, device, text(5, 200))
    free = cache.num_available_pages()
    assert cache.stats().cached_pages == 1
    assert not filler.write(4 * free + 1)
    assert filler.write(4 * free)
    assert cache.match(text(4, 1)).snapshot == pinned
    assert cache.match(copier.tokens).matched_tokens == 0
    device.expect_known(copier.lease.table.pages.tolist(), copier.tokens)
    cache.unpin(pinned)
    filler.close()
    copier.close()


def test_page_pressure_frees_the_stranded_snapshot_first(cache: SequenceCache, device: Device) -> None:
    """When a path loses its pages, its snapshot is the next one taken: no snapshot that still has its pages goes."""
    for number in range(1, 5):
        converse(cache, device, text(number, 24), captures=[8, 16], now=float(number))
    assert cache.stats().free_snapshots == 0
    run = Run(cache, device, text(9, 40), now=100.0)
    assert cache.extend(run.lease, 40, 100.0)  # 24 of 32 pages are cached, so at least one leaf goes
    freed = cache.stats().free_snapshots
    assert freed > 0
    evicted = cache.stats().counters.num_evicted_snapshots
    assert cache.reserve(run.lease, 40, 100.0) is not None
    assert cache.stats().free_snapshots == freed - 1
    assert cache.stats().counters.num_evicted_snapshots == evicted
    run.close()


def test_snapshot_with_the_lowest_score_goes(device: Device) -> None:
    """With equal ages the snapshot that saves least goes: the one 2 tokens behind its neighbour, not the one 14 tokens behind."""
    cache = SequenceCache(small_plan(pages=32, rows=2, snapshots=3))
    converse(cache, device, text(1, 30), captures=[14, 16])
    converse(cache, device, text(2, 20))
    assert [cache.match(text(1, length)).position for length in (14, 16, 30)] == [14, 14, 30]
    assert cache.match(text(2, 20)).position == 20
    cache.check()


def test_old_snapshot_goes(device: Device) -> None:
    """With equal savings the one not used for longest goes, and being resumed from counts as use."""
    cache = SequenceCache(small_plan(pages=32, rows=2, snapshots=3))
    for number in (1, 2, 3):
        converse(cache, device, text(number, 12), now=float(number))
    converse(cache, device, text(1, 12), now=500.0)
    converse(cache, device, text(4, 12), now=600.0)
    assert [cache.match(text(number, 12)).position for number in (1, 2, 3, 4)] == [12, 0, 12, 12]
    cache.check()


def test_a_capture_that_others_wait_for_gets_a_snapshot(device: Device) -> None:
    """With the ring full of higher scores a JOIN takes the lowest of them; only pinned, reserved and restored ones stay."""
    cache = SequenceCache(small_plan(pages=40, rows=4, snapshots=3))
    device = Device(cache.plan)
    for number in (1, 2, 3):
        converse(cache, device, text(number, 20 + 10 * number))
    pinned = cache.pin_at(text(3, 50), 50)
    restoring = Run(cache, device, text(2, 40))
    leader = Run(cache, device, text(4, 3))
    assert cache.extend(leader.lease, 3, 0.0)
    assert cache.reserve(leader.lease, 3, 0.0) is None
    assert cache.reserve(leader.lease, 2, 0.0, WantedKind.JOIN) is not None
    assert cache.reserve(leader.lease, 3, 0.0, WantedKind.JOIN) is None
    assert [cache.match(text(number, 20 + 10 * number)).position for number in (1, 2, 3)] == [0, 40, 50]
    restoring.start()
    assert cache.reserve(leader.lease, 3, 0.0, WantedKind.JOIN) is not None
    assert cache.match(text(3, 50)).snapshot == pinned
    restoring.close()
    leader.close()
    cache.check()


def test_capture_with_the_lowest_score_is_skipped(device: Device) -> None:
    """A capture that would save less than every snapshot kept gets no snapshot; nothing is evicted for it."""
    cache = SequenceCache(small_plan(pages=32, rows=2, snapshots=2))
    converse(cache, device, text(1, 60), captures=[30])
    run = Run(cache, device, text(2, 3))
    assert cache.extend(run.lease, 3, 0.0)
    assert cache.reserve(run.lease, 3, 0.0) is None
    assert cache.stats().counters.num_skipped == 1
    assert cache.match(text(1, 60)).position == 60
    run.close()
    cache.check()


def test_neighbouring_captures_of_one_prompt_count_once(device: Device) -> None:
    """A capture is scored against the lease's own captures before it too: one token more counts less than 8 of another text."""
    cache = SequenceCache(small_plan(pages=32, rows=2, snapshots=2))
    converse(cache, device, text(1, 8))
    converse(cache, device, text(2, 8))
    run = Run(cache, device, text(3, 40))
    assert run.write(40, captures=[39, 40])
    run.close()
    assert cache.match(text(3, 40)).position == 39
    assert sorted(cache.match(text(number, 8)).position for number in (1, 2)) == [0, 8]
    cache.check()


def test_pages_of_live_sequences_go_last(cache: SequenceCache, device: Device) -> None:
    """An idle text goes, even with a higher score, before one whose pages a live sequence has pinned anyway."""
    live = Run(cache, device, text(1, 12), now=0.0)
    assert live.write(12, captures=[12], now=0.0)
    converse(cache, device, text(2, 40), now=1000.0)
    newcomer = Run(cache, device, text(3, 80), now=1001.0)
    assert newcomer.write(80, now=1001.0)
    assert cache.match(text(1, 12)).position == 12
    assert cache.match(text(2, 40)).position == 0
    live.close()
    newcomer.close()


def test_budget_is_never_exceeded() -> None:
    """Every page, row and snapshot number handed out lies within the plan, under constant pressure on all three."""
    plan = small_plan(pages=12, rows=2, snapshots=3)
    cache, device = SequenceCache(plan), Device(plan)
    for number in range(60):
        run = Run(cache, device, text(number % 7, 30), now=float(number))
        wanted = [position for position in (10, 20, 30) if position > run.written]
        assert not wanted or run.write(30, captures=wanted, now=float(number))
        stats = cache.stats()
        assert set(run.lease.table.pages.tolist()) <= set(range(12))
        assert 0 <= run.lease.row < 2
        assert stats.published_snapshots + stats.reserved_snapshots + stats.stranded_snapshots + stats.free_snapshots == 3
        run.close(now=float(number))
        cache.check()


def test_pages_go_with_the_last_snapshot_that_needs_them(device: Device) -> None:
    """Hybrid: when the last snapshot that needs some pages goes, they are free."""
    cache = SequenceCache(small_plan(pages=32, rows=2, snapshots=2))
    converse(cache, device, text(1, 12), captures=[8], now=0.0)
    assert cache.stats().cached_pages == 3
    converse(cache, device, text(2, 20), now=1000.0)  # takes the snapshot at 12, which has the lower score
    assert cache.match(text(1, 12)).position == 8
    assert cache.stats().cached_pages == 2 + 5
    cache.check()


# -- cost, counted ------------------------------------------------------------------------------------------------------------
def test_decoding_looks_at_nothing_while_pages_are_free() -> None:
    """One page more for a decoding sequence costs no look at any leaf or snapshot, however much is cached."""
    cache = SequenceCache(small_plan(pages=20_000, rows=2, snapshots=2_000, page_tokens=16))
    _fill(cache, num_texts=1_000, length=40)
    lease = cache.open((1,), COLD, 0.0)
    assert lease is not None
    before = cache.stats().counters.num_candidates
    for end in range(1, 2_000):
        assert cache.extend(lease, end, 0.0)
    assert cache.stats().counters.num_candidates == before
    cache.close(lease, 0, 0.0)


def test_eviction_looks_at_few() -> None:
    """With thousands of snapshots and leaves, one capture or one page more looks at no more than 64 of them."""
    cache = SequenceCache(small_plan(pages=6_000, rows=2, snapshots=2_000, page_tokens=16))
    _fill(cache, num_texts=2_000, length=48)
    assert (cache.stats().free_pages, cache.stats().free_snapshots) == (0, 0)
    tokens = range(10**6, 10**6 + 4_000)
    lease = cache.open(tokens, COLD, 1_000.0)
    assert lease is not None
    for end in range(16, 4_000, 16):
        before = cache.stats().counters.num_candidates
        assert cache.extend(lease, end, 1_000.0)
        assert cache.stats().counters.num_candidates - before <= 64
    before = cache.stats().counters.num_candidates
    assert cache.reserve(lease, 3_000, 1_000.0) is not None
    assert cache.stats().counters.num_candidates - before <= 64
    cache.close(lease, 3_000, 1_000.0)
    cache.check()


def _fill(cache: SequenceCache, *, num_texts: int, length: int) -> None:
    for number in range(num_texts):
        tokens = range(number * 1000, number * 1000 + length)
        lease = cache.open(tokens, COLD, 0.0)
        assert lease is not None
        assert cache.extend(lease, length, 0.0)
        capture = cache.reserve(lease, length, 0.0)
        assert capture is not None
        cache.finish(cache.begin([lease], [capture]), 0.0)
        cache.close(lease, length, 0.0)
