"""Top-p (nucleus) filtering without sorting the vocabulary.

`nucleus_defined` is the definition: it adds up the weights in bins, one after the other. `nucleus` gives the same answer faster; it
adds in another order and falls back on the definition if rounding could matter (inverse_cdf.py has the bound).
"""

import numpy as np
from numpy.typing import NDArray

from svc.compute.sampling.best import Ids
from svc.compute.sampling.inverse_cdf import MARGIN, Float64

# The histogram over how far a scaled logit is below the best one: 128 units deep; e^-128 of the best is nothing.
BINS_PER_UNIT = 8
NUM_BINS = 1024

# Distances below the best one (in the exponent) at which the end of the nucleus is looked for, one after the other; and the part of
# the vocabulary from which on looking at candidates only gains nothing.
DEPTHS = (2.0, 5.0, 9.0, 14.0, 20.0)
MOST_CANDIDATES = 1 / 16


def scaled_below_best(logits: NDArray[np.floating], temperature: float, peak: float) -> Float64:
    """(logits - peak) / temperature as a new array; `peak` is the best logit, so all entries are at most 0."""
    scaled: Float64 = np.subtract(logits, peak, dtype=np.float64)
    if temperature != 1:
        with np.errstate(over="ignore"):  # a tiny temperature rightly sends all but the best to -inf
            scaled /= temperature
    return scaled


def nucleus(logits: NDArray[np.floating], temperature: float, weights: Float64, top_p: float) -> Ids:
    """The fewest best tokens whose weights sum to at least `top_p` of the total; always at least one. In the order of their ids.

    `weights` [n] are exp(scaled_below_best(logits, temperature, ...)). Among equals the lower id is better.
    """
    peak, total = float(logits.max()), float(weights.sum())
    target, margin = top_p * total, MARGIN * len(weights) * total
    worst = _worst_kept(_candidates(logits, temperature, weights, target + margin), temperature, peak, target, margin)
    if worst is None:
        return nucleus_defined(scaled_below_best(logits, temperature, peak), weights, top_p)
    value, count = worst
    kept = logits > value
    kept[np.flatnonzero(logits == value)[: count - np.count_nonzero(kept)]] = True
    return np.flatnonzero(kept)


def _candidates(logits: NDArray[np.floating], temperature: float, weights: Float64, needed: float) -> NDArray[np.floating]:
    """The largest logits, down to a depth at which they have more weight than `needed`; all logits if those are many."""
    peak = float(logits.max())
    for depth in DEPTHS:
        with np.errstate(over="ignore"):
            floor = logits.dtype.type(peak - depth * temperature)
        above = logits >= floor
        if np.count_nonzero(above) > MOST_CANDIDATES * len(logits):
            break
        ids = np.flatnonzero(above)
        if weights[ids].sum() > needed:
            return logits[ids]
    return logits


def _worst_kept(
    candidates: NDArray[np.floating], temperature: float, peak: float, target: float, margin: float
) -> tuple[float, int] | None:
    """(the least logit in the nucleus, size of the nucleus); None if rounding could change it."""
    ordered = np.sort(candidates)[::-1]
    scaled = scaled_below_best(ordered, temperature, peak)
    cumulative = np.cumsum(np.exp(scaled))
    last = int(np.searchsorted(cumulative, target))
    if last == len(ordered) or cumulative[last] <= target + margin or (last and cumulative[last - 1] >= target - margin):
        return None
    # Different logits can be equal once scaled. Then the lower id is better, and some of them may not even be candidates.
    equals = ordered[scaled == scaled[last]]
    if equals[0] != equals[-1] or (equals[-1] == ordered[-1] and len(equals) < len(ordered)):
        return None
    return ordered[last], last + 1


def nucleus_defined(scaled: Float64, weights: Float64, top_p: float) -> Ids:
    """As `nucleus`, with the scaled logits [n] themselves.

    Sorting a large vocabulary takes ten times as long as finding the bin in which the sum is reached, so only that bin is sorted.
    """
    bins = (np.minimum(-scaled, (NUM_BINS - 1) / BINS_PER_UNIT) * BINS_PER_UNIT).astype(np.intp)
    reached = np.cumsum(np.bincount(bins, weights, NUM_BINS))
    target = top_p * reached[-1]
    edge = min(int(np.searchsorted(reached, target)), NUM_BINS - 1)
    inside = np.flatnonzero(bins == edge)
    inside = inside[np.argsort(-scaled[inside], kind="stable")]
    before = reached[edge - 1] if edge else 0.0
    count = int(np.searchsorted(before + np.cumsum(weights[inside]), target)) + 1
    kept = bins < edge
    kept[inside[:count]] = True
    return np.flatnonzero(kept)
