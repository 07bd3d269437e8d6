"""The facade by hand: what a scheduler sees, on a device that remembers which tokens stand behind every row and snapshot."""

from collections.abc import Iterator

import pytest

from svc.memory.sequence_cache import COLD, ResumePoint, SequenceCache, StaleSnapshotError
from tests.memory.device_model import Device, Run, converse, small_plan


@pytest.fixture
def cache() -> Iterator[SequenceCache]:
    """Hybrid, 32 pages of 4 rows, 4 slots, 12 snapshots; checked after the test."""
    made = SequenceCache(small_plan(pages=32, rows=4, snapshots=12))
    yield made
    made.check()


@pytest.fixture
def device(cache: SequenceCache) -> Device:
    return Device(cache.plan)


@pytest.fixture
def attention() -> Iterator[SequenceCache]:
    """The same for an attention-only model."""
    made = SequenceCache(small_plan(pages=32, rows=4, snapshots=12, hybrid=False))
    yield made
    made.check()


def text(start: int, length: int) -> tuple[int, ...]:
    """Tokens that no text with another start shares."""
    return tuple(range(start * 1000, start * 1000 + length))


# -- resuming -----------------------------------------------------------------------------------------------------------------
def test_nothing_is_known_at_first(cache: SequenceCache) -> None:
    """An empty cache matches nothing and starts a row from zero."""
    assert cache.match(text(1, 9), 0.0) == COLD
    lease = cache.open(text(1, 9), COLD, 0.0)
    assert lease is not None
    assert cache.start_snapshot(lease) is None
    assert (lease.start, lease.table.pages) == (0, [])
    cache.close(lease, text(1, 9), 0, 0.0)


def test_identical_prompt_needs_no_token(cache: SequenceCache, device: Device) -> None:
    """Scenarios 1 and 3: the same prompt again and again resumes at its end, from a snapshot with exactly its state."""
    prompt = text(1, 10)
    assert converse(cache, device, prompt).position == 0
    for _ in range(3):
        run = Run(cache, device, prompt)
        assert run.resume.position == run.resume.matched_tokens == 10
        device.run()
        assert device.rows[run.lease.row] == prompt
        run.say(text(2, 5))
        assert run.write(15)
        run.close()


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8])
def test_lengths_around_a_page(cache: SequenceCache, device: Device, length: int) -> None:
    """Scenario 18: prompts of one token, a page, and a page more or less resume at their end and go on correctly."""
    prompt = text(1, length)
    converse(cache, device, prompt)
    run = Run(cache, device, prompt)
    assert run.resume.position == length
    run.say(text(2, 6))
    assert run.write(length + 6)
    run.close()


def test_edited_last_message(cache: SequenceCache, device: Device) -> None:
    """Scenario 2: a conversation with another last message resumes where that message starts, in mid-page."""
    history, old, new = text(1, 14), text(2, 5), text(3, 7)
    converse(cache, device, history + old, captures=[6, 14])
    resume = converse(cache, device, history + new)
    assert resume.position == resume.matched_tokens == 14


def test_branch_leaves_the_other_conversation_whole(cache: SequenceCache, device: Device) -> None:
    """Scenario 4: A, then B from A's third message, then A: A still resumes at its very end."""
    history, rest, other = text(1, 11), text(2, 10), text(3, 9)
    converse(cache, device, history + rest, captures=[5, 11])
    assert converse(cache, device, history + other).position == 11
    assert cache.match(history + rest, 0.0).position == 21
    assert cache.match(history + other, 0.0).position == 20
    assert converse(cache, device, history + rest).position == 21


def test_cut_in_mid_prefill(cache: SequenceCache, device: Device) -> None:
    """Scenario 6: a prompt cut off half-way, its state saved, goes on from there."""
    prompt = text(1, 30)
    run = Run(cache, device, prompt)
    assert run.write(13, captures=[13])
    run.close()
    resume = cache.match(prompt, 1.0)
    assert (resume.position, resume.matched_tokens) == (13, 13)
    assert converse(cache, device, prompt).position == 13


