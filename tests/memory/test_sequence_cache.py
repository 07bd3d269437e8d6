"""The cache by hand: what a scheduler sees, on a device that remembers which tokens are behind every row and snapshot."""

from dataclasses import replace

import pytest

from svc.memory.lease import COLD, Lease, Reservation
from svc.memory.sequence_cache import SequenceCache, StaleSnapshotError
from tests.memory.device_model import Chunk, Device, Run, converse, run_step, text


def leader_of(cache: SequenceCache, tokens: tuple[int, ...], position: int) -> tuple[Lease, Reservation]:
    """A cold lease with pages for all of `tokens` and a reservation at `position`."""
    lease = cache.open(tokens, COLD, 0.0)
    assert lease is not None
    assert cache.extend(lease, len(tokens), 0.0)
    reservation = cache.reserve(lease, position, 0.0)
    assert reservation is not None
    return lease, reservation


# -- resuming -----------------------------------------------------------------------------------------------------------------
def test_nothing_is_known_at_first(cache: SequenceCache) -> None:
    """An empty cache matches nothing and starts a row from zero."""
    assert cache.match(text(1, 9)) == COLD
    lease = cache.open(text(1, 9), COLD, 0.0)
    assert lease is not None
    assert (lease.start, len(lease.table)) == (0, 0)
    step = cache.begin([lease])
    assert (step.zero_rows, step.restores) == ((lease.row,), ())
    assert cache.begin([lease]).zero_rows == ()
    cache.close(lease, 0, 0.0)


def test_identical_prompt_needs_no_token(cache: SequenceCache, device: Device) -> None:
    """Scenarios 1 and 3: the same prompt again and again resumes at its end, from a snapshot with exactly its state."""
    prompt = text(1, 10)
    assert converse(cache, device, prompt).position == 0
    for _ in range(3):
        run = Run(cache, device, prompt)
        assert run.resume.position == run.resume.matched_tokens == 10
        run.start()
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
    assert cache.match(history + rest).position == 21
    assert cache.match(history + other).position == 20
    assert converse(cache, device, history + rest).position == 21


def test_cut_in_mid_prefill(cache: SequenceCache, device: Device) -> None:
    """Scenario 6: a prompt cut off half-way, its state saved, goes on from there."""
    prompt = text(1, 30)
    run = Run(cache, device, prompt)
    assert run.write(13, captures=[13])
    run.close()
    resume = cache.match(prompt)
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
    assert cache.match(prompt).position == 9
    assert cache.match(prompt + answer).position == 15
    assert cache.match(prompt + answer + text(3, 3)).position == 15


def test_history_without_thinking(cache: SequenceCache, device: Device) -> None:
    """Scenario 13: the client drops the thinking from the history; the prompt is reused up to the start of that answer."""
    prompt, think, answer = text(1, 10), text(2, 7), text(3, 4)
    run = Run(cache, device, prompt)
    assert run.write(10, captures=[7, 10])  # before the role header, and the end of the prompt
    run.say(think + answer)
    assert run.write(21, captures=[21])
    run.close()
    resume = cache.match(prompt[:7] + answer + text(4, 5))
    assert (resume.position, resume.matched_tokens) == (7, 7)


def test_filled_by_others_then_again(cache: SequenceCache, device: Device) -> None:
    """Scenario 15: other conversations have filled both budgets: A is evaluated anew and right, and so is a short fresh prompt."""
    first = text(1, 21)
    converse(cache, device, first, captures=[7, 14])
    for number in range(2, 20):
        converse(cache, device, text(number, 21), captures=[7, 14], now=float(number))
        cache.check()
    assert cache.match(first) == COLD
    assert converse(cache, device, first, now=50.0).position == 0
    assert converse(cache, device, text(77, 3), now=51.0).position == 0
    assert cache.match(first).position == 21


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
    assert one.lease.table.page_at(0) == two.lease.table.page_at(0)
    assert set(one.lease.table.pages[1:].tolist()).isdisjoint(two.lease.table.pages[1:].tolist())
    counters = cache.stats().counters
    assert (counters.num_stolen_pages, counters.num_page_copies) == (1, 1)
    one.close()
    two.close()


