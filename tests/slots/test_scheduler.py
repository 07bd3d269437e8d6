"""Scheduling as tables: who is evaluated when, what is reused, what each end leaves behind. The fake device checks every row."""

import functools
import itertools
import random
from collections.abc import Callable

import pytest

from svc.compute.sampling.params import SamplingParams
from svc.errors import QueueFullError, RequestError
from svc.memory.placement import Boundary, BoundaryKind
from svc.slots.events import FinishReason, Progress, TokenEvent, TokenText
from tests.fakes.fake_backend import expected_answer
from tests.slots.harness import Harness

Make = Callable[..., Harness]


@pytest.fixture(params=[True, False], ids=["ahead", "in turn"])
def make(request: pytest.FixtureRequest) -> Make:
    """A harness. Everything here holds whether or not steps are planned while another runs."""
    return functools.partial(Harness, ahead=request.param)


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(1000), k=length)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 63, 64, 65, 300])
@pytest.mark.parametrize("hybrid", [True, False])
def test_answer_is_that_of_the_model(make: Make, length: int, hybrid: bool) -> None:
    """One request alone: tokens, counts and reason, at and around page and chunk edges."""
    harness = make(hybrid=hybrid)
    answer = harness.ask(prompt(length), max_tokens=5)
    assert answer.tokens == expected_answer(prompt(length), 5)
    assert answer.end.reason is FinishReason.LENGTH
    usage = answer.end.usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (length, 0, 5)
    harness.assert_nothing_leaked()


@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize("length", [1, 16, 40, 129])
def test_the_same_prompt_again_evaluates_nothing(make: Make, length: int, hybrid: bool) -> None:
    """Scenarios 1 and 3 (docs/scenarios.md): cached == n each time, no prompt token in any batch, same answer."""
    harness = make(hybrid=hybrid)
    first = harness.ask(prompt(length))
    evaluated = harness.scheduler.counters.prefill_tokens
    for _ in range(3):
        again = harness.ask(prompt(length))
        assert again.tokens == first.tokens
        assert again.cached == length
        assert again.end.cache.reason == "full"
    assert harness.scheduler.counters.prefill_tokens == evaluated


def test_next_turn_resumes_at_the_end_of_the_answer(make: Make) -> None:
    """A prompt that goes on after an answer resumes at its last evaluated token."""
    harness = make()
    first = harness.ask(prompt(50), max_tokens=6)
    turn = prompt(50) + first.tokens + prompt(20, seed=1)
    second = harness.ask(turn)
    assert second.cached == 55  # the sixth token was sampled but never evaluated
    assert second.tokens == expected_answer(turn, 4)


def test_stop_token_is_not_part_of_the_answer(make: Make) -> None:
    """A stop id ends with STOP, unseen; the state before it is kept."""
    harness = make()
    tokens = expected_answer(prompt(30), 8)
    answer = harness.ask(prompt(30), max_tokens=8, stop_ids=frozenset({tokens[3]}))
    assert answer.tokens == tokens[:3]
    assert answer.end.reason is FinishReason.STOP
    assert harness.ask(prompt(30) + tokens[:3] + [5, 6]).cached == 33


def test_on_token_ends_the_answer_before_the_next_step(make: Make) -> None:
    """The text side's stop: the token is delivered with what was made of it, nothing after it is sampled."""
    harness = make()
    seen: list[int] = []

    def stop_at_three(token: int) -> TokenText:
        seen.append(token)
        return TokenText(len(seen), len(seen) == 3)

    answer = harness.ask(prompt(30), max_tokens=50, on_token=stop_at_three)
    assert [event.text for event in answer.events if isinstance(event, TokenEvent)] == [1, 2, 3]
    assert answer.tokens == seen == expected_answer(prompt(30), 3)
    assert answer.end.reason is FinishReason.STOP


def test_max_tokens_zero_warms_the_cache(make: Make) -> None:
    """The prompt is evaluated, nothing sampled; the real request then finds all of it; a second warm-up costs nothing."""
    harness = make()
    warm = harness.ask(prompt(100), max_tokens=0)
    assert (warm.tokens, warm.end.reason, warm.cached) == ([], FinishReason.LENGTH, 0)
    assert harness.ask(prompt(100), max_tokens=0).cached == 100
    assert harness.ask(prompt(100)).cached == 100