def test_cut_in_mid_answer(cache: SequenceCache, device: Device) -> None:
    """Scenario 7: after a cut the same prompt resumes at its end, and prompt + partial answer at the cut."""
    prompt, answer = text(1, 9), text(2, 6)
    run = Run(cache, device, prompt)
    assert run.write(9, captures=[9])
    run.say(answer)
    assert run.write(15, captures=[15])
    run.close()
    assert cache.match(prompt, 1.0).position == 9
    assert cache.match(prompt + answer, 1.0).position == 15
    assert cache.match(prompt + answer + text(3, 3), 1.0).position == 15


def test_history_without_thinking(cache: SequenceCache, device: Device) -> None:
    """Scenario 13: the client drops the thinking from the history; the prompt is reused up to the start of that answer."""
    prompt, think, answer = text(1, 10), text(2, 7), text(3, 4)
    run = Run(cache, device, prompt)
    assert run.write(10, captures=[7, 10])  # before the role header, and the end of the prompt
    run.say(think + answer)
    assert run.write(21, captures=[21])
    run.close()
    resume = cache.match(prompt[:7] + answer + text(4, 5), 1.0)
    assert (resume.position, resume.matched_tokens) == (7, 7)


def test_filled_by_others_then_again(cache: SequenceCache, device: Device) -> None:
    """Scenario 15: other conversations have filled both budgets: A is evaluated anew and right, and so is a short fresh prompt."""
    first = text(1, 21)
    converse(cache, device, first, captures=[7, 14])
    for number in range(2, 20):
        converse(cache, device, text(number, 21), captures=[7, 14], now=float(number))
        cache.check()
    assert cache.match(first, 50.0) == COLD
    assert converse(cache, device, first, now=50.0).position == 0
    assert converse(cache, device, text(77, 3), now=51.0).position == 0
    assert cache.match(first, 52.0).position == 21


# -- copy on write ------------------------------------------------------------------------------------------------------------
def test_second_writer_copies_first(cache: SequenceCache, device: Device) -> None:
    """Two sequences go on behind one partial page: the first writes on in place, the second copies, and both read right rows."""
    prompt = text(1, 6)
    converse(cache, device, prompt)
    one, two = Run(cache, device, prompt), Run(cache, device, prompt)
    one.say(text(2, 5))
    two.say(text(3, 5))
    assert one.write(8)
    assert two.write(8)
    assert one.write(11)
    assert two.write(11)
    assert one.lease.table.pages[0] == two.lease.table.pages[0]
    assert set(one.lease.table.pages[1:]).isdisjoint(two.lease.table.pages[1:])
    counters = cache.stats().counters
    assert (counters.num_take_overs, counters.num_page_copies) == (1, 1)
    one.close()
    two.close()


def test_no_copy_where_nobody_writes(cache: SequenceCache, device: Device) -> None:
    """A lone continuation takes the partial page over; the next one, while that page has a writer or a longer claim, copies."""
    prompt = text(1, 6)
    converse(cache, device, prompt)
    run = Run(cache, device, prompt + text(2, 1))
    assert run.write(7, captures=[7])  # its claim now reaches one row further
    run.close()
    assert cache.stats().counters.num_page_copies == 0
    other = Run(cache, device, prompt + text(3, 1))
    assert other.resume.position == 6
    assert other.write(7)
    assert cache.stats().counters.num_page_copies == 1
    other.close()


def test_copies_are_given_out_once_and_their_source_stays(cache: SequenceCache, device: Device) -> None:
    """The source of a copy is held until `started`, even when everything else about it is forgotten."""
    prompt = text(1, 6)
    converse(cache, device, prompt)
    writer, copier = Run(cache, device, prompt), Run(cache, device, prompt)
    cache.started(copier.lease)  # its first step only sampled from the restored hidden row
    assert cache.extend(writer.lease, 7, 0.0)
    assert cache.extend(copier.lease, 7, 0.0)
    ((source, target),) = cache.take_copies(copier.lease)
    assert cache.take_copies(copier.lease) == []
    assert (source, target) == (writer.lease.table.pages[1], copier.lease.table.pages[1])
    cache.close(writer.lease, prompt, 6, 0.0)
    cache.clear()
    held = cache.stats().held_pages
    cache.started(copier.lease)
    assert cache.stats().held_pages == held - 1
    copier.close()
    assert cache.stats().free_pages == 32