def test_no_copy_where_nobody_writes(cache: SequenceCache, device: Device) -> None:
    """A lone continuation steals the partial page; the next one, while that page has a writer or a longer text in it, copies."""
    prompt = text(1, 6)
    converse(cache, device, prompt)
    run = Run(cache, device, prompt + text(2, 1))
    assert run.write(7, captures=[7])  # the tree now uses one row more
    run.close()
    assert cache.stats().counters.num_page_copies == 0
    other = Run(cache, device, prompt + text(3, 1))
    assert other.resume.position == 6
    assert other.write(7)
    assert cache.stats().counters.num_page_copies == 1
    other.close()


def test_a_copy_is_made_once_and_its_source_stays_until_then(cache: SequenceCache, device: Device) -> None:
    """The source of a copy is pinned until the step that makes it begins, even when everything else about it is forgotten.

    An earlier step that finishes meanwhile changes nothing.
    """
    prompt = text(1, 6)
    converse(cache, device, prompt)
    writer, copier = Run(cache, device, prompt), Run(cache, device, prompt)
    sampling = cache.begin([copier.lease])  # only samples from the restored hidden row
    device.enqueue(sampling)
    copier.say(text(2, 5))
    assert cache.extend(writer.lease, 7, 0.0)
    assert cache.extend(copier.lease, 7, 0.0)
    source, target = writer.lease.table.page_at(1), copier.lease.table.page_at(1)
    cache.close(writer.lease, 6, 0.0)
    cache.clear()
    device.run_one()
    cache.finish(sampling, 0.0)
    pinned = cache.stats().pinned_pages
    step = cache.begin([copier.lease])
    assert step.copies == ((source, target),)
    assert cache.stats().pinned_pages == pinned - 1
    assert cache.begin([copier.lease]).copies == ()
    device.enqueue(step, [Chunk(copier.lease, copier.tokens[:7], 6)])
    device.run_one()
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
    assert one.lease.table.pages[:2].tolist() == two.lease.table.pages[:2].tolist()
    assert cache.stats().counters.num_page_copies == 0
    one.close()
    two.close()


# -- publishing ---------------------------------------------------------------------------------------------------------------
def test_only_published_is_matched(cache: SequenceCache, device: Device) -> None:
    """A reserved snapshot is not matched, a discarded one neither; the path is unknown until its step has finished."""
    prompt = text(1, 8)
    run = Run(cache, device, prompt)
    assert cache.extend(run.lease, 8, 0.0)
    reservation = cache.reserve(run.lease, 8, 0.0)
    assert reservation is not None
    assert cache.reserve(run.lease, 8, 0.0) is None
    step = cache.begin([run.lease], [reservation])
    assert cache.match(prompt) == COLD
    cache.abort(step, 0.0)
    assert cache.match(prompt) == COLD
    assert run.write(8, captures=[8])
    assert cache.match(prompt).position == 8
    assert cache.reserve(run.lease, 8, 0.0) is None
    run.close()


def test_same_prefix_published_twice(cache: SequenceCache, device: Device) -> None:
    """Two cold runs of one prompt leave one snapshot and one set of pages; the second snapshot goes back."""
    prompt = text(1, 10)
    (one, first), (two, second) = (leader_of(cache, prompt, 10) for _ in range(2))
    run_step(cache, device, [one, two], [Chunk(lease, prompt, 0) for lease in (one, two)], [first, second])
    for lease in (one, two):
        cache.close(lease, 10, 0.0)
    stats = cache.stats()
    assert (stats.published_snapshots, stats.free_snapshots, stats.cached_pages) == (1, 11, 3)
    assert stats.counters.num_duplicates == 1
    assert cache.match(prompt).snapshot == first.ref


def test_duplicate_that_joiners_wait_for_stays(cache: SequenceCache) -> None:
    """When joiners have pinned the second snapshot of a place and nobody the first, the first gives way."""
    prompt = text(1, 10)
    (one, first), (two, second) = (leader_of(cache, prompt, 10) for _ in range(2))
    cache.pin(second.ref)
    cache.finish(cache.begin([one, two], [first, second]), 0.0)
    for lease in (one, two):
        cache.close(lease, 10, 0.0)
    assert cache.match(prompt).snapshot == second.ref
    assert cache.stats().published_snapshots == 1
    cache.unpin(second.ref)


