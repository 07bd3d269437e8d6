"""Pins of the operator: kept while memory is short, given up before any request fails, and never beyond their budget."""

import contextlib
import random

import numpy as np
import pytest

from svc.errors import RequestError
from svc.slots.operator_pins import OperatorPins, Pin
from tests.fakes.fake_backend import expected_answer
from tests.slots.harness import Harness


def prompt_of(length: int, seed: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(900), k=length))


def pin(driver: Harness, tokens: tuple[int, ...], name: str = "") -> Pin:
    """As the endpoint does it."""
    driver.ask(tokens, 0)
    pin = driver.scheduler.joins.pins.add(np.array(tokens, np.int32), name, created=1)
    assert pin is not None
    driver.cache.check()
    return pin


@pytest.mark.parametrize("hybrid", [True, False])
def test_a_pin_outlives_what_would_evict_it(hybrid: bool) -> None:
    """Twenty other prompts pass through a memory for four. Without the pin the prefix is gone, with it all of it is cached."""
    prefix = prompt_of(100, seed=1)
    cached = []
    for pinned in (False, True):
        driver = Harness(hybrid=hybrid, num_pages=40, num_snapshots=8)
        if pinned:
            pin(driver, prefix)
        else:
            driver.ask(prefix, 0)
        for seed in range(2, 22):
            driver.ask(prompt_of(140, seed))
        cached.append(driver.ask((*prefix, 7, 7, 7)).cached)
        driver.scheduler.joins.pins.release_all()
        driver.assert_nothing_leaked()
    assert cached == [0, 100]


@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize("host", [(0, 0), (16, 8)])
def test_a_request_that_needs_all_pages_gets_them(hybrid: bool, host: tuple[int, int]) -> None:
    """Of a context's full length, alone: the latest pin goes first, and as many as must."""
    reports: list[tuple[str, str]] = []
    driver = Harness(hybrid=hybrid, num_pages=40, num_snapshots=8, host_pages=host[0], host_snapshots=host[1])
    pins = driver.scheduler.joins.pins
    pins._report = lambda event, reason: reports.append((event, reason))
    first, second = pin(driver, prompt_of(60, seed=1), "first"), pin(driver, prompt_of(60, seed=2))
    prompt = prompt_of(35 * 16, seed=3)
    assert driver.ask(prompt, 4).tokens == expected_answer(prompt, 4)
    assert [kept.id for kept in pins.listed()] == [first.id]
    assert [event for event, _ in reports] == ["pin_given_up"]
    assert f"pin {second.id} " in reports[0][1]
    prompt = prompt_of(driver.scheduler.context_tokens, seed=4)
    assert driver.ask(prompt, 1).tokens == expected_answer(prompt, 1)
    assert (len(pins), pins.num_given_up) == (0, 2)
    driver.assert_nothing_leaked()


@pytest.mark.parametrize("seed", range(12))
def test_pins_at_any_moment(seed: int) -> None:
    """Requests, pins and ends of pins in random order over a memory that is too small: every answer is right, nobody
    waits for ever, nothing leaks."""
    chance = random.Random(seed)
    driver = Harness(hybrid=chance.random() < 0.7, num_pages=chance.choice([24, 40]), num_snapshots=8)
    pins = driver.scheduler.joins.pins
    prompts = [prompt_of(chance.randrange(20, 300), n) for n in range(8)]
    answers = []
    for _ in range(60):
        match chance.randrange(4):
            case 0:
                prompt = chance.choice(prompts)
                answers.append((prompt, driver.submit(prompt, chance.randrange(0, 30))))
            case 1:
                tokens = np.array(chance.choice(prompts), np.int32)
                with contextlib.suppress(RequestError):  # beyond the budget
                    pins.add(tokens, "", 1)
            case 2 if len(pins):
                pins.remove(chance.choice([kept.id for kept in pins.listed()]))
            case _:
                for _ in range(chance.randrange(8)):
                    driver.step()
    driver.run()
    for prompt, answer in answers:
        request = answer.sequence.request
        assert answer.tokens == list(expected_answer(prompt, request.max_tokens))
    pins.release_all()
    driver.assert_nothing_leaked()


def test_budget() -> None:
    """In bytes, with shared pages counted once; whatever it is, half of the pages and of the snapshots. Nothing stays pinned of
    what was refused."""
    driver = Harness(num_pages=64, num_snapshots=16)
    layout = driver.plan.layout
    pins = OperatorPins(driver.cache, budget_bytes=9 * layout.page_bytes + 2 * layout.state_bytes)
    driver.scheduler.joins.pins = pins
    common = prompt_of(96, seed=1)  # 6 pages
    first, second = pin(driver, common), pin(driver, (*common, *prompt_of(40, seed=2)))  # 9 pages
    assert (first.num_bytes, pins.stats().used_bytes) == (6 * layout.page_bytes + layout.state_bytes, pins.budget_bytes)
    held = driver.cache.stats().pinned_pages
    with pytest.raises(RequestError, match="pin_bytes allows") as refused:
        pin(driver, prompt_of(16, seed=3))
    assert refused.value.code == "pin_budget"
    assert driver.cache.stats().pinned_pages == held
    pins.check_length(9 * 16)
    with pytest.raises(RequestError, match="pin_bytes allows"):
        pins.check_length(12 * 16)
    assert pin(driver, common) is first
    assert pins.remove(second.id)
    assert not pins.remove(second.id)
    pin(driver, prompt_of(16, seed=3))
    generous = OperatorPins(driver.cache, budget_bytes=1 << 40)
    generous.check_length(32 * 16)
    with pytest.raises(RequestError, match="at most 32 and 8"):
        generous.check_length(33 * 16)


def test_pins_go_with_what_they_pinned() -> None:
    """A cache that was cleared, because the device is suspected, has no pins; their memory is free."""
    driver = Harness()
    pin(driver, prompt_of(100, seed=1))
    driver.scheduler.fail_all("suspected", 1.0)
    assert driver.scheduler.joins.pins.listed() == []
    pin(driver, prompt_of(100, seed=1))
    driver.cache.clear()
    assert driver.scheduler.joins.pins.stats().num_pins == 0
    driver.assert_nothing_leaked()
