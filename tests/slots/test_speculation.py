"""Drafts: no answer, state or report tells of them, however they are accepted, and they are checked only where it pays."""

import random
from typing import Any

import numpy as np
import pytest

from svc.slots.events import FinishReason, TokenText
from svc.slots.ngram_drafter import NgramDrafter, Odds
from svc.slots.request import Request
from svc.slots.speculation import DraftLimits, StepTimes, Tokens, choose_lengths
from svc.slots.speculator import Speculator
from tests.fakes.fake_backend import expected_answer, next_token
from tests.slots.test_ahead import PARAMS, Recorder, prompt, talk
from tests.slots.test_constraint import Forcing, Residues, constrained

MOST = 5  # drafts of a step


class Guesses:
    """A drafter that knows the fake model, and is right about each token with a given chance."""

    name = "guesses"

    def __init__(self, request: Request, right: float) -> None:
        self._request, self._right = request, right

    def advance(self, tokens: Tokens) -> None:
        pass

    def draft(self, tokens: Tokens, most: int) -> tuple[Tokens, list[float]]:
        luck = random.Random(f"{len(tokens)} {self._request.id}")
        count = min(most, luck.choice((0, luck.randrange(MOST + 1))))  # often none: then steps are planned ahead
        text = tokens.tolist()
        for _ in range(count):
            token = next_token(text, self._request.params, self._request.choice)
            text.append(token if luck.random() < self._right else (token + 1) % 997)
        return np.array(text[len(tokens) :], np.int32), [0.99] * count


def guessing(right: float = 0.7, **settings: Any) -> Speculator:
    return Speculator(MOST, make_drafter=lambda request: Guesses(request, right), **settings)


def conversations(seed: int, *, hybrid: bool, drafts: bool, **sizes: Any) -> tuple[Recorder, list[Any]]:
    """More requests than slots, with all kinds of ends; some leave, which they do after the same number of tokens in any run."""
    speculator = guessing(capture_every=7) if drafts else None
    settings = {"num_pages": 2000, "num_snapshots": 600, "chunk": 48, **sizes}
    harness = Recorder(hybrid=hybrid, capture_every=7, journal=MOST + 1, speculator=speculator, **settings)
    answers = talk(harness, seed)
    return harness, [(answer.tokens, answer.end.reason, answer.end.usage.completion_tokens) for answer in answers]


@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_nobody_can_tell(seed: int, hybrid: bool) -> None:
    """The same tokens, ends and published states as without drafts, although many were right and many were not."""
    drafted, found = conversations(seed, hybrid=hybrid, drafts=True)
    plain, expected = conversations(seed, hybrid=hybrid, drafts=False)
    assert found == expected
    assert drafted.published == plain.published
    counters = drafted.scheduler.counters
    assert 0.2 < counters.accepted_drafts / counters.drafts < 0.9
    assert counters.drafts > 30
    assert counters.steps < plain.scheduler.counters.steps
    assert drafted.num_ahead > 3