def test_message_starts_are_resume_points(make: Make) -> None:
    """An edited last message resumes exactly at its start, whatever came before."""
    harness = make()
    starts = (0, 21, 37, 64, 90)
    boundaries = tuple(Boundary(p, BoundaryKind.MESSAGE_START) for p in starts)
    harness.ask(prompt(120), boundaries=boundaries)
    for start in starts[1:]:
        edited = prompt(120)[:start] + prompt(30, seed=start)
        assert harness.ask(edited, boundaries=boundaries[: starts.index(start) + 1]).cached == start


def test_branching_leaves_the_first_conversation_whole(make: Make) -> None:
    """Scenario 4: A, a branch B from its middle, A again: cached == n, same answer."""
    harness = make()
    first = harness.ask(prompt(150))
    branch = prompt(150)[:70] + prompt(60, seed=3)
    assert harness.ask(branch).tokens == expected_answer(branch, 4)
    again = harness.ask(prompt(150))
    assert (again.cached, again.tokens) == (150, first.tokens)


def test_four_agents_on_one_system_prompt_cold(make: Make) -> None:
    """Scenario 5: sent together to an empty server, the first computes the common prefix and the others join."""
    harness = make(num_rows=8)
    system = prompt(200)
    answers = [harness.submit(system + prompt(20 + i, seed=10 + i)) for i in range(4)]
    harness.run()
    for i, answer in enumerate(answers):
        assert answer.tokens == expected_answer(system + prompt(20 + i, seed=10 + i), 4)
    assert [answer.cached for answer in answers] == [0, 200, 200, 200]
    assert answers[1].end.cache.reason == "joined"
    harness.assert_nothing_leaked()


def test_several_choices_share_one_prompt(make: Make) -> None:
    """n > 1: the prompt is evaluated once, each choice draws its own tokens, as if it were alone."""
    params = SamplingParams(temperature=1.0, seed=42)
    harness = make(num_rows=8)
    answers = [harness.submit(prompt(90), params=params, choice=choice) for choice in range(4)]
    harness.run()
    assert harness.scheduler.counters.prefill_tokens == 90
    assert [a.tokens for a in answers] == [expected_answer(prompt(90), 4, params, choice) for choice in range(4)]


@pytest.mark.parametrize("steps_before", range(1, 8))
def test_joiners_survive_their_leader(make: Make, steps_before: int) -> None:
    """A leader cancelled at any moment, or failing: those who waited go on from what it left."""
    harness = make(chunk=32)
    system = prompt(100)
    leader = harness.submit(system + prompt(40, seed=1))
    waiter = harness.submit(system + prompt(40, seed=2))
    for _ in range(steps_before):
        harness.step()
    harness.cancel(leader)
    harness.run()
    assert waiter.tokens == expected_answer(system + prompt(40, seed=2), 4)
    assert waiter.cached == min(100, 32 * steps_before)
    harness.assert_nothing_leaked()


@pytest.mark.parametrize("steps_before", range(0, 12))
def test_cancel_at_any_step_and_again(make: Make, steps_before: int) -> None:
    """Scenario 6: cut off after any number of steps, sent again: it goes on where it stopped, and answers the same."""
    harness = make(chunk=32)
    cut = harness.submit(prompt(200), max_tokens=8)
    for _ in range(steps_before):
        harness.step()
    harness.cancel(cut)
    harness.run()
    assert cut.end.reason is FinishReason.CANCELLED
    again = harness.ask(prompt(200), max_tokens=8)
    assert again.cached == min(200, 32 * steps_before)
    assert again.tokens == expected_answer(prompt(200), 8)
    harness.assert_nothing_leaked()


def test_cancel_while_the_step_is_on_the_device(make: Make) -> None:
    """A cancel between plan and commit: ended at once for the reader, the step's state is still kept, the token is not sent."""
    harness = make(chunk=32)
    cut = harness.submit(prompt(100))
    plan = harness.scheduler.plan(0.0)
    assert plan is not None
    harness.cancel(cut)
    assert cut.end.reason is FinishReason.CANCELLED
    assert harness.scheduler.commit(plan, harness.backend.run(plan.batch), 0.0) == []
    harness.run()
    assert harness.ask(prompt(100)).cached == 32
    harness.assert_nothing_leaked()


