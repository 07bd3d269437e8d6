"""Where a cumulative sum of weights reaches a share of the total: the two questions of sampling that look at a whole vocabulary.

Each has a definition, `..._defined`, which adds up one weight after the other, and a fast form that gives the same answer. The fast
form adds in blocks, or in another order, and rounds differently. But an addition of non-negative numbers that make at most `total`
errs by at most u * total, u = 2^-53, and no sum here takes more than 2 n additions: two computed values of one cumulative sum, or
of one share of the total, differ by less than 4 n u * total. A boundary and a target that are 8 n u * total apart are therefore in
the same order in both forms, and the answer is certain. Where any that matter are closer, the definition decides: with n = 250,000
weights of one size once in ten thousand draws, with a few large ones never.
"""

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.intp]
Float64 = NDArray[np.float64]

BLOCK = 1024  # weights added up at once
MARGIN = 2.0**-50  # of n * total: 8 u

# top-p's histogram over how far a scaled logit is below the best one: 128 units deep, e^-128 of the best being nothing.
BINS_PER_UNIT = 8
NUM_BINS = 1024

# How far below the best one (in the exponent) the end of the nucleus is looked for, one after the other; and from what part of the
# vocabulary on it is not worth it to look at candidates only.
DEPTHS = (2.0, 5.0, 9.0, 14.0, 20.0)
MOST_CANDIDATES = 1 / 16


def scaled_below_best(logits: NDArray[np.floating], temperature: float, peak: float) -> Float64:
    """How far `logits` are below the best one, `peak`, over the temperature: a new array of numbers of at most 0."""
    scaled: Float64 = np.subtract(logits, peak, dtype=np.float64)
    if temperature != 1:
        with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf, as it should
            scaled /= temperature
    return scaled


def pick(weights: Float64, u: float) -> int:
    """Index of the first of `weights` [n] at which the sum of all up to it is above `u` in [0, 1) of the total.

    Never one of weight zero. Weights are at least 0, the largest above 0.
    """
    if len(weights) > 2 * BLOCK:
        index = _pick_in_blocks(weights, u)
        if index is not None:
            return index
    return pick_defined(weights, u)


def pick_defined(weights: Float64, u: float) -> int:
    cumulative = np.cumsum(weights)
    # u < 1 keeps the product below the total, but for its rounding.
    return min(int(np.searchsorted(cumulative, u * cumulative[-1], side="right")), len(weights) - 1)


def _pick_in_blocks(weights: Float64, u: float) -> int | None:
    """None where rounding could make another index of it."""
    ends = np.cumsum(np.add.reduceat(weights, np.arange(0, len(weights), BLOCK)))
    target, margin = u * ends[-1], MARGIN * len(weights) * ends[-1]
    block = int(np.searchsorted(ends, target, side="right"))
    if block == len(ends):
        return None
    before = float(ends[block - 1]) if block else 0.0
    inside = before + np.cumsum(weights[block * BLOCK : (block + 1) * BLOCK])
    index = int(np.searchsorted(inside, target, side="right"))
    if index == len(inside) or inside[index] <= target + margin:
        return None
    below = float(inside[index - 1]) if index else before
    is_first = block == 0 and index == 0
    return block * BLOCK + index if is_first or below < target - margin else None


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
    """The largest of the logits down to some depth, with more weight than `needed`; all when these are many."""
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
    """(the least logit in the nucleus, size of the nucleus); None where rounding could make something else of it."""
    ordered = np.sort(candidates)[::-1]
    scaled = scaled_below_best(ordered, temperature, peak)
    cumulative = np.cumsum(np.exp(scaled))
    last = int(np.searchsorted(cumulative, target))
    if last == len(ordered) or cumulative[last] <= target + margin or (last and cumulative[last - 1] >= target - margin):
        return None
    # Different logits can be equal once they are scaled, and then the lower id is better; they may even be no candidates.
    equals = ordered[scaled == scaled[last]]
    if equals[0] != equals[-1] or (equals[-1] == ordered[-1] and len(equals) < len(ordered)):
        return None
    return ordered[last], last + 1


def nucleus_defined(scaled: Float64, weights: Float64, top_p: float) -> Ids:
    """As `nucleus`, with the scaled logits [n] themselves.

    Sorting a large vocabulary takes ten times as long as finding the bin in which the sum is reached: only that is sorted.
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