def test_nothing_is_copied_for_a_full_page(cache: SequenceCache, device: Device) -> None:
    """A resume at a page boundary shares only full pages."""
    prompt = text(1, 8)
    converse(cache, device, prompt)
    one, two = Run(cache, device, prompt), Run(cache, device, prompt)
    for run, start in ((one, 2), (two, 3)):
        run.say(text(start, 3))
        assert run.write(11)
    assert one.lease.table.pages[:2] == two.lease.table.pages[:2]
    assert cache.stats().counters.num_page_copies == 0
    one.close()
    two.close()


# -- publishing ---------------------------------------------------------------------------------------------------------------
def test_only_published_is_matched(cache: SequenceCache, device: Device) -> None:
    """A reserved snapshot is not matched, an abandoned one neither; the path is unknown until the publication."""
    prompt = text(1, 8)
    run = Run(cache, device, prompt)
    assert cache.extend(run.lease, 8, 0.0)
    ref = cache.reserve(run.lease, prompt, 8, 0.0)
    assert ref is not None
    assert cache.reserve(run.lease, prompt, 8, 0.0) is None
    assert cache.match(prompt, 0.0) == COLD
    cache.abandon(ref)
    assert cache.match(prompt, 0.0) == COLD
    assert run.write(8, captures=[8])
    assert cache.match(prompt, 0.0).position == 8
    assert cache.reserve(run.lease, prompt, 8, 0.0) is None
    run.close()


def test_same_prefix_published_twice(cache: SequenceCache, device: Device) -> None:
    """Two cold runs of one prompt leave one snapshot and one set of pages; the second snapshot goes back."""
    prompt = text(1, 10)
    one = Run(cache, device, prompt)
    two = Run(cache, device, prompt)
    refs = []
    for run in (one, two):
        assert cache.extend(run.lease, 10, 0.0)
        refs.append(cache.reserve(run.lease, prompt, 10, 0.0))
    for run, ref in zip((one, two), refs, strict=True):
        assert ref is not None
        cache.publish(ref, prompt, run.lease, 0.0)
        cache.close(run.lease, prompt, 10, 0.0)
    stats = cache.stats()
    assert (stats.published_snapshots, stats.free_snapshots, stats.cached_pages) == (1, 11, 3)
    assert stats.counters.num_duplicates == 1
    resume = cache.match(prompt, 0.0)
    assert resume.snapshot == refs[0]


def test_duplicate_that_joiners_wait_for_stays(cache: SequenceCache) -> None:
    """When joiners have pinned the second snapshot of a place and nobody the first, the first gives way."""
    prompt = text(1, 10)
    leases = [cache.open(prompt, COLD, 0.0) for _ in range(2)]
    refs = []
    for lease in leases:
        assert lease is not None
        assert cache.extend(lease, 10, 0.0)
        refs.append(cache.reserve(lease, prompt, 10, 0.0))
    first, second = refs
    assert first is not None
    assert second is not None
    cache.pin(second)
    for lease, ref in zip(leases, (first, second), strict=True):
        assert lease is not None
        cache.publish(ref, prompt, lease, 0.0)
        cache.close(lease, prompt, 10, 0.0)
    assert cache.match(prompt, 0.0).snapshot == second
    assert cache.stats().published_snapshots == 1
    cache.unpin(second)


