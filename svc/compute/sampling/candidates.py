"""The tokens that are left, and the filters that take some of them out. Each filter keeps at least one."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from svc.compute.sampling.best import Ids, best
from svc.compute.sampling.inverse_cdf import Float64
from svc.compute.sampling.top_p import nucleus

REACHES = (
    0.5,
    1.0,
    2.0,
    4.0,
    8.0,
)  # distances from the expected surprise within which the tokens are looked for, one after the other
NEARLY = 1e-5  # more than a float32 is rounded by, in its own size
SURELY = 1e-9  # more than sums in another order differ by
LEAST_TEMPERATURE = 1e-30  # leaves any but the best no chance, and no logit overflows


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Token ids, ascending, and their logits, all finite."""

    ids: Ids
    logits: Float64

    @classmethod
    def of(cls, logits: NDArray[np.floating]) -> "Candidates":
        """All tokens [V] but those at -inf."""
        if logits.min() > -np.inf:
            return cls(np.arange(len(logits)), logits.astype(np.float64))
        return cls._at(np.flatnonzero(logits > -np.inf), logits)

    @classmethod
    def best_of(cls, logits: NDArray[np.floating], count: int) -> "Candidates":
        """All that `top_k` may keep: no large arrays for the others."""
        ids = np.sort(best(logits, count))
        return cls._at(ids[logits[ids] > -np.inf], logits)

    @classmethod
    def likely_of(cls, logits: NDArray[np.floating], share: float, min_keep: int) -> "Candidates":
        """All that `min_p` may keep, and few others."""
        lowest = float(logits.max()) + math.log(share) - NEARLY * (1 + abs(float(logits.max())))
        ids = np.flatnonzero(logits >= logits.dtype.type(lowest))
        return cls._at(ids, logits) if len(ids) >= min_keep else cls.of(logits)

    @classmethod
    def _at(cls, ids: Ids, logits: NDArray[np.floating]) -> "Candidates":
        return cls(ids, logits[ids].astype(np.float64))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def weights(self) -> Float64:
        """Probabilities up to a factor: the largest is 1."""
        below: Float64 = self.logits - self.logits.max()
        return np.exp(below, out=below)

    @property
    def probabilities(self) -> Float64:
        weights = self.weights
        weights /= weights.sum()
        return weights

    @property
    def surprises(self) -> tuple[Float64, Float64]:
        """(probabilities, their negative logarithms)"""
        surprises = self.logits - self.logits.max()
        shares = np.exp(surprises)
        total = float(shares.sum())
        shares /= total
        np.subtract(np.log(total), surprises, out=surprises)
        return shares, surprises

    def best(self, count: int) -> Ids:
        """Indices of the `count` best, best first; among equals the lower id first."""
        return best(self.logits, count)

    def kept(self, indices: Ids) -> "Candidates":
        """Only those at `indices`, in the order of their ids."""
        chosen = np.sort(indices)
        return Candidates(self.ids[chosen], self.logits[chosen])

    def at_least(self, count: int, kept: Ids) -> "Candidates":
        """Those at `kept`, which are the best, or the `count` best if these are more."""
        return self.kept(kept if len(kept) >= count else self.best(count))

    def with_logits(self, logits: Float64) -> "Candidates":
        return Candidates(self.ids, logits)


def top_k(candidates: Candidates, count: int) -> Candidates:
    """The `count` best; 0: all."""
    return candidates.kept(candidates.best(count)) if 0 < count < len(candidates) else candidates


def top_p(candidates: Candidates, share: float, min_keep: int) -> Candidates:
    """The fewest best that have this share."""
    return candidates.at_least(min_keep, nucleus(candidates.logits, 1.0, candidates.weights, share))


def min_p(candidates: Candidates, share: float, min_keep: int) -> Candidates:
    """Those at least that likely, relative to the best."""
    return candidates.at_least(min_keep, np.flatnonzero(candidates.weights >= share))


def typical_p(candidates: Candidates, share: float, min_keep: int) -> Candidates:
    """Those whose surprise is nearest to the expected one, until they have more than this share."""
    shares, surprises = candidates.surprises
    distances = np.abs(surprises - (shares * surprises).sum())
    near = _nearest(distances, shares, share, min_keep)
    order = near[np.argsort(distances[near], kind="stable")]
    passed = int(np.searchsorted(np.cumsum(shares[order]), share, side="right")) + 1
    return candidates.kept(order[: max(passed, min_keep)])


def _nearest(distances: Float64, shares: Float64, share: float, count: int) -> Ids:
    """Indices of at least `count` and of the nearest ones that surely have more than `share`: sorting all takes 30 ms."""
    for reach in REACHES:
        near = np.flatnonzero(distances <= reach)
        if len(near) >= count and shares[near].sum() > share + SURELY:
            return near
    return np.arange(len(distances))


def top_n_sigma(candidates: Candidates, width: float) -> Candidates:
    """Those whose logit is at most `width` standard deviations below the best."""
    lowest = candidates.logits.max() - width * candidates.logits.std()
    return candidates.kept(np.flatnonzero(candidates.logits >= lowest))


def without_top_choices(candidates: Candidates, threshold: float, min_keep: int) -> Candidates:
    """XTC: of the tokens at least that likely only the least likely one is left, so that a less obvious choice is made."""
    likely = np.flatnonzero(candidates.probabilities >= threshold)
    removed = len(likely) - 1
    if threshold > 0.5 or removed < 1 or len(candidates) - removed < min_keep:
        return candidates
    order = likely[np.argsort(-candidates.logits[likely], kind="stable")]
    return candidates.kept(np.setdiff1d(np.arange(len(candidates)), order[:-1], assume_unique=True))


def tempered(candidates: Candidates, temperature: float, reach: float, exponent: float) -> Candidates:
    """Logits divided by the temperature; 0 leaves only the best. `reach`: how far the entropy moves the temperature both ways."""
    if reach > 0 and len(candidates) > 1:
        low, high = max(0.0, temperature - reach), temperature + reach
        shares, surprises = candidates.surprises
        unsure = float((shares * surprises).sum() / np.log(len(candidates)))
        temperature = low + (high - low) * unsure**exponent
    if temperature <= 0:
        return candidates.kept(candidates.best(1))
    return candidates.with_logits(candidates.logits / max(temperature, LEAST_TEMPERATURE))
