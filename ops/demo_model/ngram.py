"""Interpolated modified Kneser-Ney over token ids (Chen and Goodman 1999), in numpy: the baseline the model has to beat.

An n-gram of ids below 4,096 is one number of 12 bits per id, the oldest id first; up to five fit into 64 bits.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BITS = 12
Keys = NDArray[np.uint64]


@dataclass(frozen=True)
class _Order:
    """The n-grams of one length, sorted, with counts; and for each context (the n-gram without its last id) the sums."""

    keys: Keys
    counts: NDArray[np.float64]
    discounts: NDArray[np.float64]  # [4]: for counts 0, 1, 2 and more
    contexts: Keys
    totals: NDArray[np.float64]
    left_over: NDArray[np.float64]  # mass for the shorter n-gram, before division by the total


class KneserNey:
    def __init__(self, ids: NDArray[np.integer], order: int = 5, vocab_size: int = 1 << BITS) -> None:
        """Counts n-grams of `ids`; those that run over a document's end are counted like others."""
        assert order * BITS <= 64
        self.order, self.vocab_size = order, vocab_size
        keys, counts = np.unique(_grams(ids, order), return_counts=True)
        self._orders = [_order(keys, counts)]
        for n in range(order - 1, 0, -1):  # shorter ones count in how many contexts they were seen
            keys, counts = np.unique(keys & np.uint64((1 << BITS * n) - 1), return_counts=True)
            self._orders.append(_order(keys, counts))
        self._orders.reverse()

    def log_probs(self, ids: NDArray[np.integer]) -> NDArray[np.float64]:
        """Natural log of the probability of each id from number order - 1 on, given those before: [n - order + 1]."""
        grams = _grams(ids, self.order)
        p = np.full(len(grams), 1 / self.vocab_size)
        for n, level in enumerate(self._orders, 1):
            p = _interpolate(level, grams & np.uint64((1 << BITS * n) - 1), p)
        return np.log(p)


def _grams(ids: NDArray[np.integer], n: int) -> Keys:
    wide = ids.astype(np.uint64)
    keys = np.zeros(len(ids) - n + 1, np.uint64)
    for i in range(n):
        keys = keys << np.uint64(BITS) | wide[i : len(ids) - n + 1 + i]
    return keys


def _order(keys: Keys, counts: NDArray[np.integer]) -> _Order:
    n1, n2, n3, n4 = (max(int((counts == c).sum()), 1) for c in (1, 2, 3, 4))
    y = n1 / (n1 + 2 * n2)
    discounts = np.clip([0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3], 0, [0, 1, 2, 3])
    contexts, first = np.unique(keys >> np.uint64(BITS), return_index=True)
    totals = np.add.reduceat(counts, first).astype(float)
    left_over = np.add.reduceat(discounts[np.minimum(counts, 3)], first)
    return _Order(keys, counts.astype(float), discounts, contexts, totals, left_over)


def _interpolate(level: _Order, grams: Keys, shorter: NDArray[np.float64]) -> NDArray[np.float64]:
    at, seen = _find(level.contexts, grams >> np.uint64(BITS))
    total = np.where(seen, level.totals[at], 1.0)
    weight = np.where(seen, level.left_over[at] / total, 1.0)
    at, found = _find(level.keys, grams)
    count = np.where(found, level.counts[at], 0.0)
    kept = count - level.discounts[np.minimum(count, 3).astype(int)]
    return kept / total + weight * shorter


def _find(sorted_keys: Keys, wanted: Keys) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    at = np.minimum(np.searchsorted(sorted_keys, wanted), len(sorted_keys) - 1)
    return at, sorted_keys[at] == wanted
