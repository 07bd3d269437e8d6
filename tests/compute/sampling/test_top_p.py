"""The fast sums of top_p.py and inverse_cdf.py against their definitions: the same index and nucleus, wherever the target falls."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from svc.compute.sampling import chain, inverse_cdf
from svc.compute.sampling import top_p as top_p_module
from svc.compute.sampling.inverse_cdf import BLOCK, pick, pick_defined
from svc.compute.sampling.params import SamplingParams
from svc.compute.sampling.top_p import nucleus, nucleus_defined, scaled_below_best

SIZE = 5 * BLOCK + 17
Row = NDArray[np.float32]


def _spikes(random: np.random.Generator, size: int) -> Row:
    """As models give them: a few tokens far above a bell curve."""
    row = random.normal(0, 2.5, size)
    row[random.integers(0, size, 5)] = random.uniform(12, 25, 5)
    return row.astype(np.float32)


def _tail_that_adds_up(random: np.random.Generator, size: int) -> Row:
    """One token near the end, behind thousands that alone are below the rounding of its weight and together are not."""
    row = np.full(size, -37.0)
    row[size - 3] = 0
    return row.astype(np.float32)


ROWS: dict[str, Callable[[np.random.Generator, int], Row]] = {
    "spikes": _spikes,
    "flat": lambda random, size: np.zeros(size, np.float32),
    "nearly flat": lambda random, size: random.normal(0, 0.01, size).astype(np.float32),
    "few values": lambda random, size: random.integers(-4, 4, size).astype(np.float32),
    "two heights": lambda random, size: np.where(np.arange(size) % 3, 0, 30).astype(np.float32),
    "tail that adds up": _tail_that_adds_up,
    "beyond exp": lambda random, size: random.normal(0, 600, size).astype(np.float32),
    "one beyond all": lambda random, size: np.where(np.arange(size) == 9, 3e38, random.normal(0, 1, size)).astype(np.float32),
}


@pytest.fixture(params=ROWS)
def row(request: pytest.FixtureRequest) -> Row:
    return ROWS[request.param](np.random.default_rng(4), SIZE)


def weights_of(row: NDArray[np.floating], temperature: float) -> NDArray[np.float64]:
    return np.exp(scaled_below_best(row, temperature, float(row.max())))


@pytest.mark.parametrize("temperature", [0.05, 1.0, 40.0])
def test_pick(row: Row, temperature: float) -> None:
    """At random numbers, and at those where the target is a boundary or the next number beside it."""
    weights = weights_of(row, temperature)
    shares_reached = np.cumsum(weights) / np.cumsum(weights)[-1]
    random = np.random.default_rng(5)
    boundaries = random.choice(shares_reached, 60)
    near = [np.nextafter(boundaries, side) for side in (0, 1)]
    for u in (0.0, 2.0**-53, 1 - 2.0**-53, *random.random(200), *boundaries, *near[0], *near[1]):
        if u < 1:
            assert pick(weights, float(u)) == pick_defined(weights, float(u))


@pytest.mark.parametrize("temperature", [0.05, 1.0, 40.0])
def test_nucleus(row: Row, temperature: float) -> None:
    """The same for the share of top-p, where equal tokens are taken in the order of their ids."""
    weights = weights_of(row, temperature)
    scaled = scaled_below_best(row, temperature, float(row.max()))
    reached = np.cumsum(np.sort(weights)[::-1]) / weights.sum()
    random = np.random.default_rng(6)
    boundaries = random.choice(reached, 20)
    near = [np.nextafter(boundaries, side) for side in (0, 1)]
    for top_p in (1e-9, 0.5, 0.95, 1 - 2.0**-53, *random.random(30), *boundaries, *near[0], *near[1]):
        if 0 < top_p < 1:
            expected = nucleus_defined(scaled, weights, float(top_p))
            assert nucleus(row, temperature, weights, float(top_p)).tolist() == expected.tolist()


def test_banned_tokens_are_never_in_the_nucleus() -> None:
    row = _spikes(np.random.default_rng(7), SIZE).astype(np.float64)
    row[::2] = -np.inf
    weights = weights_of(row, 1.0)
    for top_p in (0.1, 0.9, 0.999999):
        kept = nucleus(row, 1.0, weights, top_p)
        assert kept.tolist() == nucleus_defined(scaled_below_best(row, 1.0, float(row.max())), weights, top_p).tolist()
        assert (kept % 2 == 1).all()


def test_logits_that_are_equal_only_once_scaled() -> None:
    """Neighbouring numbers become one by the division; from then on the lower id is better, whichever was larger before."""
    random = np.random.default_rng(9)
    row = -1.6 - random.permutation(SIZE) * 2.0**-52
    row[7] = 0
    scaled, weights = scaled_below_best(row, 1.5, 0.0), weights_of(row, 1.5)
    assert len(np.unique(scaled)) < len(np.unique(row)), "the example is none"
    for top_p in random.random(60):
        assert nucleus(row, 1.5, weights, float(top_p)).tolist() == nucleus_defined(scaled, weights, float(top_p)).tolist()


def test_ordinary_rows_need_no_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast forms answer themselves; otherwise nothing would be won."""

    def refuse(*_: object) -> None:
        raise AssertionError("the definition was asked")

    def only_few(weights: NDArray[np.float64], u: float) -> int:
        assert len(weights) < SIZE, "the definition was asked"
        return pick_defined(weights, u)

    monkeypatch.setattr(inverse_cdf, "pick_defined", only_few)
    monkeypatch.setattr(top_p_module, "nucleus_defined", refuse)
    row = _spikes(np.random.default_rng(8), SIZE)
    for position in range(100):
        chain.sample(row, SamplingParams(), (), 0, position)
        chain.sample(row, SamplingParams(top_p=0.9), (), 0, position)