def test_close_gives_back_what_was_reserved(cache: SequenceCache) -> None:
    """Slot, pages and unpublished snapshots come back; publishing afterwards is an error, not a wrong state."""
    prompt = text(1, 10)
    lease = cache.open(prompt, COLD, 0.0)
    assert lease is not None
    assert cache.extend(lease, 10, 0.0)
    refs = [cache.reserve(lease, prompt, position, 0.0) for position in (4, 10)]
    cache.close(lease, prompt, 10, 0.0)
    stats = cache.stats()
    assert (stats.free_pages, stats.free_rows, stats.free_snapshots) == (32, 4, 12)
    for ref in refs:
        assert ref is not None
        with pytest.raises(StaleSnapshotError):
            cache.publish(ref, prompt, lease, 0.0)


def test_stale_references_are_errors(cache: SequenceCache, device: Device) -> None:
    """A reference outlives its snapshot's filling by no use at all: pin, unpin, abandon, publish and open refuse it."""
    prompt = text(1, 8)
    run = Run(cache, device, prompt)
    assert cache.extend(run.lease, 8, 0.0)
    old = cache.reserve(run.lease, prompt, 8, 0.0)
    assert old is not None
    cache.abandon(old)
    new = cache.reserve(run.lease, prompt, 8, 0.0)
    assert new is not None
    assert (new.snapshot_id, new.generation > old.generation) == (old.snapshot_id, True)
    for use in (cache.pin, cache.unpin, cache.abandon, cache.position):
        with pytest.raises(StaleSnapshotError):
            use(old)
    with pytest.raises(StaleSnapshotError):
        cache.publish(old, prompt, run.lease, 0.0)
    assert cache.position(new) == 8
    run.close()


def test_publishing_for_another_lease_is_an_error(cache: SequenceCache) -> None:
    """A snapshot belongs to the lease that reserved it until it is published, and is published once."""
    prompt = text(1, 8)
    mine, other = cache.open(prompt, COLD, 0.0), cache.open(prompt, COLD, 0.0)
    assert mine is not None
    assert other is not None
    for lease in (mine, other):
        assert cache.extend(lease, 8, 0.0)
    ref = cache.reserve(mine, prompt, 8, 0.0)
    assert ref is not None
    with pytest.raises(StaleSnapshotError):
        cache.publish(ref, prompt, other, 0.0)
    cache.publish(ref, prompt, mine, 0.0)
    for again in (lambda: cache.publish(ref, prompt, mine, 0.0), lambda: cache.abandon(ref)):
        with pytest.raises(StaleSnapshotError):
            again()
    cache.close(mine, prompt, 8, 0.0)
    cache.close(other, prompt, 8, 0.0)


def test_stale_resume_point_is_an_error(cache: SequenceCache, device: Device) -> None:
    """`open` refuses a resume point whose snapshot went away after `match`, and takes no slot for it."""
    prompt = text(1, 8)
    converse(cache, device, prompt)
    resume = cache.match(prompt, 0.0)
    cache.clear()
    with pytest.raises(StaleSnapshotError):
        cache.open(prompt, resume, 0.0)
    converse(cache, device, prompt)
    with pytest.raises(StaleSnapshotError):
        cache.open(prompt, resume, 0.0)
    assert cache.stats().free_rows == 4


def test_no_slot(cache: SequenceCache, device: Device) -> None:
    """Without a free slot `open` changes nothing, pins and page counts included."""
    prompt = text(1, 8)
    converse(cache, device, prompt)
    leases = [cache.open(text(2, 3), COLD, 0.0) for _ in range(4)]
    before = cache.stats()
    assert cache.open(prompt, cache.match(prompt, 0.0), 0.0) is None
    assert cache.stats() == before
    for lease in leases:
        assert lease is not None
        cache.close(lease, text(2, 3), 0, 0.0)


