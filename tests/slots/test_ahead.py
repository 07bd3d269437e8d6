"""Planning a step while another runs: what is foreseen, what is left for later, and that no answer tells."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from svc.compute.sampling.params import SamplingParams
from svc.memory.lease import Reservation
from svc.memory.placement import Boundary, BoundaryKind
from svc.slots.events import FinishReason, TokenText
from tests.fakes.fake_backend import expected_answer
from tests.slots.harness import GREEDY, Answer, Harness

PARAMS = [GREEDY, SamplingParams(temperature=1.0, seed=5), SamplingParams(temperature=0, presence_penalty=0.5)]


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(997), k=length)


class Recorder(Harness):
    """Notes the tokens behind each snapshot that is published."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.published: set[tuple[int, ...]] = set()
        publish = self.cache._publish

        def note(reservation: Reservation, now: float) -> None:
            self.published.add(tuple(reservation.lease.tokens.array[: reservation.position].tolist()))
            publish(reservation, now)

        self.cache._publish = note  # type: ignore[method-assign]


class Client:
    """One conversation: each turn is what was said so far and some more, sent as soon as the answer before has ended."""

    def __init__(self, harness: Harness, number: int, seed: int) -> None:
        self._harness = harness
        self._random = random.Random(1000 * seed + number)
        self._text = [number]
        self.answers: list[Answer] = []

    def speak(self, turns: int) -> None:
        """The next turn if the last one has ended and there is one."""
        if len(self.answers) == turns or not all(answer.ended for answer in self.answers):
            return
        if self.answers:
            self._text += self.answers[-1].tokens
        boundary = Boundary(len(self._text), BoundaryKind.MESSAGE_START)
        self._text += self._random.choices(range(997), k=self._random.randrange(1, 90))
        params, max_tokens = self._random.choice(PARAMS), self._random.randrange(0, 25)
        coming = expected_answer(self._text, 30, params)
        stops = frozenset(self._random.sample(coming, self._random.randrange(0, 3)))
        fields = {"boundaries": (boundary,), "min_tokens": 0, "on_token": lambda token: TokenText("", False), "text_ends": False}
        self.answers.append(self._harness.submit(self._text, max_tokens, params, stop_ids=stops, **fields))


def talk(harness: Recorder, seed: int) -> list[Any]:
    """All answers of more clients than there are slots, ended; nothing leaked."""
    clients = [Client(harness, number, seed) for number in range(6)]
    for _ in range(5000):
        for client in clients:
            client.speak(turns=4)
        if not harness.step():
            break
    answers = [answer for client in clients for answer in client.answers]
    assert all(answer.ended for answer in answers)
    harness.assert_nothing_leaked()
    return answers


def conversations(seed: int, *, hybrid: bool, ahead: bool) -> tuple[Recorder, list[Any]]:
    harness = Recorder(hybrid=hybrid, num_pages=2000, num_snapshots=600, chunk=48, capture_every=7, ahead=ahead)
    answers = talk(harness, seed)
    return harness, [(answer.tokens, answer.end.reason, answer.end.usage, answer.end.cache) for answer in answers]


@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_nobody_can_tell(seed: int, hybrid: bool) -> None:
    """Conversations with all kinds of ends, more than there are slots: the same tokens, counts, reuse and snapshots as with each
    step planned after the one before, and no token evaluated more."""
    ahead, found = conversations(seed, hybrid=hybrid, ahead=True)
    in_turn, expected = conversations(seed, hybrid=hybrid, ahead=False)
    assert found == expected
    assert ahead.published == in_turn.published
    assert ahead.scheduler.counters.decode_tokens == in_turn.scheduler.counters.decode_tokens
    assert ahead.scheduler.counters.prefill_tokens == in_turn.scheduler.counters.prefill_tokens
    assert (in_turn.num_ahead, in_turn.backend.num_skipped) == (0, 0)
    assert ahead.num_ahead > 20
    assert ahead.backend.num_skipped > 0