def test_close_gives_back_what_was_reserved(cache: SequenceCache) -> None:
    """Row, pages and unpublished snapshots come back; the step under way publishes nothing of it."""
    prompt = text(1, 10)
    lease, first = leader_of(cache, prompt, 4)
    last = cache.reserve(lease, 10, 0.0)
    assert last is not None
    step = cache.begin([lease], [first, last])
    cache.close(lease, 10, 0.0)
    stats = cache.stats()
    assert (stats.free_pages, stats.free_rows, stats.free_snapshots) == (32, 4, 12)
    cache.finish(step, 0.0)
    assert cache.match(prompt) == COLD
    for reservation in (first, last):
        with pytest.raises(StaleSnapshotError):
            cache.discard(reservation)


def test_stale_references_are_errors(cache: SequenceCache, device: Device) -> None:
    """A reference is good for one use of a snapshot: afterwards pin, unpin and discard refuse it, and a step cannot publish it."""
    prompt = text(1, 8)
    run = Run(cache, device, prompt)
    assert cache.extend(run.lease, 8, 0.0)
    old = cache.reserve(run.lease, 8, 0.0)
    assert old is not None
    cache.discard(old)
    new = cache.reserve(run.lease, 8, 0.0)
    assert new is not None
    assert (new.ref.snapshot_id, new.ref.generation > old.ref.generation) == (old.ref.snapshot_id, True)
    step = cache.begin([run.lease], [old])
    for use in (
        lambda: cache.pin(old.ref),
        lambda: cache.unpin(old.ref),
        lambda: cache.discard(old),
        lambda: cache.finish(step, 0.0),
    ):
        with pytest.raises(StaleSnapshotError):
            use()
    cache.discard(new)
    run.close()


def test_a_snapshot_is_published_once(cache: SequenceCache) -> None:
    """A reservation is used up when its step has finished: it can be neither published again nor discarded."""
    lease, reservation = leader_of(cache, text(1, 8), 8)
    step = cache.begin([lease], [reservation])
    cache.finish(step, 0.0)
    for again in (lambda: cache.finish(step, 0.0), lambda: cache.discard(reservation)):
        with pytest.raises(StaleSnapshotError):
            again()
    assert cache.match(text(1, 8)).position == 8
    cache.close(lease, 8, 0.0)


def test_stale_resume_point_is_an_error(cache: SequenceCache, device: Device) -> None:
    """`open` refuses a resume point whose snapshot went away after `match`, and takes no row for it."""
    prompt = text(1, 8)
    converse(cache, device, prompt)
    resume = cache.match(prompt)
    cache.clear()
    with pytest.raises(StaleSnapshotError):
        cache.open(prompt, resume, 0.0)
    converse(cache, device, prompt)
    with pytest.raises(StaleSnapshotError):
        cache.open(prompt, resume, 0.0)
    assert cache.stats().free_rows == 4


def test_no_row(cache: SequenceCache, device: Device) -> None:
    """Without a free row `open` changes nothing, pins and page counts included."""
    prompt = text(1, 8)
    converse(cache, device, prompt)
    leases = [cache.open(text(2, 3), COLD, 0.0) for _ in range(4)]
    before = cache.stats()
    resume = cache.match(prompt)
    assert cache.open(prompt, resume, 0.0) is None
    assert replace(cache.stats(), counters=before.counters) == before
    for lease in leases:
        assert lease is not None
        cache.close(lease, 0, 0.0)


# -- saves --------------------------------------------------------------------------------------------------------------------
def test_a_save_publishes_the_state_and_closes_the_lease(cache: SequenceCache, device: Device) -> None:
    """The next step saves a sequence that leaves: its row, before that step evaluates anything, is the state to resume from."""
    run, other = Run(cache, device, text(1, 9)), Run(cache, device, text(2, 4))
    assert run.write(9)
    save = cache.reserve(run.lease, 9, 0.0)
    assert save is not None
    assert cache.extend(other.lease, 4, 0.0)
    run_step(cache, device, [other.lease], [Chunk(other.lease, other.tokens, 0)], saves=[save])
    assert run.lease.closed
    assert cache.stats().free_rows == 3
    again = Run(cache, device, text(1, 9))
    assert again.resume.position == 9
    again.start()
    assert device.rows[again.lease.row] == text(1, 9)
    again.close()
    cache.close(other.lease, 0, 0.0)