# -- pins ---------------------------------------------------------------------------------------------------------------------
def test_joiners_pin_keeps_a_snapshot(cache: SequenceCache, device: Device) -> None:
    """A capture pinned before it exists survives, once published, every demand for snapshots and pages."""
    prompt = text(1, 10)
    leader = Run(cache, device, prompt)
    assert cache.extend(leader.lease, 10, 0.0)
    ref = cache.reserve(leader.lease, prompt, 10, 0.0)
    assert ref is not None
    cache.pin(ref)
    device.forward(leader.lease.row, leader.lease.table.array(10).tolist(), prompt, 0, {10: ref.snapshot_id})
    device.run()
    cache.publish(ref, prompt, leader.lease, 0.0)
    cache.close(leader.lease, prompt, 10, 0.0)
    for number in range(2, 20):
        converse(cache, device, text(number, 21), captures=[5, 10, 15], now=100.0 * number)
    assert cache.free_pages_possible() == 32 - 3
    assert cache.match(prompt, 2000.0).snapshot == ref
    joiner = Run(cache, device, prompt + text(50, 4), now=2000.0)
    cache.unpin(ref)
    assert joiner.resume.position == 10
    assert joiner.write(14, now=2000.0)
    joiner.close()


@pytest.mark.parametrize("how", ["abandon", "close"])
def test_leader_fails_under_a_pin(cache: SequenceCache, how: str) -> None:
    """A pinned reservation that is given up is never matched, waits for its pins, and is then free; new pins are refused."""
    prompt = text(1, 10)
    lease = cache.open(prompt, COLD, 0.0)
    assert lease is not None
    assert cache.extend(lease, 10, 0.0)
    ref = cache.reserve(lease, prompt, 10, 0.0)
    assert ref is not None
    cache.pin(ref)
    cache.pin(ref)
    if how == "abandon":
        cache.abandon(ref)
    cache.close(lease, prompt, 10, 0.0)
    assert cache.match(prompt, 0.0) == COLD
    assert (cache.stats().stranded_snapshots, cache.stats().free_snapshots) == (1, 11)
    with pytest.raises(StaleSnapshotError):
        cache.pin(ref)
    cache.unpin(ref)
    cache.check()
    cache.unpin(ref)
    assert (cache.stats().stranded_snapshots, cache.stats().free_snapshots) == (0, 12)


def test_pin_at(cache: SequenceCache, device: Device) -> None:
    """Pins the snapshot of exactly those tokens, and nothing where there is none."""
    prompt = text(1, 10)
    converse(cache, device, prompt, captures=[6])
    assert cache.pin_at(prompt, 7) is None
    assert cache.pin_at(text(2, 10), 6) is None
    ref = cache.pin_at(prompt, 6)
    assert ref is not None
    assert (cache.position(ref), cache.stats().pinned_snapshots) == (6, 1)
    cache.unpin(ref)
    assert cache.stats().pinned_snapshots == 0


def test_restored_snapshot_is_kept_until_started(cache: SequenceCache, device: Device) -> None:
    """Between `open` and `started` the snapshot to be restored cannot be taken for anything else; afterwards it can."""
    prompt = text(1, 6)
    converse(cache, device, prompt)
    run = Run(cache, device, prompt)
    cache.clear()
    stats = cache.stats()
    assert (stats.stranded_snapshots, stats.free_snapshots) == (1, 11)
    device.run()
    assert device.rows[run.lease.row] == prompt
    cache.started(run.lease)
    assert cache.stats().free_snapshots == 12
    run.close()


# -- eviction -----------------------------------------------------------------------------------------------------------------
def test_live_pages_are_never_taken(cache: SequenceCache, device: Device) -> None:
    """With every page held by live leases an extension fails, changes nothing, and works once one of them has left."""
    one, two = Run(cache, device, text(1, 60)), Run(cache, device, text(2, 90))
    assert one.write(60, captures=[60])
    assert two.write(64)
    before = (two.lease.table.pages, cache.stats())
    assert not cache.extend(two.lease, 90, 0.0)
    assert (two.lease.table.pages, cache.stats()) == before
    assert cache.free_pages_possible() == 1
    one.close()
    assert cache.free_pages_possible() == 16
    assert two.write(90)
    two.close()