def test_changing_tail_of_one_long_message(make: Make) -> None:
    """Scenario 21: second run at most twice the changed tail, third exactly the tail."""
    harness = make(num_pages=2048, context=16_000, chunk=512)
    fixed = prompt(12_000)
    tails = [prompt(500, seed=s) for s in (1, 2, 3)]
    first, second, third = (harness.ask(fixed + tail) for tail in tails)
    assert first.cached == 0
    assert 12_500 - second.cached <= 2 * 500
    assert 12_500 - third.cached == 500


def test_cache_off_reads_nothing_but_answers_the_same(make: Make) -> None:
    """cache_prompt false: every prompt token is evaluated, twice in a row."""
    harness = make()
    for _ in range(2):
        answer = harness.ask(prompt(80), use_cache=False)
        assert (answer.cached, answer.end.cache.reason) == (0, "cache_off")
        assert answer.tokens == expected_answer(prompt(80), 4)


def test_a_stream_gets_a_token_in_every_step_beside_a_long_prefill(make: Make) -> None:
    """Scenario 11, counted in steps."""
    harness = make(chunk=64, num_pages=512, context=4000)
    stream = harness.submit(prompt(10), max_tokens=60)
    harness.step()
    harness.submit(prompt(3000, seed=1))
    for _ in range(40):
        before = len(stream.tokens)
        harness.step()
        assert len(stream.tokens) == before + 1


def test_progress_of_a_prompt(make: Make) -> None:
    """For who asks: where it begins, then after each of its steps, before any token; a known prompt begins at its end."""
    harness = make(chunk=64)
    text = prompt(200)
    first = harness.ask(text, max_tokens=3, progress=True)
    again = harness.ask(text, max_tokens=3, progress=True)
    longer = harness.ask([*text, *first.tokens, *prompt(20, seed=1)], max_tokens=0, progress=True)
    unasked = harness.ask(prompt(90, seed=2))
    told = [event for event in first.events if isinstance(event, Progress)]
    assert [(event.total, event.cached, event.processed) for event in told] == [(200, 0, n) for n in (0, 64, 128, 192, 200)]
    assert told[0].elapsed_s == 0.0
    assert [after.elapsed_s - before.elapsed_s for before, after in itertools.pairwise(told[1:])] == [1.0, 1.0, 1.0]  # a step each
    assert first.events[: len(told)] == told
    assert [event[:3] for event in again.events if isinstance(event, Progress)] == [(200, 200, 200)]
    assert [event[:3] for event in longer.events if isinstance(event, Progress)] == [(223, 202, 202), (223, 202, 223)]
    assert not any(isinstance(event, Progress) for event in unasked.events)


def test_two_long_prompts_together_take_as_many_steps_as_one_after_the_other(make: Make) -> None:
    """Scenario 12: at most 1.2 times."""
    one = make(chunk=256, num_pages=1200, context=9000)
    one.submit(prompt(8000))
    alone = one.run()
    one.submit(prompt(8000, seed=1))
    alone += one.run()
    both = make(chunk=256, num_pages=1200, context=9000)
    both.submit(prompt(8000))
    both.submit(prompt(8000, seed=1))
    assert both.run() <= 1.2 * alone


def test_a_short_prompt_does_not_wait_for_a_long_one(make: Make) -> None:
    """Half of each step goes to the shortest: a short prompt beside a long prefill is answered within a few steps."""
    harness = make(chunk=64, num_pages=512, context=4000)
    long = harness.submit(prompt(3000))
    harness.step()
    short = harness.submit(prompt(30, seed=1), max_tokens=1)
    harness.step()
    harness.step()
    assert short.ended
    assert not long.ended


