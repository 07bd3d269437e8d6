"""How many drafts to check, if any: those that the step's measured time and the measured acceptance say will pay.

A draft never changes an answer. The model evaluates it in the step that evaluates the last token, the ordinary sampler draws after
each, and a draft is accepted if it is what was drawn. So what is decided here may depend on clocks.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from svc.compute.backend import Sampled

Tokens = NDArray[np.int32]

FORGETTING = 0.98  # weight of the step before, in what is known of step times
EXPECTED_SLOPE = 0.25  # of a token's share of a step, before steps of different lengths were measured
SLOPE_WEIGHT = 0.05  # of that expectation, beside a variance of the number of tokens
LEAST_GAIN = 1.05  # in tokens per second: below it drafts are not worth what they cost elsewhere (planning ahead, settling rows)
NO_DRAFTS = np.zeros(0, np.int32)


class Drafter(Protocol):
    """Proposes the next tokens of one sequence."""

    name: str

    def advance(self, tokens: Tokens) -> None:
        """`tokens`: all of the sequence, prompt first, after every change. What came is compared with what would have been
        proposed."""

    def draft(self, tokens: Tokens, most: int) -> tuple[Tokens, list[float]]:
        """At most `most` tokens that may follow, and for each the chance that it is right if those before it are."""


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """What a request allows."""

    most: int  # drafts of a step; 0: none
    least: int = 0  # fewer are not worth checking
    least_chance: float = 0.0  # that a draft is right if those before it are


class StepTimes:
    """How long a step takes by its number of tokens: a line through what was measured, later steps counting more."""

    def __init__(self) -> None:
        self._weight = self._tokens = self._time = self._squares = self._products = 0.0

    def observe(self, num_tokens: int, duration_s: float) -> None:
        self._weight = FORGETTING * self._weight + 1
        self._tokens = FORGETTING * self._tokens + num_tokens
        self._time = FORGETTING * self._time + duration_s
        self._squares = FORGETTING * self._squares + num_tokens * num_tokens
        self._products = FORGETTING * self._products + num_tokens * duration_s

    def line(self) -> tuple[float, float]:
        """(seconds of a step without tokens, seconds of each token); any unit before the first step."""
        if not self._weight:
            return 1.0, EXPECTED_SLOPE
        tokens, time = self._tokens / self._weight, self._time / self._weight
        variance = max(self._squares / self._weight - tokens * tokens, 0.0)
        covariance = self._products / self._weight - tokens * time
        share = time / max(tokens, 1.0)
        slope = (covariance + SLOPE_WEIGHT * EXPECTED_SLOPE * share) / (variance + SLOPE_WEIGHT)
        slope = min(max(slope, 0.01 * share), share)
        return time - slope * tokens, slope


def accepted(samples: Iterator[Sampled], drafts: Tokens) -> list[Sampled]:
    """Takes the samples of a sequence, one more than drafts: those behind tokens that are right, as far as nothing is forced."""
    own = list(islice(samples, len(drafts) + 1))
    right = 0
    while right < len(drafts) and own[right].token == drafts[right] and not own[right].forced:
        right += 1
    return own[: right + 1]


def survivals(chances: Items[float]) -> list[float]:
    """The chance of each draft that it and all before it are right."""
    return np.cumprod(chances).tolist() if len(chances) else []


def choose_lengths(proposals: Items[Items[float]], num_tokens: int, times: StepTimes, room: int) -> list[int]:
    """How many drafts of each proposal to check, at most `room` together, so that the step gives the most tokens per second.

    `proposals`: the survivals of each slot's drafts. `num_tokens`: of the step without drafts; each slot is sure of one token.
    """
    lengths = [0] * len(proposals)
    fixed_s, token_s = times.line()
    expected, time_s = float(len(proposals)), fixed_s + token_s * num_tokens
    plain = expected / time_s
    likely_first = sorted(((-chance, slot, place) for slot, each in enumerate(proposals) for place, chance in enumerate(each)))
    for chance, slot, place in likely_first[:room]:
        if -chance * time_s <= expected * token_s:
            break
        expected, time_s = expected - chance, time_s + token_s
        lengths[slot] = place + 1
    return lengths if expected / time_s >= LEAST_GAIN * plain else [0] * len(proposals)


class Speculation:
    """The drafts of one sequence: how many it may have and how many were right. Survives preemption."""

    def __init__(self, drafter: Drafter, limits: DraftLimits) -> None:
        self.drafter = drafter
        self.limits = limits
        self.drafted = 0
        self.accepted = 0

    def propose(self, tokens: Tokens, most: int) -> tuple[Tokens, list[float]]:
        """At most `most` drafts behind `tokens` and their survivals, within the request's limits."""
        self.drafter.advance(tokens)
        most = min(most, self.limits.most)
        drafts, chances = self.drafter.draft(tokens, most) if most > 0 else (NO_DRAFTS, [])
        likely = next((place for place, chance in enumerate(chances) if chance < self.limits.least_chance), len(chances))
        if likely < max(self.limits.least, 1):
            return NO_DRAFTS, []
        return drafts[:likely], survivals(chances[:likely])
