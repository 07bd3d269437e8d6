"""Texts of different spaces share nothing: not in the cache, not by waiting for each other, not through files."""

import random
from pathlib import Path

import pytest

from tests.fakes.fake_backend import expected_answer
from tests.slots.harness import Harness
from tests.slots.test_disk_tier import Server, prompt_of


@pytest.mark.parametrize("hybrid", [True, False])
def test_nothing_is_shared(hybrid: bool) -> None:
    """Each space starts from nothing, has all of its own afterwards, and leaves the others theirs."""
    driver = Harness(hybrid=hybrid)
    prompt = prompt_of(100)
    for space in ("", "a", "b"):
        first = driver.ask(prompt, space=space)
        assert (first.cached, first.end.cache.matched_tokens, first.end.cache.difference) == (0, 0, None)
    assert [driver.ask(prompt, space=space).cached for space in ("", "a", "b")] == [100] * 3
    driver.assert_nothing_leaked()
    assert list(driver.cache._tree._roots) == [""]


@pytest.mark.parametrize("hybrid", [True, False])
def test_nobody_waits_for_another_space(hybrid: bool) -> None:
    """Two at once: of one space the second one joins the first, of two each evaluates."""
    for spaces, cached in ((("a", "a"), [0, 100]), (("a", "b"), [0, 0]), (("", "b"), [0, 0])):
        driver = Harness(hybrid=hybrid, chunk=16)
        answers = [driver.submit(prompt_of(100), space=space) for space in spaces]
        driver.run()
        assert [answer.cached for answer in answers] == cached
        driver.assert_nothing_leaked()


@pytest.mark.parametrize("seed", range(20))
def test_any_load(seed: int) -> None:
    """Prompts with common beginnings in random spaces over too little memory, with cancels: what is cached was sent in the same
    space before, answers are right, and every check of the cache passes."""
    chance = random.Random(seed)
    host = chance.choice([0, 30])
    driver = Harness(
        hybrid=chance.random() < 0.7, num_pages=chance.choice([40, 200]), num_snapshots=12, host_pages=host, host_snapshots=host
    )
    base = prompt_of(150)
    sent: dict[str, list[tuple[int, ...]]] = {"": [], "a": [], "b": [], "c": []}
    answers = []
    for number in range(40):
        space = chance.choice(list(sent))
        cut = chance.randrange(10, 150)
        prompt = (*base[:cut], *prompt_of(chance.randrange(1, 60), seed=1000 * seed + number))
        known = [max_common(prompt, other) for other in sent[space]]
        answer = driver.submit(prompt, chance.randrange(6), space=space)
        answers.append((prompt, answer, max(known, default=0)))
        sent[space].append((*prompt, *expected_answer(prompt, 6)))
        for _ in range(chance.randrange(6)):
            driver.step()
        if chance.random() < 0.15:
            driver.cancel(answer)
    driver.run()
    for prompt, answer, known in answers:
        assert answer.cached <= known
        assert answer.tokens == list(expected_answer(prompt, 6))[: len(answer.tokens)]
    driver.assert_nothing_leaked()


def max_common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


@pytest.mark.parametrize("hybrid", [True, False])
async def test_never_on_disk(tmp_path: Path, hybrid: bool) -> None:
    """Neither written there nor looked up there, and no slot stands for it."""
    async with Server(tmp_path, hybrid=hybrid) as server:
        await server.ask(prompt_of(200), space="a", slot=0)
        await server.written()
        assert server.store.stats().states == server.store.stats().pages == 0
        assert server.files.held_tokens(0) == 0
        await server.ask(prompt_of(200))
        await server.written()
    async with Server(tmp_path, hybrid=hybrid) as server:
        end = await server.ask(prompt_of(200), space="a")
        assert (end.usage.cached_tokens, server.disk.stats().counters.fetches) == (0, 0)
        assert (await server.ask(prompt_of(200))).cache.tier == "disk"
