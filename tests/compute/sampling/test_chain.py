"""Choosing a token: each filter against its definition, ties, log probabilities, and independence from everything else."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from svc.compute.backend import Sampled
from svc.compute.sampling.best import best
from svc.compute.sampling.chain import sample
from svc.compute.sampling.params import SamplingParams

GREEDY = SamplingParams(temperature=0)
ROW = np.array([0.0, 3.0, 1.0, 3.0, 2.0, -1.0], np.float32)


def choose(
    logits: np.ndarray, params: SamplingParams, *, position: int = 0, choice: int = 0, banned: tuple[int, ...] = ()
) -> Sampled:
    return sample(np.asarray(logits, np.float32), params, banned, choice, position)


def support(logits: np.ndarray, params: SamplingParams, draws: int = 400) -> set[int]:
    """Every token that comes out in many draws."""
    return {choose(logits, params, position=position).token for position in range(draws)}


def test_greedy_takes_the_lowest_of_equals() -> None:
    assert choose(ROW, GREEDY).token == 1
    assert choose(ROW, GREEDY, banned=(1,)).token == 3
    assert choose(ROW, GREEDY, banned=(1, 3)).token == 4


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_not_finite(value: float, temperature: float) -> None:
    """One bad logit anywhere spoils the row, greedy or not: no token is drawn from noise."""
    row = ROW.copy()
    row[5] = value
    assert choose(row, SamplingParams(temperature=temperature, num_logprobs=2)) == Sampled(token=-1)


def test_frequencies_follow_the_softmax() -> None:
    """20,000 draws: each token as often as its probability says, within 5 standard deviations."""
    draws, params = 20_000, SamplingParams(temperature=0.7, seed=11)
    counts = Counter(choose(ROW, params, position=position).token for position in range(draws))
    weights = np.exp(ROW.astype(float) / 0.7)
    for token, probability in enumerate(weights / weights.sum()):
        deviation = math.sqrt(draws * probability * (1 - probability))
        assert abs(counts[token] - draws * probability) < 5 * deviation + 1


def test_top_k_breaks_ties_by_id() -> None:
    """Of 1 and 3, equal, one place goes to 1."""
    assert support(ROW, SamplingParams(top_k=1)) == {1}
    assert support(ROW, SamplingParams(top_k=2)) == {1, 3}
    assert support(ROW, SamplingParams(top_k=3)) == {1, 3, 4}
    assert support(ROW, SamplingParams(top_k=100)) == set(range(6))


def test_top_p_keeps_the_smallest_set() -> None:
    """Probabilities 1/2, 1/4, 1/8, 1/8: the fewest that reach the share, the first always."""
    row = np.log([0.125, 0.5, 0.125, 0.25])
    assert support(row, SamplingParams(top_p=0.0001)) == {1}
    assert support(row, SamplingParams(top_p=0.49)) == {1}
    assert support(row, SamplingParams(top_p=0.51)) == {1, 3}
    assert support(row, SamplingParams(top_p=0.76)) == {0, 1, 3}
    assert support(row, SamplingParams(top_p=0.99)) == {0, 1, 2, 3}


def test_min_p_is_relative_to_the_best() -> None:
    row = np.log([0.125, 0.5, 0.12, 0.255])
    assert support(row, SamplingParams(min_p=0.239)) == {0, 1, 2, 3}
    assert support(row, SamplingParams(min_p=0.249)) == {0, 1, 3}
    assert support(row, SamplingParams(min_p=0.6)) == {1}
    assert support(row, SamplingParams(min_p=1.0)) == {1}


def test_temperature_comes_first() -> None:
    """A high temperature flattens before top-p looks, so that more tokens are needed for the same share."""
    row = np.log([0.9, 0.05, 0.03, 0.02])
    assert support(row, SamplingParams(top_p=0.8)) == {0}
    assert support(row, SamplingParams(temperature=5.0, top_p=0.8)) == {0, 1, 2}


def test_filters_combine() -> None:
    """top-p counts shares of what top-k left: 0.5 and 0.25 become 2/3 and 1/3."""
    row = np.log([0.125, 0.5, 0.125, 0.25])
    assert support(row, SamplingParams(top_k=2, top_p=0.66)) == {1}
    assert support(row, SamplingParams(top_k=2, top_p=0.67)) == {1, 3}
    assert support(row, SamplingParams(top_k=2, top_p=0.9, min_p=0.6)) == {1}


def test_a_tiny_temperature_is_greedy() -> None:
    """Without an overflow on the way, with any filter."""
    row = np.array([0.0, 1.0, 0.999])
    with np.errstate(all="raise", under="ignore"):
        for params in (SamplingParams(1e-300), SamplingParams(1e-300, top_p=0.5), SamplingParams(1e-300, top_k=2, min_p=0.5)):
            assert support(row, params, draws=50) == {1}


@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(top_k=4), SamplingParams(top_p=0.999), SamplingParams(min_p=0.1)]
)
def test_banned_tokens_never_come(params: SamplingParams) -> None:
    """Not even if a filter would keep them."""
    row = np.array([9.0, 0.0, 0.0, 0.0, 9.0])
    tokens = {choose(row, params, position=position, banned=(0, 4)).token for position in range(300)}
    assert tokens == {1, 2, 3}


@settings(max_examples=200, deadline=None)
@given(
    logits=arrays(np.float32, st.integers(1, 40), elements=st.integers(-6, 6).map(float)),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.integers(0, 10),
    top_p=st.sampled_from([0.1, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 0.9]),
    position=st.integers(0, 1 << 20),
)
def test_against_the_definition(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float, position: int
) -> None:
    """The token is one that survives the filters written out plainly over a fully sorted list."""
    token = choose(logits, SamplingParams(temperature, top_k, top_p, min_p, seed=3), position=position).token
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if temperature == 0:
        assert token == order[0]
        return
    order = order[: top_k or None]
    weights = [math.exp((float(logits[i]) - float(logits[order[0]])) / temperature) for i in order]
    kept, share = [], 0.0
    for index, weight in zip(order, weights, strict=True):
        if kept and share >= top_p * sum(weights) * (1 + 1e-12):
            break
        if weight >= min_p * weights[0] * (1 - 1e-12):
            kept.append(index)
        share += weight
    assert token in kept


def test_logprobs_are_the_models_own() -> None:
    """Temperature, filters and bans do not touch them; ties in the list go by id."""
    expected = ROW.astype(float) - np.log(np.exp(ROW.astype(float)).sum())
    params = SamplingParams(temperature=0.3, top_k=1, num_logprobs=4)
    result = choose(ROW, params, banned=(1,))
    assert result.token == 3
    assert result.logprob == pytest.approx(expected[3], abs=1e-12)
    assert [token for token, _ in result.top] == [1, 3, 4, 2]
    assert [value for _, value in result.top] == pytest.approx(expected[[1, 3, 4, 2]], abs=1e-12)
    assert choose(ROW, SamplingParams(temperature=0, num_logprobs=0)).top == ()
    assert choose(ROW, SamplingParams(temperature=0)) == Sampled(token=1)
    assert len(choose(ROW, SamplingParams(temperature=0, num_logprobs=20)).top) == len(ROW)


def test_depends_on_seed_choice_and_position_only() -> None:
    """The same three give the same token after any other samples; each of them matters."""
    row = np.zeros(1000)
    params = SamplingParams(seed=5)
    first = choose(row, params, position=7, choice=1)
    choose(row, SamplingParams(seed=99), position=3)
    assert choose(row, params, position=7, choice=1) == first
    others = [(6, 7, 1), (5, 8, 1), (5, 7, 2)]
    assert all(choose(row, SamplingParams(seed=s), position=p, choice=c) != first for s, p, c in others)


def test_a_last_bit_does_not_change_the_token() -> None:
    """Two near-equal logits that change places move no boundary far: the draw goes by id, not by rank."""
    row = np.random.default_rng(0).normal(0, 1, 500)
    row[[3, 400]] = 4.0
    up, down = row.copy(), row.copy()
    up[3] += 1e-6
    down[400] += 1e-6
    params = SamplingParams(top_k=50)
    same = [choose(up, params, position=p) == choose(down, params, position=p) for p in range(500)]
    assert all(same)


def test_logits_are_not_changed() -> None:
    row = ROW.copy()
    row.flags.writeable = False
    sample(row, SamplingParams(top_k=2, num_logprobs=3), (1, 2), 0, 0)
    np.testing.assert_array_equal(row, ROW)


@pytest.mark.parametrize("count", [1, 2, 3, 6, 10])
def test_best_of_equal_values(count: int) -> None:
    assert best(np.zeros(6), count).tolist() == list(range(6))[:count]


def test_large_vocabulary() -> None:
    """A quarter of a million logits, nearly flat, so that top-p needs most of them: the kept share is right."""
    row = np.random.default_rng(1).normal(0, 0.1, 250_000).astype(np.float32)
    weights = np.exp(row.astype(float))
    threshold = np.sort(weights)[::-1][np.searchsorted(np.cumsum(np.sort(weights)[::-1]), 0.5 * weights.sum())]
    tokens = [choose(row, SamplingParams(top_p=0.5), position=position).token for position in range(20)]
    assert all(weights[token] >= threshold for token in tokens)
    assert len(set(tokens)) == 20
