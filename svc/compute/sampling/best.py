"""The largest of many values, without sorting them all."""

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.intp]

BLOCK = 1024  # `best` looks at the largest of this many values first


def best(values: NDArray[np.floating], count: int) -> Ids:
    """Indices of the `count` largest values, best first; among equals the lower index first."""
    if count >= len(values):
        candidates = np.arange(len(values))
    else:
        candidates = np.flatnonzero(values >= _bound(values, count))
    return candidates[np.argsort(-values[candidates], kind="stable")][:count]


def _bound(values: NDArray[np.floating], count: int) -> NDArray[np.floating]:
    """A bound that at least `count` of the values reach, and few more.

    The maxima of blocks are values too, so the `count`-th largest of the maxima is such a bound.
    """
    if count * BLOCK <= len(values):
        values = np.maximum.reduceat(values, np.arange(0, len(values), BLOCK))
    bound: NDArray[np.floating] = np.partition(values, len(values) - count)[len(values) - count]
    return bound