def test_last_cached_page_is_found_above_a_live_leaf(cache: SequenceCache, device: Device) -> None:
    """What `free_pages_possible` counts can be had: also a page that only an inner node claims, above claims that a live sequence
    still holds. Those go; a pinned leaf, though worth less, stays."""
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
    free = cache.free_pages_possible()
    assert cache.stats().cached_pages == 1
    assert not filler.write(4 * free + 1)
    assert filler.write(4 * free)
    assert cache.match(text(4, 1), 0.0).snapshot == pinned
    assert cache.match(copier.tokens, 0.0).matched_tokens == 0
    device.expect_known(copier.lease.table.pages, copier.tokens)
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
    assert cache.reserve(run.lease, run.tokens, 40, 100.0) is not None
    assert cache.stats().free_snapshots == freed - 1
    assert cache.stats().counters.num_evicted_snapshots == evicted
    run.close()


def test_cheapest_snapshot_gives_way(device: Device) -> None:
    """With equal ages the snapshot that saves least goes: the one 2 tokens behind its neighbour, not the one 14 tokens behind."""
    cache = SequenceCache(small_plan(pages=32, rows=2, snapshots=3))
    converse(cache, device, text(1, 30), captures=[14, 16])
    converse(cache, device, text(2, 20))
    assert [cache.match(text(1, length), 0.0).position for length in (14, 16, 30)] == [14, 14, 30]
    assert cache.match(text(2, 20), 0.0).position == 20
    cache.check()


def test_old_snapshot_gives_way(device: Device) -> None:
    """With equal savings the one not used for longest goes, and being resumed from counts as use."""
    cache = SequenceCache(small_plan(pages=32, rows=2, snapshots=3))
    for number in (1, 2, 3):
        converse(cache, device, text(number, 12), now=float(number))
    converse(cache, device, text(1, 12), now=500.0)
    converse(cache, device, text(4, 12), now=600.0)
    assert [cache.match(text(number, 12), 600.0).position for number in (1, 2, 3, 4)] == [12, 0, 12, 12]
    cache.check()


def test_worthless_capture_is_skipped(device: Device) -> None:
    """A capture that would save less than every snapshot kept gets no snapshot; nothing is evicted for it."""
    cache = SequenceCache(small_plan(pages=32, rows=2, snapshots=2))
    converse(cache, device, text(1, 60), captures=[30])
    run = Run(cache, device, text(2, 3))
    assert cache.extend(run.lease, 3, 0.0)
    assert cache.reserve(run.lease, run.tokens, 3, 0.0) is None
    assert cache.stats().counters.num_skipped == 1
    assert cache.match(text(1, 60), 0.0).position == 60
    run.close()
    cache.check()


def test_neighbouring_captures_of_one_prompt_count_once(device: Device) -> None:
    """A capture is weighed against the lease's own captures before it too: one token more is not worth 8 of another text."""
    cache = SequenceCache(small_plan(pages=32, rows=2, snapshots=2))
    converse(cache, device, text(1, 8))
    converse(cache, device, text(2, 8))
    run = Run(cache, device, text(3, 40))
    assert run.write(40, captures=[39, 40])
    run.close()
    assert cache.match(text(3, 40), 0.0).position == 39
    assert sorted(cache.match(text(number, 8), 0.0).position for number in (1, 2)) == [0, 8]
    cache.check()


def test_claims_of_live_sequences_go_last(cache: SequenceCache, device: Device) -> None:
    """For pages an idle text goes, even if worth more, before one whose pages a live sequence holds anyway."""
    live = Run(cache, device, text(1, 12), now=0.0)
    assert live.write(12, captures=[12], now=0.0)
    converse(cache, device, text(2, 40), now=1000.0)
    newcomer = Run(cache, device, text(3, 80), now=1001.0)
    assert newcomer.write(80, now=1001.0)
    assert cache.match(text(1, 12), 1001.0).position == 12
    assert cache.match(text(2, 40), 1001.0).position == 0
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
        assert set(run.lease.table.pages) <= set(range(12))
        assert 0 <= run.lease.row < 2
        assert stats.published_snapshots + stats.reserved_snapshots + stats.stranded_snapshots + stats.free_snapshots == 3
        run.close(now=float(number))
        cache.check()