@pytest.mark.parametrize("host", [{}, {"host_pages": 40, "host_snapshots": 30}], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_preempted(seed: int, host: dict[str, int]) -> None:
    """Long answers that do not all fit, preempted and resumed in any state: each is what the model answers alone."""
    luck = random.Random(seed)
    harness = Recorder(num_pages=20, num_snapshots=8, chunk=48, journal=MOST + 1, speculator=guessing(), **host)
    texts = [prompt(luck.randrange(5, 60), seed=luck.randrange(1000)) for _ in range(6)]
    params = [luck.choice(PARAMS) for _ in texts]
    answers = [harness.submit(text, 150, each) for text, each in zip(texts, params, strict=True)]
    harness.run()
    for text, each, answer in zip(texts, params, answers, strict=True):
        assert answer.tokens == expected_answer(text, 150, each)
    assert harness.scheduler.counters.preemptions > 0
    assert harness.scheduler.counters.accepted_drafts > 50
    harness.assert_nothing_leaked()


@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_cancelled_at_any_step(seed: int, hybrid: bool) -> None:
    """A request that leaves in the middle of a check: what is kept of it is a prefix of the true text, and is resumed from."""
    luck = random.Random(seed)
    harness = Recorder(hybrid=hybrid, journal=MOST + 1, speculator=guessing())
    texts = [prompt(luck.randrange(1, 60), seed=luck.randrange(1000)) for _ in range(8)]
    answers = [harness.submit(text, 40, luck.choice(PARAMS)) for text in texts]
    for answer in answers:
        for _ in range(luck.randrange(4)):
            harness.step()
        if luck.random() < 0.7:
            harness.cancel(answer)
    harness.run()
    for text, answer in zip(texts, answers, strict=True):
        params = answer.sequence.request.params
        full = text + expected_answer(text, 40, params)
        said = text + answer.tokens
        assert said == full[: len(said)]
        again = harness.ask([*said, 3], 3, params=params)
        assert again.tokens == expected_answer([*said, 3], 3, params)
        if answer.tokens and answer.end.reason is FinishReason.CANCELLED:
            assert again.cached >= len(text) + len(answer.tokens) - 1
    harness.assert_nothing_leaked()


@pytest.mark.parametrize("length", range(1, 9))
@pytest.mark.parametrize("by", ["stop id", "text", "max_tokens"])
def test_the_end_among_accepted_drafts(by: str, length: int) -> None:
    """Whatever ends an answer does so at the same token, and the state that is saved is the one there."""
    text = prompt(30)
    tokens = expected_answer(text, 12)
    harness = Recorder(journal=MOST + 1, speculator=guessing(right=1.0))
    fields: dict[str, Any] = {
        "stop id": {"stop_ids": frozenset({tokens[length]})},
        "text": {"on_token": lambda token: TokenText("", token == tokens[length - 1])},
        "max_tokens": {},
    }[by]
    answer = harness.ask(text, length if by == "max_tokens" else 12, **fields)
    assert answer.tokens == tokens[:length]
    assert harness.scheduler.counters.accepted_drafts > 0 or length < 7
    following = harness.ask(text + tokens[:length] + [5, 6])
    assert following.cached == 30 + length - (by != "stop id")
    harness.assert_nothing_leaked()


def test_not_finite_behind_a_wrong_draft_is_nobodys_fault() -> None:
    """What a rejected draft would have led to does not fail the answer; what an accepted token leads to does."""
    text = prompt(20)
    tokens = expected_answer(text, 10)

    class Wrong(Guesses):
        def draft(self, tokens_so_far: Tokens, most: int) -> tuple[Tokens, list[float]]:
            return np.array([7, 8][:most], np.int32), [0.99, 0.99][:most]

    speculator = Speculator(MOST, make_drafter=lambda request: Wrong(request, 0))
    harness = Recorder(journal=MOST + 1, speculator=speculator)
    harness.backend.poison([*text, *tokens[:3], 7])
    assert harness.ask(text, 10).tokens == tokens
    assert harness.scheduler.counters.accepted_drafts == 0
    harness.backend.poison([*prompt(20, seed=1), *expected_answer(prompt(20, seed=1), 10)[:3]])
    assert harness.ask(prompt(20, seed=1), 10).end.reason is FinishReason.ERROR
    harness.assert_nothing_leaked()


@pytest.mark.parametrize("kind", [Residues, Forcing])
def test_a_grammar(kind: type[Residues]) -> None:
    """Each draft is drawn from the mask behind those before it; what a grammar forces comes between."""

    class Told(Guesses):
        def draft(self, tokens: Tokens, most: int) -> tuple[Tokens, list[float]]:
            luck, text = random.Random(len(tokens)), tokens.tolist()
            answer = constrained(text[:30], 80, forcing=kind is Forcing)[len(text) - 30 :][: min(most, luck.randrange(MOST))]
            return np.array([t if luck.random() < 0.8 else 7 for t in answer], np.int32), [0.99] * len(answer)

    harness = Recorder(journal=MOST + 1, speculator=Speculator(MOST, make_drafter=lambda request: Told(request, 0)))
    answer, other = (harness.submit(prompt(30, seed=seed), 60, constraint=kind()) for seed in (1, 2))
    harness.run()
    assert answer.tokens == constrained(prompt(30, seed=1), 60, forcing=kind is Forcing)
    assert other.tokens == constrained(prompt(30, seed=2), 60, forcing=kind is Forcing)
    counters = harness.scheduler.counters
    assert 5 < counters.accepted_drafts < counters.drafts
    assert (counters.forced_tokens > 0) is (kind is Forcing)


def test_a_failed_step_with_drafts() -> None:
    """The device fails in the middle of a check: the next request finds nothing of it."""
    harness = Recorder(journal=MOST + 1, speculator=guessing(right=1.0))
    answer = harness.submit(prompt(30), 20)
    for _ in range(4):
        harness.step()
    harness.backend.fail_next = RuntimeError("lost")
    harness.run()
    assert answer.end.reason is FinishReason.ERROR
    assert harness.ask(prompt(30), 20).tokens == expected_answer(prompt(30), 20)
    harness.assert_nothing_leaked()


def test_limits_of_a_request() -> None:
    """`most` bounds each step's drafts, 0 turns them off; drafts fewer than `least`, and unlikely ones, are not checked."""
    for limits, check in (
        (DraftLimits(0), lambda sizes: sizes == {0}),
        (DraftLimits(2), lambda sizes: sizes == {0, 1, 2}),
        (DraftLimits(MOST, least=3), lambda sizes: sizes == {0, 3, 4, 5}),
        (DraftLimits(MOST, least_chance=0.995), lambda sizes: sizes == {0}),
    ):
        harness = Recorder(journal=MOST + 1, speculator=guessing())
        harness.ask(prompt(30), 120, drafts=limits)
        sizes = {chunk.drafted for batch in harness.backend.batches for chunk in batch.chunks}
        assert check(sizes), (limits, sizes)


def times(fixed_s: float, token_s: float) -> StepTimes:
    known = StepTimes()
    for count in (1, 2, 4, 8) * 20:
        known.observe(count, fixed_s + token_s * count)
    return known


def test_step_times_are_a_line() -> None:
    """What was measured counts, not what was expected; a machine that becomes slower is noticed."""
    known = times(0.01, 0.002)
    assert known.line() == pytest.approx((0.01, 0.002), rel=0.02)
    for count in (1, 3) * 200:
        known.observe(count, 0.02 + 0.01 * count)
    assert known.line() == pytest.approx((0.02, 0.01), rel=0.05)


def test_lengths_give_the_most_tokens_per_second() -> None:
    """Against all possible lengths, tried one by one."""
    known, luck = times(0.01, 0.003), random.Random(1)
    for _ in range(200):
        proposals = [np.cumprod([luck.uniform(0.2, 1) for _ in range(luck.randrange(5))]).tolist() for _ in range(3)]
        fixed_s, token_s = known.line()

        def rate(lengths: tuple[int, ...]) -> float:
            expected = 3 + sum(sum(each[:length]) for each, length in zip(proposals, lengths, strict=True))  # noqa: B023
            return expected / (fixed_s + token_s * (3 + sum(lengths)))  # noqa: B023

        ways = np.ndindex(*(len(each) + 1 for each in proposals))
        best = max(rate(lengths) for lengths in ways)
        found = tuple(choose_lengths(proposals, 3, known, 99))
        assert rate(found) == pytest.approx(best if best >= 1.05 * rate((0, 0, 0)) else rate((0, 0, 0)))


def test_drafts_that_do_not_pay() -> None:
    """Where each token costs as much as a step, or none is ever right, nothing is drafted."""
    assert choose_lengths([[0.9, 0.8]], 1, times(0.0, 0.01), 99) == [0]
    assert choose_lengths([[0.1, 0.01]], 1, times(0.01, 0.005), 99) == [0]
    assert choose_lengths([[0.9, 0.8]], 1, times(0.01, 0.0001), 99) == [2]
    assert choose_lengths([[0.9, 0.8], [0.7]], 2, times(0.01, 0.0001), 2) == [2, 0]


def drafted(text: list[int], most: int, odds: Odds | None = None) -> list[int]:
    drafter = NgramDrafter(odds or Odds())
    drafter.advance(np.array(text, np.int32))
    return drafter.draft(np.array(text, np.int32), most)[0].tolist()


def test_ngrams() -> None:
    """What followed the longest earlier match, the latest of equals; a period goes on; shorter matches than three are none."""
    assert drafted([1, 2, 3, 4, 5, 9, 1, 2, 3], 3) == [4, 5, 9]
    assert drafted([0, 1, 2, 3, 4, 7, 1, 2, 3, 5, 0, 1, 2, 3], 2) == [4, 7]
    assert drafted([1, 2, 3, 4, 8, 1, 2, 3, 5, 8, 1, 2, 3], 1) == [5]
    assert drafted([6, 7, 8, 6, 7, 8], 5) == [6, 7, 8, 6, 7]
    assert drafted([1, 2, 3, 9, 2, 3], 3) == []
    assert drafted([5], 3) == []


def test_a_copy_is_followed_without_looking_again() -> None:
    """Along a copy each next token is proposed, more and more surely; behind a difference another place is looked for."""
    source = prompt(100, seed=3)
    drafter, chances = NgramDrafter(Odds()), []
    for count in range(3, 60):
        text = np.array(source + source[:count], np.int32)
        drafter.advance(text)
        tokens, chance = drafter.draft(text, 4)
        assert tokens.tolist() == source[count : count + 4]
        chances.append(chance[0])
    assert chances[-1] > 0.8 > chances[0]
    wrong = np.array(source + source[:60] + [998], np.int32)
    drafter.advance(wrong)
    assert drafter.draft(wrong, 4)[0].tolist() == []


def test_text_that_cannot_be_drafted_is_left_alone() -> None:
    """A text of three tokens' matches that never go on alike: soon nothing is checked, and steps are planned ahead again."""
    luck = random.Random(5)
    odds, text, hopeful = Odds(), [1, 2, 3], 0
    drafter = NgramDrafter(odds)
    for turn in range(300):
        text += [1, 2, 3] if turn % 4 == 0 else [10 + luck.randrange(900)]
        drafter.advance(np.array(text, np.int32))
        chances = drafter.draft(np.array(text, np.int32), 1)[1]
        hopeful += turn > 100 and bool(chances) and choose_lengths([chances], 1, times(0.01, 0.004), 99) != [0]
    assert hopeful == 0
