"""Rates of reuse: what the counts and priors make of classes and ages."""

import numpy as np
import pytest

from svc.memory.placement import WantedKind
from svc.memory.reuse import EDGES_S, NUM_AGES, NUM_CLASSES, PRIORS, Past, ReuseStatistics, age_index, class_of, count_ages, past_of

NOBODY = np.zeros((NUM_CLASSES, NUM_AGES))
ANSWER, SPARSE = class_of(WantedKind.ANSWER_END), class_of(WantedKind.SPARSE)


def test_every_kind_has_priors() -> None:
    """A probability for each kind and past; classes are all different, and know their past."""
    assert set(PRIORS) == set(WantedKind)
    assert all(0 < ever < 1 for row in PRIORS.values() for ever in row)
    classes = [class_of(kind, past) for kind in WantedKind for past in Past]
    assert sorted(classes) == list(range(NUM_CLASSES))
    assert [past_of(each) for each in classes[:3]] == list(Past)


@pytest.mark.parametrize(("age_s", "index"), [(-1.0, 0), (0.0, 0), (0.49, 0), (0.5, 1), (1.0, 2), (63.9, 7), (64.0, 8), (1e9, 19)])
def test_ages_are_octaves(age_s: float, index: int) -> None:
    assert age_index(age_s) == index
    assert EDGES_S[index] <= max(age_s, 0.0)
    counts = count_ages(np.array([3]), np.array([max(age_s, 0.0)]))
    assert counts[3, index] == counts.sum() == 1


def test_priors_order_the_kinds_and_fall_with_age() -> None:
    """Before anything is counted: likelier kinds first, a text that has moved on later, and the older the later."""
    rate = ReuseStatistics().rate
    fresh = [
        rate(class_of(WantedKind.ANSWER_END), 0.0),
        rate(class_of(WantedKind.PROMPT_END), 0.0),
        rate(class_of(WantedKind.MESSAGE_START), 0.0),
        rate(class_of(WantedKind.SPARSE), 0.0),
    ]
    assert fresh == sorted(fresh, reverse=True)
    assert rate(class_of(WantedKind.ANSWER_END, Past.PASSED), 0.0) < rate(class_of(WantedKind.ANSWER_END), 0.0)
    by_age = [rate(ANSWER, age) for age in EDGES_S]
    assert by_age == sorted(by_age, reverse=True)
    assert by_age[0] > 10 * by_age[12]


def test_counts_move_the_rates_of_their_class_only() -> None:
    """A kind that is always used beats its prior, one that never is falls below it; the others stay."""
    statistics = ReuseStatistics()
    before = {each: statistics.rate(each, 0.0) for each in range(NUM_CLASSES)}
    for _ in range(200):
        statistics.use(SPARSE, 3.0)
        statistics.end(ANSWER, 3000.0)
    statistics.refresh(NOBODY)
    assert statistics.rate(SPARSE, 0.0) > 10 * before[SPARSE]
    assert statistics.rate(ANSWER, 0.0) < before[ANSWER] / 4
    assert statistics.rate(SPARSE, 0.0) > statistics.rate(ANSWER, 0.0)
    assert all(statistics.rate(each, 0.0) == before[each] for each in before if each not in (SPARSE, ANSWER))


def test_entries_that_wait_count_against_their_class() -> None:
    """Nobody has used them yet: the rate falls, although nothing has ended."""
    statistics = ReuseStatistics()
    before = statistics.rate(ANSWER, 0.0)
    statistics.refresh(count_ages(np.full(500, ANSWER), np.full(500, 4000.0)))
    assert statistics.rate(ANSWER, 0.0) < before / 4


def test_in_a_cycle_the_freshest_waits_longest() -> None:
    """All uses after a minute: the rate grows with the age until then, and is one use in the time that is left."""
    statistics = ReuseStatistics()
    for _ in range(2000):
        statistics.use(ANSWER, 60.0)
    statistics.refresh(NOBODY)
    rates = [statistics.rate(ANSWER, age) for age in (0.0, 8.0, 16.0, 32.0)]
    assert rates == sorted(rates)
    assert 1 / 64 < rates[0] < 1 / 32  # used between 32 and 64 seconds
    assert statistics.rate(ANSWER, 32.0) > 2 * rates[0]
    assert statistics.rate(ANSWER, 128.0) < rates[0] / 10


def test_without_memory_the_age_does_not_matter() -> None:
    """Uses that come at random, two in a hundred seconds: the rate is about that, at all ages up to a few minutes."""
    statistics = ReuseStatistics()
    for age in np.random.default_rng(1).exponential(50.0, 20_000).tolist():
        statistics.use(ANSWER, age)
    statistics.refresh(NOBODY)
    for age in (0.0, 1.0, 10.0, 60.0, 130.0):
        assert statistics.rate(ANSWER, age) == pytest.approx(0.02, rel=0.3)


def test_refresh_is_due_after_some_uses_and_old_counts_fade() -> None:
    """A change of load is followed: after as many uses again as are kept, what came before weighs little."""
    statistics = ReuseStatistics()
    assert not statistics.due
    for _ in range(30_000):
        statistics.use(ANSWER, 3.0)
    assert statistics.due
    statistics.refresh(NOBODY)
    assert not statistics.due
    fast = statistics.rate(ANSWER, 0.0)
    for _ in range(4):
        for _ in range(20_000):
            statistics.use(ANSWER, 300.0)
        statistics.refresh(NOBODY)
    assert statistics.rate(ANSWER, 0.0) < fast / 10