@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize("length", range(7))
def test_a_stop_id_at_any_place(length: int, hybrid: bool) -> None:
    """The chunk that was to evaluate the stop token is skipped: its row, pages and end-of-answer snapshot are those before it."""
    harness = Harness(hybrid=hybrid, ahead=True)
    beside = harness.submit(prompt(20, seed=1), 40)
    harness.step()
    tokens = expected_answer(prompt(30), 8)
    answer = harness.submit(prompt(30), 8, stop_ids=frozenset({tokens[length]}))
    while not answer.ended:
        harness.step()
    following = harness.submit(prompt(30) + tokens[:length] + [5, 6])  # at once: its state is not saved yet
    harness.run()
    assert (answer.tokens, answer.end.reason) == (tokens[:length], FinishReason.STOP)
    assert harness.backend.num_skipped == 1
    assert following.cached == 30 + length
    assert beside.tokens == expected_answer(prompt(20, seed=1), 40)
    harness.assert_nothing_leaked()


def test_no_overrun_of_a_known_end() -> None:
    """max_tokens and the context are known when planning: nothing is evaluated for a token that will not come."""
    harness = Harness(ahead=True, context=60)
    answers = [harness.submit(prompt(30, seed=seed), max_tokens) for seed, max_tokens in enumerate((1, 2, 5, 100))]
    harness.run()
    assert [len(answer.tokens) for answer in answers] == [1, 2, 5, 31]
    assert harness.scheduler.counters.decode_tokens == 0 + 1 + 4 + 30
    assert harness.backend.num_skipped == 0


def test_what_only_the_text_side_knows_is_waited_for() -> None:
    """No step with a token before `on_token` has seen it, unless it is promised that it never ends an answer."""
    for promised in (False, True):
        harness = Harness(ahead=True)
        answer = harness.ask(prompt(30), 10, on_token=lambda token: TokenText("", False), text_ends=not promised)
        assert answer.tokens == expected_answer(prompt(30), 10)
        assert bool(harness.num_ahead) is promised


def test_a_broken_promise_harms_nobody() -> None:
    """`on_token` ends an answer although it was promised that it would not: what the step under way does to its state is kept as
    what it is."""
    harness = Harness(ahead=True)
    seen: list[int] = []

    def end_at_three(token: int) -> TokenText:
        seen.append(token)
        return TokenText(None, len(seen) == 3)

    answer = harness.ask(prompt(30), 10, on_token=end_at_three, text_ends=False)
    assert answer.tokens == seen == expected_answer(prompt(30), 3)
    assert harness.ask(prompt(30) + answer.tokens + [1, 2]).cached == 33
    harness.assert_nothing_leaked()


def test_a_long_prefill_alone_is_not_planned_ahead() -> None:
    """Its steps are long, and whoever comes meanwhile should not wait for two of them."""
    harness = Harness(ahead=True)
    harness.ask(prompt(600), 1)
    assert harness.num_ahead == 0


def test_a_newcomer_waits_one_step_more_at_most() -> None:
    """Beside a stream, a short prompt has its first token after the step under way and the one that was planned."""
    harness = Harness(ahead=True)
    harness.submit(prompt(20, seed=1), 100)
    for _ in range(5):
        harness.step()
    newcomer = harness.submit(prompt(20))
    for _ in range(2):
        harness.step()
    assert len(newcomer.tokens) == 1


@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize("steps", range(6))
def test_the_same_prompt_while_its_state_is_under_way(steps: int, hybrid: bool) -> None:
    """Whenever the second comes, it reuses all of the first's prompt, or what of it both have: a state that the step under way
    captures is waited for."""
    harness = Harness(hybrid=hybrid, num_rows=6, ahead=True)
    harness.submit(prompt(20, seed=1), 40)
    for _ in range(3):
        harness.step()
    harness.submit(prompt(40), 3)
    for _ in range(steps):
        harness.step()
    again, longer = harness.submit(prompt(40), 3), harness.submit([*prompt(40), 7, 8], 3)
    harness.run()
    assert (again.cached, longer.cached) == (40, 40)
    assert harness.num_ahead > 10
    harness.assert_nothing_leaked()