@pytest.mark.parametrize("hybrid", [True, False])
def test_preemption_when_pages_run_out(make: Make, hybrid: bool) -> None:
    """More growth than pages: somebody is preempted and comes back, every answer is right, no one starves."""
    harness = make(hybrid=hybrid, num_pages=26, num_rows=4, context=300)
    prompts = [prompt(30, seed=s) for s in range(4)]
    answers = [harness.submit(p, max_tokens=150) for p in prompts]
    harness.run()
    assert harness.scheduler.counters.preemptions > 0
    for p, answer in zip(prompts, answers, strict=True):
        assert answer.tokens == expected_answer(p, 150)
    harness.assert_nothing_leaked()


def test_more_requests_than_slots_are_served_in_order(make: Make) -> None:
    """FIFO among equals; a higher priority goes first."""
    harness = make(num_rows=1)
    answers = [harness.submit(prompt(10, seed=s), max_tokens=2) for s in range(5)]
    urgent = harness.submit(prompt(10, seed=9), max_tokens=2, priority=1)
    ends: list[int] = []
    order = [*answers, urgent]
    while harness.step():
        ends += [i for i, answer in enumerate(order) if answer.ended and i not in ends]
    assert ends == [5, 0, 1, 2, 3, 4]


def test_full_queue_refuses(make: Make) -> None:
    """Beyond max_queue, slots being taken: QueueFullError with a suggestion, nothing queued."""
    harness = make(num_rows=1, max_queue=2)
    harness.submit(prompt(5))
    harness.step()
    harness.submit(prompt(5, seed=1))
    harness.submit(prompt(5, seed=2))
    with pytest.raises(QueueFullError) as refused:
        harness.submit(prompt(5, seed=3))
    assert refused.value.retry_after_s > 0
    assert harness.scheduler.num_waiting == 2


def test_no_queue_at_all_still_fills_the_slots(make: Make) -> None:
    """max_queue = 0: as many as there are slots are taken, at once or one by one; nobody waits; an end makes room again."""
    harness = make(num_rows=2, max_queue=0)
    first = harness.submit(prompt(5), 30)
    harness.submit(prompt(5, seed=1), 3)
    with pytest.raises(QueueFullError):
        harness.submit(prompt(5, seed=2))
    harness.step()
    assert (len(harness.scheduler.slots), harness.scheduler.num_waiting) == (2, 0)
    with pytest.raises(QueueFullError):
        harness.submit(prompt(5, seed=2))
    while len(harness.scheduler.slots) == 2:
        harness.step()
    third = harness.submit(prompt(5, seed=2))
    harness.run()
    assert first.tokens == expected_answer(prompt(5), 30)
    assert third.tokens == expected_answer(prompt(5, seed=2), 4)


@pytest.mark.parametrize(("length", "answer_length"), [(47, 2), (48, 1)])
def test_prompt_as_long_as_the_context(make: Make, length: int, answer_length: int) -> None:
    """Scenario 18: the whole context still gets one token; one more is refused by name."""
    harness = make(context=48)
    answer = harness.ask(prompt(length), max_tokens=10)
    assert answer.tokens == expected_answer(prompt(length), answer_length)
    assert answer.end.reason is FinishReason.LENGTH
    with pytest.raises(RequestError, match="maximum context length is 48 tokens, but the prompt has 49") as refused:
        harness.submit(prompt(49))
    assert refused.value.code == "context_length_exceeded"


def test_a_failed_step_fails_its_requests_and_nothing_else(make: Make) -> None:
    """The device raises: those in the step end with an error, nothing it was to write is matched, the next request is clean."""
    harness = make(chunk=32)
    doomed = harness.submit(prompt(100))
    harness.step()
    harness.backend.fail_next = RuntimeError("device lost")
    harness.run()
    assert doomed.end.reason is FinishReason.ERROR
    assert "device lost" in (doomed.end.error or "")
    again = harness.ask(prompt(100))
    assert again.tokens == expected_answer(prompt(100), 4)
    harness.assert_nothing_leaked()