@pytest.mark.parametrize("how", ["distrusted", "closed", "aborted"])
def test_a_save_that_cannot_be_kept(cache: SequenceCache, device: Device, how: str) -> None:
    """Of a sequence whose numbers are not finite, that was closed meanwhile, or whose step fails, nothing is matched."""
    run = Run(cache, device, text(1, 9))
    assert run.write(9)
    save = cache.reserve(run.lease, 9, 0.0)
    assert save is not None
    step = cache.begin([], [], [save])
    if how == "closed":
        cache.close(run.lease, 0, 0.0)
    if how == "aborted":
        cache.abort(step, 0.0)
    else:
        cache.finish(step, 0.0, distrusted={run.lease} if how == "distrusted" else ())
    assert run.lease.closed
    assert cache.match(text(1, 9)) == COLD
    stats = cache.stats()
    assert (stats.free_pages, stats.free_rows, stats.free_snapshots) == (32, 4, 12)


def test_captures_of_a_distrusted_lease_are_discarded(cache: SequenceCache, device: Device) -> None:
    """In one step two sequences are captured, and the numbers of one are not finite: the other is published."""
    (one, first), (two, second) = leader_of(cache, text(1, 8), 8), leader_of(cache, text(2, 8), 8)
    cache.finish(cache.begin([one, two], [first, second]), 0.0, distrusted={one})
    assert cache.match(text(1, 8)) == COLD
    assert cache.match(text(2, 8)).position == 8
    for lease in (one, two):
        cache.close(lease, 0, 0.0)


# -- pins ---------------------------------------------------------------------------------------------------------------------
def test_joiners_pin_keeps_a_snapshot(cache: SequenceCache, device: Device) -> None:
    """A capture pinned before it exists survives, once published, every demand for snapshots and pages."""
    prompt = text(1, 10)
    lease, reservation = leader_of(cache, prompt, 10)
    ref = reservation.ref
    cache.pin(ref)
    run_step(cache, device, [lease], [Chunk(lease, prompt, 0)], [reservation])
    cache.close(lease, 10, 0.0)
    for number in range(2, 20):
        converse(cache, device, text(number, 21), captures=[5, 10, 15], now=100.0 * number)
    assert cache.num_available_pages() == 32 - 3
    assert cache.match(prompt).snapshot == ref
    joiner = Run(cache, device, prompt + text(50, 4), now=2000.0)
    cache.unpin(ref)
    assert joiner.resume.position == 10
    assert joiner.write(14, now=2000.0)
    joiner.close()


@pytest.mark.parametrize("how", ["discard", "close", "abort"])
def test_leader_fails_under_a_pin(cache: SequenceCache, how: str) -> None:
    """A pinned reservation that is never published is not matched, waits for its pins, and is then free; new pins are refused."""
    prompt = text(1, 10)
    lease, reservation = leader_of(cache, prompt, 10)
    ref = reservation.ref
    cache.pin(ref)
    cache.pin(ref)
    if how == "discard":
        cache.discard(reservation)
    elif how == "abort":
        cache.abort(cache.begin([lease], [reservation]), 0.0)
    cache.close(lease, 0 if how == "abort" else 10, 0.0)
    assert cache.match(prompt) == COLD
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
    assert (cache.match(prompt[:6]).snapshot, cache.stats().pinned_snapshots) == (ref, 1)
    cache.unpin(ref)
    assert cache.stats().pinned_snapshots == 0


def test_restored_snapshot_is_kept_until_it_is_restored(cache: SequenceCache, device: Device) -> None:
    """From `open` until the step that restores it has finished, a snapshot cannot be used for anything else; afterwards it can."""
    prompt = text(1, 6)
    converse(cache, device, prompt)
    run = Run(cache, device, prompt)
    cache.clear()
    stats = cache.stats()
    assert (stats.stranded_snapshots, stats.free_snapshots) == (1, 11)
    run.start()
    assert device.rows[run.lease.row] == prompt
    assert cache.stats().free_snapshots == 12
    run.close()
