"""How soon what is kept is used again: learned while running, by the kind of a capture and by what has become of it.

Owner of the counts. A *class* is a kind of capture and its `Past`. Each entry (a snapshot, or the memory of one that was lost) is
of one class and has an age: seconds since its capture, since its last use, or since a request last passed it. Counted are uses by
class and age, and how many entries reached each age. From both follows the hazard of each age: the share of the entries of that age
that is used before it is older. Before anything is counted it comes from priors, which weigh as much as PRIOR_WEIGHT entries.

What eviction asks is the *rate* of a class at an age: the most uses per second of keeping, over all times for which the entry could
be kept (Gittins' index):

    rate(age) = max over t > age of  P(used before t) / E(seconds until that use, or until t)

Where uses become rarer with age, that is about the present frequency, and the oldest goes first. Where entries are used again after
a pause, all alike, as in a cycle, the freshest has longest to wait and goes first: so of a load that is larger than the memory a
part stays, where LRU keeps nothing that is asked for.
"""

import enum
from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from svc.memory.placement import WantedKind

EDGES_S = [0.0, *(0.5 * 2**octave for octave in range(19))]  # ages: the first half second, then octaves up to a day and a half
NUM_AGES = len(EDGES_S)  # the last has no end
PRIOR_WEIGHT = 30.0
PRIOR_DELAY_S = 10.0  # below this age all are equally fresh
REFRESHED_EVERY = 32  # uses after which the rates are computed anew
HALVED_AT = 20_000.0  # counted uses: then all counts are halved, so that a change of load is followed


class Past(enum.IntEnum):
    """What has become of a capture."""

    NEW = 0
    USED = 1  # a request has resumed there since
    PASSED = 2  # a request has resumed deeper on its path since: most texts have moved on from there


# The probability that a capture is used (again), before anything is known, by its `Past`.
PRIORS: dict[WantedKind, tuple[float, float, float]] = {
    WantedKind.PROMPT_END: (0.25, 0.25, 0.03),
    WantedKind.JOIN: (0.7, 0.5, 0.4),
    WantedKind.BRANCH: (0.5, 0.5, 0.4),
    WantedKind.MESSAGE_START: (0.15, 0.3, 0.05),
    WantedKind.SYSTEM_END: (0.5, 0.8, 0.5),
    WantedKind.SPARSE: (0.05, 0.2, 0.02),
    WantedKind.GENERATED: (0.05, 0.2, 0.02),
    WantedKind.ANSWER_END: (0.7, 0.2, 0.05),
    WantedKind.CANCELLED: (0.7, 0.2, 0.05),
    WantedKind.PREEMPTED: (0.95, 0.1, 0.02),
}
NUM_CLASSES = len(Past) * len(WantedKind)

Counts = NDArray[np.float64]


def class_of(kind: WantedKind, past: Past = Past.NEW) -> int:
    return len(Past) * kind + past


def past_of(reuse_class: int) -> Past:
    return Past(reuse_class % len(Past))


def with_past(reuse_class: int, past: Past) -> int:
    """The class of the same kind with another past."""
    return reuse_class - reuse_class % len(Past) + past


def age_index(age_s: float) -> int:
    """The index among EDGES_S of the span that holds an age."""
    return bisect_right(EDGES_S, age_s, lo=1) - 1


def count_ages(classes: NDArray[np.int64], ages_s: Counts) -> Counts:
    """Entries by class and age, `[NUM_CLASSES, NUM_AGES]`."""
    spans = np.searchsorted(EDGES_S[1:], ages_s, side="right")
    counts = np.bincount(classes * NUM_AGES + spans, minlength=NUM_CLASSES * NUM_AGES)
    return counts.reshape(NUM_CLASSES, NUM_AGES).astype(np.float64)


class ReuseStatistics:
    """Counts of uses by class and age, and the rates that follow."""

    def __init__(self) -> None:
        self._uses: Counts = np.zeros((NUM_CLASSES, NUM_AGES))
        self._ended: Counts = np.zeros((NUM_CLASSES, NUM_AGES))  # not used as long as anything was known of them, by that age
        self._prior = np.array([_prior_hazard(ever) for kind in WantedKind for ever in PRIORS[kind]])
        self._num_new = 0
        self._rates: list[list[float]] = []
        self.refresh(np.zeros((NUM_CLASSES, NUM_AGES)))

    def use(self, reuse_class: int, age_s: float) -> None:
        """An entry of that class was used at that age."""
        self._uses[reuse_class, age_index(age_s)] += 1
        self._num_new += 1

    def end(self, reuse_class: int, age_s: float) -> None:
        """Nothing more will be known of an entry that was not used up to that age."""
        self._ended[reuse_class, age_index(age_s)] += 1

    def rate(self, reuse_class: int, age_s: float) -> float:
        """Uses per second of keeping, as of the last `refresh`."""
        return self._rates[reuse_class][bisect_right(EDGES_S, age_s, lo=1) - 1]

    @property
    def due(self) -> bool:
        """Whether enough was counted since the last `refresh`."""
        return self._num_new >= REFRESHED_EVERY

    def refresh(self, alive: Counts) -> None:
        """Computes the rates. `alive`: entries that are kept or remembered now, by class and age."""
        self._num_new = 0
        unused = self._ended + alive
        reached = np.cumsum((self._uses + unused)[:, ::-1], axis=1)[:, ::-1]
        at_risk = reached - unused / 2  # they have seen half of the span that they are in
        hazard = (self._uses + PRIOR_WEIGHT * self._prior) / (at_risk + PRIOR_WEIGHT)
        self._rates = _rates(np.minimum(hazard, 0.99)).tolist()
        if self._uses.sum() > HALVED_AT:
            self._uses /= 2
            self._ended /= 2


def _prior_hazard(ever: float) -> Counts:
    """Of an entry that is used with probability `ever`, as likely in each octave of ages as in the next."""
    edges = np.array([*EDGES_S, 2 * EDGES_S[-1]])
    used = ever * np.log1p(edges / PRIOR_DELAY_S) / np.log1p(edges[-1] / PRIOR_DELAY_S)
    hazard: Counts = np.diff(used) / (1 - used[:-1])
    return hazard


def _rates(hazard: Counts) -> Counts:
    """From the start of each span: the most uses by seconds, over the ends of that span and all later ones."""
    widths = np.diff([*EDGES_S, 2 * EDGES_S[-1]])
    start = np.ones((len(hazard), 1))
    left = np.concatenate([start, np.cumprod(1 - hazard, axis=1)], axis=1)  # share not used yet, at each edge
    mean_left = (left[:, :-1] - left[:, 1:]) / -np.log1p(-hazard)  # over a span, in which uses come at random
    spent = np.concatenate([0 * start, np.cumsum(widths * mean_left, axis=1)], axis=1)
    uses, spans = left[:, :-1, None] - left[:, None, 1:], spent[:, None, 1:] - spent[:, :-1, None]
    rates: Counts = np.divide(uses, spans, out=np.zeros_like(uses), where=spans > 0).max(axis=2)
    return rates