def test_nan_ends_one_request_and_its_state_is_not_kept(make: Make) -> None:
    """A sample that is not finite: that request fails, its neighbours go on, the poisoned step publishes nothing."""
    harness = make()
    sick = harness.submit(prompt(40), max_tokens=20)
    well = harness.submit(prompt(40, seed=1), max_tokens=20)
    harness.step()
    harness.step()
    row = next(slot.lease.row for slot in harness.scheduler.slots if slot.sequence is sick.sequence)
    harness.backend.poisoned_rows.add(row)
    harness.run()
    assert sick.end.reason is FinishReason.ERROR
    assert well.tokens == expected_answer(prompt(40, seed=1), 20)
    harness.assert_nothing_leaked()


@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize("fault_step", [0, 1, 2, 5])
def test_a_transient_fault_does_not_stay(make: Make, fault_step: int, hybrid: bool) -> None:
    """A fault in any step of a prefill shows only when a token is sampled; by then its snapshots are published. They must not be
    matched again: the same prompt sent again succeeds."""
    harness = make(chunk=32, hybrid=hybrid)
    sick = harness.submit(prompt(150), max_tokens=8)
    for _ in range(fault_step):
        harness.step()
    harness.backend.poison(prompt(150)[: 32 * fault_step + 1])
    harness.run()
    if sick.end.reason is not FinishReason.ERROR:
        assert sick.tokens == expected_answer(prompt(150), 8)  # the fault came after the last use of that state
    again = harness.ask(prompt(150), max_tokens=8)
    assert again.tokens == expected_answer(prompt(150), 8)
    assert harness.ask([*prompt(150), 1, 2, 3]).tokens == expected_answer([*prompt(150), 1, 2, 3], 4)
    harness.assert_nothing_leaked()


def test_fail_all_forgets_everything_but_those_who_wait(make: Make) -> None:
    """A suspected device: seated requests fail, waiting ones are served from a cold start, nothing is held."""
    harness = make(num_rows=2, chunk=32)
    answers = [harness.submit(prompt(100, seed=seed)) for seed in range(2)] + [harness.submit(prompt(100))]
    harness.step()
    for sequence, event in harness.scheduler.fail_all("suspected", harness.now):
        harness.answers[sequence].events.append(event)
    harness.cache.check()
    assert harness.cache.stats().published_snapshots == 0
    harness.run()
    assert [answer.end.reason for answer in answers] == [FinishReason.ERROR, FinishReason.ERROR, FinishReason.LENGTH]
    assert answers[2].cached == 0
    harness.assert_nothing_leaked()


def test_a_cached_prompt_beside_a_stream_is_not_preempted_again_and_again(make: Make) -> None:
    """Its own cached pages cannot be evicted for it: it waits until it fits, rather than evaluating a chunk over and over."""
    harness = make(num_pages=64, num_rows=2, context=1000, chunk=64)
    harness.ask(prompt(600), max_tokens=0)
    stream = harness.submit(prompt(150, seed=1), max_tokens=150)
    harness.step()
    late = harness.submit(prompt(600) + prompt(250, seed=2), max_tokens=4)
    harness.run()
    assert stream.tokens == expected_answer(prompt(150, seed=1), 150)
    assert late.tokens == expected_answer(prompt(600) + prompt(250, seed=2), 4)
    assert harness.scheduler.counters.preemptions <= 2
    assert harness.scheduler.counters.prefill_tokens <= 600 + 150 + 850 + 300


def test_growing_sequences_do_not_thrash(make: Make) -> None:
    """Four that grow to more than fits: each preemption is followed by an end, so that work is not undone at once."""
    harness = make(num_pages=40, num_rows=4, context=600, chunk=64)
    prompts = [prompt(100, seed=seed) for seed in range(4)]
    answers = [harness.submit(tokens, max_tokens=350) for tokens in prompts]
    harness.run()
    for answer, tokens in zip(answers, prompts, strict=True):
        assert answer.tokens == expected_answer(tokens, 350)
    assert harness.scheduler.counters.preemptions <= 12


def test_captures_while_generating(make: Make) -> None:
    """Every N generated tokens a resume point, also when the answer is cut and edited later."""
    harness = make(capture_every=10)
    answer = harness.ask(prompt(30), max_tokens=35)
    edited = prompt(30) + answer.tokens[:25] + prompt(5, seed=1)
    assert harness.ask(edited).cached == 50