@pytest.mark.parametrize("steps", range(1, 9))
def test_cancelled_while_two_steps_have_it(steps: int) -> None:
    """Its state is kept as the last of them leaves it; the same text sent again at once waits for that."""
    harness = Harness(ahead=True)
    harness.submit(prompt(20, seed=1), 60)
    cut = harness.submit(prompt(30), 20)
    for _ in range(steps):
        harness.step()
    harness.cancel(cut)
    again = harness.submit(prompt(30) + expected_answer(prompt(30), 20))
    harness.run()
    assert cut.tokens == expected_answer(prompt(30), len(cut.tokens))
    assert again.cached >= 30 + len(cut.tokens) - 1
    assert again.tokens == expected_answer(prompt(30) + expected_answer(prompt(30), 20), 4)
    harness.assert_nothing_leaked()


@pytest.mark.parametrize("hybrid", [True, False])
def test_a_failing_step_at_any_moment(hybrid: bool) -> None:
    """Whichever submitted step fails: everybody in it ends with an error, the step planned on its results is refused, all others
    are answered, nothing is leaked."""
    for moment in range(1, 16):
        harness = Harness(hybrid=hybrid, num_rows=3, ahead=True)
        answers = [harness.submit(prompt(30 + 5 * seed, seed=seed), 6) for seed in range(3)]
        for step in range(1, 100):
            if step == moment:
                harness.backend.fail_next = RuntimeError("device lost")
            if step == moment + 1:
                answers += [harness.submit(prompt(30, seed=9), 6), harness.submit(prompt(30), 6)]
            if not harness.step():
                break
        harness.backend.fail_next = None  # where there was no such step
        for answer in answers:
            assert answer.tokens == expected_answer(answer.sequence.request.prompt, len(answer.tokens))
            assert answer.end.reason is FinishReason.ERROR or len(answer.tokens) == 6
        assert [answer.end.reason for answer in answers[3:]] == [FinishReason.LENGTH] * len(answers[3:])
        assert harness.ask(prompt(30), 6).tokens == expected_answer(prompt(30), 6)
        harness.assert_nothing_leaked()


def test_only_in_the_refused_step() -> None:
    """Who was seated in a step that was refused because the one before failed starts again, and is answered."""
    harness = Harness(ahead=True)
    stream = harness.submit(prompt(20, seed=1), 100)
    for _ in range(4):
        harness.step()
    harness.backend.fail_next = RuntimeError("device lost")
    harness.step()  # submits the one that fails
    newcomer = harness.submit(prompt(50), 5)
    harness.step()  # submits one with the newcomer
    assert stream.end.reason is FinishReason.ERROR
    assert not newcomer.ended
    harness.run()
    assert newcomer.tokens == expected_answer(prompt(50), 5)
    harness.assert_nothing_leaked()


def ends(answers: Sequence[Answer]) -> list[FinishReason]:
    return [answer.end.reason for answer in answers]


@pytest.mark.parametrize("hybrid", [True, False])
def test_not_finite_while_the_next_step_is_under_way(hybrid: bool) -> None:
    """The next step skips the row; the request fails alone, its state is not kept."""
    harness = Harness(hybrid=hybrid, ahead=True)
    sick, well = harness.submit(prompt(40), 20), harness.submit(prompt(40, seed=1), 20)
    for _ in range(3):
        harness.step()
    harness.backend.poisoned_rows.add(next(s.lease.row for s in harness.scheduler.slots if s.sequence is sick.sequence))
    harness.run()
    assert ends([sick, well]) == [FinishReason.ERROR, FinishReason.LENGTH]
    assert harness.backend.num_skipped == 1
    assert well.tokens == expected_answer(prompt(40, seed=1), 20)
    assert harness.ask(prompt(40), 20).tokens == expected_answer(prompt(40), 20)
    harness.assert_nothing_leaked()


def test_pages_run_out_while_a_step_is_under_way() -> None:
    """Nobody in it can be preempted: the next one is planned after it, and preempts."""
    harness = Harness(num_pages=26, num_rows=4, context=300, ahead=True)
    answers = [harness.submit(prompt(30, seed=seed), 150) for seed in range(4)]
    harness.run()
    assert harness.scheduler.counters.preemptions > 0
    assert harness.num_ahead > 20
    for seed, answer in enumerate(answers):
        assert answer.tokens == expected_answer(prompt(30, seed=seed), 150)
    harness.assert_nothing_leaked()
