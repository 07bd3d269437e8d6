"""On the cpu backend an answer with drafts has the bits of one without: tokens, log probabilities, and every page and state kept.

Each draft is right with some chance, so that all numbers of accepted drafts occur.
"""

import random
from typing import Any

import numpy as np
import pytest

from svc.compute.backend import Slab
from svc.compute.sampling.params import SamplingParams
from svc.memory.lease import Reservation
from svc.slots.request import Request
from svc.slots.speculation import Tokens
from svc.slots.speculator import Speculator
from tests.exactness.conftest import ALL_MODELS, HYBRID_MODELS
from tests.exactness.test_bit_for_bit import GREEDY, PENALIZED, SAMPLED, Fresh, bits, prompt
from tests.slots.harness import Answer, Driver

MOST = 6
Text = tuple[int, ...]


class Told:
    """A drafter that has been told the answer, and is right about each token with a chance of four in five."""

    name = "told"

    def __init__(self, answer: list[int]) -> None:
        self._answer = answer

    def advance(self, tokens: Tokens) -> None:
        pass

    def draft(self, tokens: Tokens, most: int) -> tuple[Tokens, list[float]]:
        luck = random.Random(len(tokens) + sum(tokens.tolist()))
        rest = self._answer[len(tokens) :][: min(most, luck.randrange(MOST + 1))]
        return np.array([t if luck.random() < 0.8 else 5 for t in rest], np.int32), [0.9] * len(rest)


class Kept:
    """Notes the bytes of each state that is published, and of the pages before it."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.known: dict[Text, tuple[bytes, bytes]] = {}
        publish = driver.cache._publish

        def note(reservation: Reservation, now: float) -> None:
            text, layout = reservation.lease.tokens.array[: reservation.position], driver.plan.layout
            state = driver._backend.read_blocks(Slab.SNAPSHOTS, [reservation.place]).tobytes()
            places = reservation.lease.table.array(reservation.position).tolist()
            pages = driver._backend.read_blocks(Slab.PAGES, places).view(np.uint16)
            pages = pages.reshape(len(places), -1, layout.page_tokens, layout.kv_row_elements)
            rows = np.concatenate(list(pages), axis=1)[:, : reservation.position]
            found = state, rows.tobytes()
            assert self.known.setdefault(tuple(text.tolist()), found) == found
            publish(reservation, now)

        driver.cache._publish = note  # type: ignore[method-assign]


def run(kept: Kept, requests: list[tuple[list[int], int, SamplingParams]]) -> list[Answer]:
    """Each starts some steps after the one before, so that prompts, drafts and plain tokens share steps."""
    answers = []
    for text, most, params in requests:
        answers.append(kept.driver.submit(text, most, params))
        for _ in range(3):
            kept.driver.step()
    kept.driver.run()
    return answers


def told(answers: dict[str, list[int]]) -> Speculator:
    def drafter(request: Request) -> Told:
        return Told([*request.prompt, *answers.get(f"{request.prompt} {request.params}", [])])

    return Speculator(MOST, capture_every=5, make_drafter=drafter)


@pytest.mark.parametrize("model", ALL_MODELS)
def test_every_bit(fresh: Fresh, model: str) -> None:
    """Greedy, sampled and penalized answers, several at once."""
    requests = [(prompt(10 + 17 * i, seed=i), 24, (GREEDY, SAMPLED, PENALIZED)[i % 3]) for i in range(6)]
    plain = Kept(fresh(model, capture_every=5))
    expected = run(plain, requests)
    known = {f"{tuple(text)} {params}": answer.tokens for (text, _, params), answer in zip(requests, expected, strict=True)}
    drafted = Kept(fresh(model, capture_every=5, journal_tokens=MOST + 1, speculator=told(known)))
    found = run(drafted, requests)
    assert [bits(answer) for answer in found] == [bits(answer) for answer in expected]
    assert drafted.known == plain.known
    counters = drafted.driver.scheduler.counters
    assert 20 < counters.accepted_drafts < counters.drafts


@pytest.mark.parametrize("sizes", [{"num_pages": 24}, {"num_pages": 24, "num_host_pages": 60, "num_host_snapshots": 20}], ids=str)
@pytest.mark.parametrize("model", [HYBRID_MODELS[1], "tiny-qwen3-Q8_0"])
def test_tight_memory(fresh: Fresh, model: str, sizes: dict[str, int]) -> None:
    """Preempted in the middle of answers and resumed: still the same bits."""
    requests = [(prompt(10 + 9 * i, seed=i), 110, (GREEDY, SAMPLED)[i % 2]) for i in range(5)]
    expected = [fresh(model).ask(text, most, params=params) for text, most, params in requests]
    known = {f"{tuple(text)} {params}": answer.tokens for (text, _, params), answer in zip(requests, expected, strict=True)}
    settings: dict[str, Any] = {"num_snapshots": 10, "journal_tokens": MOST + 1, "speculator": told(known), **sizes}
    drafted = Kept(fresh(model, **settings))
    assert [bits(answer) for answer in run(drafted, requests)] == [bits(answer) for answer in expected]
    assert drafted.driver.scheduler.counters.preemptions > 0
    assert drafted.driver.scheduler.counters.accepted_drafts > 100
    drafted.driver.assert_nothing_leaked()


@pytest.mark.parametrize("model", HYBRID_MODELS[:2])
def test_the_next_turn(fresh: Fresh, model: str) -> None:
    """What an answer with drafts leaves behind is resumed from, with the bits of a cold run; cancelled in the middle as well."""
    text = prompt(40)
    answer = fresh(model).ask(text, 30, params=GREEDY)
    for steps in range(2, 9):
        known = {f"{tuple(text)} {GREEDY}": answer.tokens}
        driver = fresh(model, journal_tokens=MOST + 1, speculator=told(known))
        first = driver.submit(text, 30, GREEDY)
        for _ in range(steps):
            driver.step()
        driver.cancel(first)
        driver.run()
        turn = text + first.tokens + prompt(9, seed=1)
        second = driver.ask(turn, 6, params=SAMPLED)
        assert second.cached >= 39 + len(first.tokens)
        assert bits(second) == bits(fresh(model).ask(turn, 6, params=SAMPLED))
