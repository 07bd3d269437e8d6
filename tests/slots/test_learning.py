"""Sampling that learns from token to token: each step gets exactly what the step before taught, whatever the scheduler does."""

import random

import pytest

from svc.compute.sampling.params import SamplingParams
from svc.compute.sampling.steps import Mirostat, SamplingSteps
from svc.slots.events import TokenText
from tests.fakes.fake_backend import VOCABULARY, expected_answer, next_token
from tests.slots.harness import Harness

LEARNING = SamplingParams(temperature=0, steps=SamplingSteps(mirostat=Mirostat(2, 5.0, 0.1)))


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(VOCABULARY), k=length)


def by_definition(text: list[int], length: int) -> list[int]:
    """The fake device adds the sum of the answer so far, which only `learned` says, to the token that it would give."""
    tokens: list[int] = []
    for _ in range(length):
        tokens.append((next_token([*text, *tokens], LEARNING, 0) + sum(tokens)) % VOCABULARY)
    return tokens


@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize("ahead", [True, False])
def test_beside_others(hybrid: bool, ahead: bool) -> None:
    """As alone; steps are planned ahead again once none is left that learns."""
    harness = Harness(hybrid=hybrid, ahead=ahead)
    texts = [prompt(length, seed=length) for length in (5, 40, 70)]
    plain = harness.submit(prompt(30, seed=9), 60, on_token=lambda token: TokenText("", False), text_ends=False)
    learning = [harness.submit(text, 12, LEARNING) for text in texts]
    harness.run()
    assert [answer.tokens for answer in learning] == [by_definition(text, 12) for text in texts]
    assert plain.tokens == expected_answer(prompt(30, seed=9), 60)
    assert (harness.num_ahead > 0) is ahead
    harness.assert_nothing_leaked()


@pytest.mark.parametrize("hybrid", [True, False])
def test_after_preemption(hybrid: bool) -> None:
    harness = Harness(hybrid=hybrid, num_pages=26, num_rows=4, context=300)
    texts = [prompt(30, seed=seed) for seed in range(4)]
    answers = [harness.submit(text, 150, LEARNING) for text in texts]
    harness.run()
    assert harness.scheduler.counters.preemptions > 0
    assert [answer.tokens for answer in answers] == [by_definition(text, 150) for text in texts]
    harness.assert_nothing_leaked()