def test_dropped_snapshot_gives_up_its_pages(device: Device) -> None:
    """Hybrid: when the last snapshot that needs a stretch of pages goes, so do the claims on them."""
    cache = SequenceCache(small_plan(pages=32, rows=2, snapshots=2))
    converse(cache, device, text(1, 12), captures=[8], now=0.0)
    assert cache.stats().cached_pages == 3
    converse(cache, device, text(2, 20), now=1000.0)  # takes the snapshot at 12, the cheaper of the two
    assert cache.match(text(1, 12), 1000.0).position == 8
    assert cache.stats().cached_pages == 2 + 5
    cache.check()


# -- attention only -----------------------------------------------------------------------------------------------------------
def test_attention_only_resumes_anywhere(attention: SequenceCache) -> None:
    """Closing keeps all written tokens; another text resumes at the common prefix, without a snapshot."""
    device = Device(attention.plan)
    run = Run(attention, device, text(1, 20))
    assert run.write(18)
    run.close()
    resume = attention.match(text(1, 7) + text(2, 5), 0.0)
    assert resume == ResumePoint(position=7, snapshot=None, matched_tokens=7)
    assert converse(attention, device, text(1, 7) + text(2, 5)).position == 7
    assert attention.match(text(1, 30), 0.0).position == 18


def test_attention_only_last_token_needs_a_hidden_row(attention: SequenceCache) -> None:
    """A whole match evaluates its last token again unless a snapshot stands exactly there."""
    device = Device(attention.plan)
    run = Run(attention, device, text(1, 9))
    assert run.write(9)
    run.close()
    assert attention.match(text(1, 9), 0.0) == ResumePoint(position=8, snapshot=None, matched_tokens=9)
    assert converse(attention, device, text(1, 9)).position == 8
    resume = attention.match(text(1, 9), 0.0)
    assert (resume.position, resume.matched_tokens) == (9, 9)
    assert resume.snapshot is not None
    assert attention.match(text(1, 10), 0.0).position == 9


def test_attention_only_trims_the_tail(attention: SequenceCache) -> None:
    """Under pressure a cached text loses its last pages, not all of them; its hidden row goes with the end."""
    device = Device(attention.plan)
    converse(attention, device, text(1, 100), now=0.0)  # 25 of 32 pages
    run = Run(attention, device, text(2, 40), now=1.0)
    assert run.write(40, now=1.0)  # 10 pages: 3 must come from the tail
    assert attention.match(text(1, 100), 1.0) == ResumePoint(position=88, snapshot=None, matched_tokens=88)
    assert attention.stats().published_snapshots == 0
    run.close()


def test_untrusted_values_are_not_kept(attention: SequenceCache) -> None:
    """valid=0 keeps nothing of a sequence whose values were not finite."""
    device = Device(attention.plan)
    run = Run(attention, device, text(1, 9))
    assert run.write(9)
    attention.close(run.lease, run.tokens, 0, 0.0)
    assert attention.match(text(1, 9), 0.0) == COLD
    assert attention.stats().free_pages == 32


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
    cache.close(lease, range(2_000), 0, 0.0)


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
    assert cache.reserve(lease, tokens, 3_000, 1_000.0) is not None
    assert cache.stats().counters.num_candidates - before <= 64
    cache.close(lease, tokens, 3_000, 1_000.0)
    cache.check()


def _fill(cache: SequenceCache, *, num_texts: int, length: int) -> None:
    for number in range(num_texts):
        tokens = range(number * 1000, number * 1000 + length)
        lease = cache.open(tokens, COLD, 0.0)
        assert lease is not None
        assert cache.extend(lease, length, 0.0)
        ref = cache.reserve(lease, tokens, length, 0.0)
        assert ref is not None
        cache.publish(ref, tokens, lease, 0.0)
        cache.close(lease, tokens, length, 0.0)