def plain_draw(logits: NDArray[np.floating], params: SamplingParams, u: float) -> int:
    """`draw` over all tokens, step by step, nothing left out beforehand."""
    ids = np.arange(len(logits))
    if 0 < params.top_k < len(logits):
        ids = np.sort(np.argsort(-logits, kind="stable")[: params.top_k])
    scaled = scaled_below_best(logits[ids], params.temperature, float(logits.max()))
    weights = np.exp(scaled)
    if params.top_p < 1:
        kept = nucleus_defined(scaled, weights, params.top_p)
        ids, weights = ids[kept], weights[kept]
    if params.min_p > 0:
        kept = np.flatnonzero(weights >= params.min_p * weights.max())
        ids, weights = ids[kept], weights[kept]
    return int(ids[pick_defined(weights, u)])


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(sorted(ROWS)),
    size=st.sampled_from([1, 63, 2 * BLOCK, 2 * BLOCK + 1, 9000]),
    seed=st.integers(0, 99),
    temperature=st.sampled_from([1e-300, 0.01, 0.6, 1.0, 2.0, 1e6]),
    top_k=st.sampled_from([0, 0, 1, 2, 20, 500]),
    top_p=st.sampled_from([1.0, 0.99, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 1e-300, 0.05, 0.5, 1.0]),
    u=st.floats(0, 1, exclude_max=True),
    wide=st.booleans(),
)
def test_draw(
    kind: str, size: int, seed: int, temperature: float, top_k: int, top_p: float, min_p: float, u: float, wide: bool
) -> None:
    """Any combination of filters, of float32 logits and of the float64 ones that penalties leave."""
    row: NDArray[np.floating] = ROWS[kind](np.random.default_rng(seed), max(size, 10))[:size]
    params = SamplingParams(temperature, top_k, top_p, min_p)
    row = row.astype(np.float64) * 1.1 if wide else row
    assert chain.draw(row, params, u) == plain_draw(row, params, u)
