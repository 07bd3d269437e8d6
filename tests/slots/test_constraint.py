"""Answers held to a constraint: each mask is that of exactly the tokens before, whatever the scheduler does."""

import random
from copy import copy
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from svc.compute.sampling.params import SamplingParams
from svc.slots.events import FinishReason, TokenText
from tests.fakes.fake_backend import VOCABULARY, expected_answer, next_token
from tests.slots.harness import GREEDY, Answer, Harness

WORDS = -(-VOCABULARY // 32)


class Residues:
    """Allows tokens whose residue is that of the sum of all before: one missed, doubled or late shows in all that follow."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def accept(self, token: int) -> None:
        self.tokens.append(token)

    def mask(self) -> NDArray[np.uint32]:
        allowed = np.zeros(32 * WORDS, np.bool_)
        allowed[self.residue : VOCABULARY : 7] = True
        return np.packbits(allowed, bitorder="little").view(np.uint32)

    def forced_after(self, token: int) -> list[int]:
        return []

    def fork(self) -> "Residues":
        fork = copy(self)
        fork.tokens = self.tokens.copy()
        return fork

    @property
    def residue(self) -> int:
        return sum(self.tokens) % 7


class Forcing(Residues):
    """After some tokens, others must follow."""

    def forced_after(self, token: int) -> list[int]:
        return follow([*self.tokens, token])


def follow(tokens: list[int]) -> list[int]:
    """What must follow `tokens`: up to five, often none."""
    total = sum(tokens)
    return [(31 * total + n) % VOCABULARY for n in range(max(0, total % 11 - 5))]


class Nothing(Residues):
    """Allows three tokens and then none."""

    def mask(self) -> NDArray[np.uint32]:
        return super().mask() * np.uint32(len(self.tokens) < 3)


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(VOCABULARY), k=length)


def submit(harness: Harness, text: list[int], length: int, constraint: Residues) -> Answer:
    fields: dict[str, Any] = {"on_token": lambda token: TokenText("", False), "text_ends": False}
    return harness.submit(text, length, constraint=constraint, **fields)


def constrained(text: list[int], length: int, *, forcing: bool = False) -> list[int]:
    """The answer by its definition."""
    tokens: list[int] = []
    while len(tokens) < length:
        allowed = range(sum(tokens) % 7, VOCABULARY, 7)
        tokens.append(allowed[next_token([*text, *tokens], GREEDY, 0) % len(allowed)])
        tokens += follow(tokens) if forcing else []
    return tokens[:length]


@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize("ahead", [True, False])
def test_beside_others(hybrid: bool, ahead: bool) -> None:
    """Plain answers beside constrained ones: each as it is alone; steps are planned ahead again once no constrained one is left."""
    harness = Harness(hybrid=hybrid, ahead=ahead)
    texts = [prompt(length, seed=length) for length in (5, 40, 70)]
    plain = harness.submit(prompt(30, seed=9), 60, on_token=lambda token: TokenText("", False), text_ends=False)
    held = [submit(harness, text, 12, Residues()) for text in texts]
    harness.run()
    assert [answer.tokens for answer in held] == [constrained(text, 12) for text in texts]
    assert plain.tokens == expected_answer(prompt(30, seed=9), 60)
    assert (harness.num_ahead > 0) is ahead
    harness.assert_nothing_leaked()


@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize("kind", [Residues, Forcing])
def test_after_preemption(kind: type[Residues], hybrid: bool) -> None:
    """A constrained answer that loses its pages, among forced tokens too, and comes back goes on where it was."""
    harness = Harness(hybrid=hybrid, num_pages=26, num_rows=4, context=300)
    texts = [prompt(30, seed=seed) for seed in range(4)]
    held = [submit(harness, text, 150, kind()) for text in texts]
    harness.run()
    assert harness.scheduler.counters.preemptions > 0
    assert [answer.tokens for answer in held] == [constrained(text, 150, forcing=kind is Forcing) for text in texts]
    harness.assert_nothing_leaked()


@pytest.mark.parametrize("hybrid", [True, False])
def test_no_token_left(hybrid: bool) -> None:
    """The answer ends with an error that says so; its neighbour goes on, and what is cached is trusted as before."""
    harness = Harness(hybrid=hybrid)
    earlier = harness.submit(prompt(20), 1)
    harness.run()
    stuck = submit(harness, prompt(20), 12, Nothing())
    beside = submit(harness, prompt(25, seed=1), 12, Residues())
    harness.run()
    assert (len(stuck.tokens), stuck.end.reason) == (3, FinishReason.ERROR)
    assert "the grammar of the answer left no token" in (stuck.end.error or "")
    assert beside.tokens == constrained(prompt(25, seed=1), 12)
    again = harness.submit(prompt(20), 1)
    harness.run()
    assert again.tokens == earlier.tokens
    assert again.cached >= 16
    harness.assert_nothing_leaked()


@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize("ahead", [True, False])
def test_forced_tokens_take_no_step(hybrid: bool, ahead: bool) -> None:
    """Tokens that must come are part of the answer at once and evaluated together; whatever length cuts them off, nothing leaks."""
    harness = Harness(hybrid=hybrid, ahead=ahead)
    lengths = range(9, 25)
    held = {length: submit(harness, prompt(30, seed=length), length, Forcing()) for length in lengths}
    plain = harness.submit(prompt(30, seed=9), 40, on_token=lambda token: TokenText("", False), text_ends=False)
    harness.run()
    for length, answer in held.items():
        assert answer.tokens == constrained(prompt(30, seed=length), length, forcing=True)
        assert answer.end.reason is FinishReason.LENGTH
    assert plain.tokens == expected_answer(prompt(30, seed=9), 40)
    counters = harness.scheduler.counters
    assert counters.forced_tokens > 30
    assert counters.generated_tokens == sum(lengths) + 40
    harness.assert_nothing_leaked()


def test_an_answer_that_ends_among_forced_tokens() -> None:
    """A stop string may be complete in the middle of them: the rest is dropped, and the next turn resumes what was evaluated."""
    harness = Harness()
    seen: list[int] = []

    def on_token(token: int) -> TokenText:
        seen.append(token)
        return TokenText("", len(seen) == stop_at)

    whole = constrained(prompt(30), 60, forcing=True)
    stop_at = next(n for n in range(1, 60) if follow(whole[:n]) and len(follow(whole[:n])) > 2) + 2
    answer = harness.submit(prompt(30), 60, constraint=Forcing(), on_token=on_token, text_ends=True)
    harness.run()
    assert (answer.tokens, answer.end.reason) == (whole[:stop_at], FinishReason.STOP)
    harness.assert_nothing_leaked()


def test_nothing_is_forced_where_every_draw_counts() -> None:
    """Log probabilities are wanted of every token: then every token is drawn."""
    harness = Harness()
    fields: dict[str, Any] = {
        "on_token": lambda token: TokenText("", False),
        "params": SamplingParams(temperature=0.0, num_logprobs=0),
    }
    harness.submit(prompt(30), 20, constraint=Forcing(), **fields)
    harness.run()
    assert harness.scheduler.counters.forced_tokens == 0
