"""Draws an index in proportion to its weight: the first index at which the cumulative sum passes a share of the total.

`pick_defined` is the definition: it adds up one weight after the other. `pick` gives the same answer faster. It adds in blocks
and so rounds differently. An addition of non-negative numbers with a sum of at most `total` errs by at most u * total, u = 2^-53,
and no sum here takes more than 2 n additions. Two computed values of one cumulative sum, or of one share of the total, therefore
differ by less than 4 n u * total. If a boundary and a target are 8 n u * total apart, they are in the same order in both forms,
and the answer is certain. If any that matter are closer, the definition decides: once in ten thousand draws with n = 250,000
weights of one size, never with a few large ones.
"""

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

BLOCK = 1024  # weights added up at once
MARGIN = 2.0**-50  # of n * total: 8 u


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
    """None if rounding could change the index."""
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
