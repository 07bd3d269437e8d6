"""What a request is told of the cache: where known text goes on otherwise, whose that may be, and where it resumed from."""

import pytest

from svc.memory.placement import WantedKind
from svc.slots.events import Difference
from tests.slots.harness import Harness

COMMON = tuple(range(100))
OURS = (*COMMON, *range(200, 260))
OTHER = (*COMMON, *range(300, 360))


@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize(
    ("first", "second", "shown"), [("ann", "ann", tuple(range(200, 212))), ("ann", "bob", ()), ("", "", ()), ("ann", "", ())]
)
def test_the_other_text_is_shown_to_its_owner_only(hybrid: bool, first: str, second: str, shown: tuple[int, ...]) -> None:
    """The position is told to everybody; a request without an owner is shown nothing, even of others without one."""
    driver = Harness(hybrid=hybrid)
    driver.ask(OURS, owner=first)
    report = driver.ask(OTHER, owner=second).end.cache
    assert report.matched_tokens == 100
    assert report.difference == Difference(100, shown)


@pytest.mark.parametrize("hybrid", [True, False])
def test_an_edge_of_two_owners_is_shown_to_none(hybrid: bool) -> None:
    """Bob's text goes on where Ann's ended. When the snapshot between is gone, one edge has both."""
    driver = Harness(hybrid=hybrid, num_snapshots=64)
    driver.ask(COMMON, 1, owner="ann")
    driver.ask(OURS, 1, owner="bob")
    tree = driver.cache._tree
    for node in [node for node in tree.nodes() if node.end <= 100 and node.snapshot_id is not None]:
        driver.cache._evictor.release_snapshot(tree.detach(node))
    for token, owner in enumerate(("ann", "bob"), 777):
        report = driver.ask((*COMMON[:50], token), 1, owner=owner).end.cache
        assert report.difference == Difference(50)


def test_of_several_continuations_the_last_used_is_told() -> None:
    driver = Harness()
    for start in (200, 300, 400):
        driver.ask((*COMMON, *range(start, start + 60)), owner="ann")
    driver.ask((*COMMON, *range(200, 260)), owner="ann")
    driver.ask((*COMMON, *range(500, 560)), owner="bob")
    assert driver.ask((*COMMON, 9, 9, 9), owner="ann").end.cache.difference == Difference(100, tuple(range(200, 212)))


def test_nothing_differs() -> None:
    """Where all is known, where known text ends and the prompt goes on, and where nothing was looked up."""
    driver = Harness()
    answer = driver.ask(OURS)
    assert answer.end.cache.difference is None
    assert driver.ask(OURS).end.cache.difference is None
    assert driver.ask((*OURS, *answer.tokens, 5, 5)).end.cache.difference is None
    assert driver.ask(OTHER, use_cache=False).end.cache.difference is None


def test_tiers() -> None:
    """From the device what is there; from the host what was evicted; nothing from nowhere."""
    driver = Harness(num_pages=24, num_snapshots=6, host_pages=64, host_snapshots=64)
    prompts = [tuple(range(start, start + 150)) for start in range(0, 750, 150)]
    assert [driver.ask(prompt).end.cache.tier for prompt in prompts] == [""] * 5
    assert driver.ask(prompts[-1]).end.cache.tier == "device"
    answer = driver.ask(prompts[0])
    assert (answer.end.cache.tier, answer.cached) == ("host", 150)


def test_captures_are_counted_by_kind() -> None:
    """Those of a prompt and of the end of its answer, the one that a second turn resumes at, and those evicted for it."""
    driver = Harness(num_snapshots=4)
    answer = driver.ask(OURS, 6)
    counters = driver.cache.stats().counters
    assert counters.published[WantedKind.PROMPT_END] == counters.published[WantedKind.ANSWER_END] == 1
    driver.ask((*OURS, *answer.tokens, 5, 5, 5), 6)
    counters = driver.cache.stats().counters
    assert {kind: count for kind, count in counters.resumed.items() if count} == {WantedKind.ANSWER_END: 1}
    for start in range(300, 800, 100):
        driver.ask(tuple(range(start, start + 100)), 6)
    assert sum(driver.cache.stats().counters.evicted.values()) >= 5
    driver.assert_nothing_leaked()