def test_small_ring_still_answers(make: Make) -> None:
    """Scenario 15: the budget filled by others: recomputed correctly, and a fresh prompt equals a fresh server's."""
    harness = make(num_snapshots=4, num_pages=40)
    for seed, _ in itertools.product(range(6), range(2)):
        answer = harness.ask(prompt(100, seed=seed))
        assert answer.tokens == expected_answer(prompt(100, seed=seed), 4)
    harness.assert_nothing_leaked()


@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize("num_requests", [150, pytest.param(500, marks=pytest.mark.slow)])
def test_hundreds_of_requests_with_random_cancels(make: Make, hybrid: bool, num_requests: int) -> None:
    """Scenario 16: shared prefixes, joins, preemptions, cancels at any moment, failing steps: every answer that ends by itself is
    exact, and nothing is leaked."""
    rng = random.Random(7)
    harness = make(hybrid=hybrid, num_pages=60, num_rows=4, num_snapshots=24, chunk=48, context=300, capture_every=8)
    stems = [prompt(rng.randrange(1, 120), seed=s) for s in range(12)]
    live = []
    done = 0
    for number in range(num_requests):
        tokens = stems[rng.randrange(12)][: rng.randrange(1, 200)] + prompt(rng.randrange(0, 40), seed=rng.randrange(30))
        if rng.random() < 0.3 and live:
            earlier = rng.choice(live)
            tokens = (list(earlier.sequence.request.prompt) + earlier.tokens + [number])[:250]
        live.append(harness.submit(tokens or [1], max_tokens=rng.randrange(0, 30), use_cache=rng.random() < 0.9))
        for _ in range(rng.randrange(0, 6)):
            harness.step()
        if rng.random() < 0.2:
            harness.cancel(rng.choice(live))
        if rng.random() < 0.01:
            harness.backend.fail_next = RuntimeError("device lost")
    harness.run(100_000)
    for answer in live:
        request = answer.sequence.request
        assert answer.tokens == expected_answer(request.prompt, len(answer.tokens))
        if answer.end.reason is FinishReason.LENGTH:
            done += 1
            assert len(answer.tokens) == min(request.max_tokens, 300 - len(request.prompt) + 1)
    assert done > 0.6 * num_requests
    harness.assert_nothing_leaked()


def test_room_for_several_at_once(make: Make) -> None:
    """All that the queue and the free slots hold, no more; what can never be is known from `max_requests`."""
    harness = make(num_rows=2, max_queue=3)
    assert harness.scheduler.max_requests() == 5
    harness.scheduler.check_capacity(5)
    harness.submit(prompt(20), 4)
    harness.step()
    harness.scheduler.check_capacity(4)
    with pytest.raises(QueueFullError):
        harness.scheduler.check_capacity(5)
    for length in (21, 22, 23, 24):
        harness.submit(prompt(length), 4)
    with pytest.raises(QueueFullError):
        harness.scheduler.check_capacity(1)


def test_min_tokens_bans_the_stop_ids_for_so_long(make: Make) -> None:
    """The stop ids are banned, beside what is banned anyway, until the answer has min_tokens tokens; then they may come."""
    harness = make()
    harness.ask(prompt(5), 5, stop_ids=frozenset({1001, 1002}), banned=(1003,), min_tokens=3)
    asked = [set(sample.banned) for batch in harness.backend.batches for sample in batch.samples]
    assert asked == [{1001, 1002, 1003}] * 3 + [{1003}] * 2
    assert len({id(sample.banned) for batch in harness.backend.batches for sample in batch.samples}) == 2  # made once


def test_penalties_see_every_token_before(make: Make) -> None:
    """Prompt and answer so far, also when the prompt was cached, and for nobody who did not ask (the fake device compares)."""
    harness = make()
    params = SamplingParams(temperature=0, presence_penalty=0.5)
    for _ in range(2):
        harness.ask(prompt(40), 6, params=params)
    histories = [sample.history for batch in harness.backend.batches for sample in batch.samples]
    assert [(len(h.tokens), h.num_prompt) for h in histories if h] == [(40 + i, 40) for i in range(6)] * 2
    harness.ask(prompt(40), 3)
    assert all(sample.history is None for batch in harness.backend.batches[-3:] for sample in batch.samples)
