"""From one row of logits to one token by the steps of `SamplingSteps`, in the order asked for.

Bias, bans and a grammar's mask come first, whatever the order. Then each step works on the candidates that the one before has left.
Mirostat takes the place of all filters, and adaptive-p comes last. Everything is float64 and looks at one row only, as in chain.py,
and the draw is the same.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from svc.compute.backend import History
from svc.compute.sampling.candidates import (
    Candidates,
    min_p,
    tempered,
    top_k,
    top_n_sigma,
    top_p,
    typical_p,
    without_top_choices,
)
from svc.compute.sampling.dry import dry_penalties
from svc.compute.sampling.inverse_cdf import Float64, pick
from svc.compute.sampling.params import SamplingParams
from svc.compute.sampling.penalties import penalize
from svc.compute.sampling.steps import AdaptiveP, Mirostat, SamplingSteps, Step

MIROSTAT_BEST = 100  # tokens from which mirostat 1 estimates how fast probabilities fall
ADAPTIVE_WIDTH, ADAPTIVE_PEAK, ADAPTIVE_SHARPNESS = 0.3, 5.0, 10.0
MAX_DECAY = 0.99
_BESIDE_MIROSTAT = (Step.PENALTIES, Step.DRY, Step.TEMPERATURE)


@dataclass(frozen=True)
class Draw:
    """One token, drawn from `candidates` by their probabilities."""

    token: int
    candidates: Candidates
    learned: tuple[float, ...]

    def top(self, count: int) -> tuple[tuple[int, float], ...]:
        """The `count` best and their log probabilities; fewer where fewer were left."""
        ranked = self.candidates.best(count) if count else ()
        return tuple((int(self.candidates.ids[index]), self._logprob(int(index))) for index in ranked)

    @property
    def logprob(self) -> float:
        return self._logprob(int(np.searchsorted(self.candidates.ids, self.token)))

    @cached_property
    def _shares(self) -> Float64:
        return self.candidates.probabilities

    def _logprob(self, index: int) -> float:
        share = float(self._shares[index])
        return math.log(share) if share else -math.inf


def draw_in_steps(
    logits: NDArray[np.floating],
    params: SamplingParams,
    history: History | None,
    learned: tuple[float, ...],
    uniforms: tuple[float, float],
) -> Draw:
    """`logits` [V] with bias, bans and mask, some of them finite. `uniforms`: for the draw, and for whether XTC is taken."""
    steps = params.steps
    assert steps is not None
    order = [step for step in steps.order if _changes(step, params, steps)]
    if order[:1] == [Step.TOP_K]:
        candidates = Candidates.best_of(logits, params.top_k)
    elif order[:1] == [Step.MIN_P]:
        candidates = Candidates.likely_of(logits, params.min_p, steps.min_keep)
    else:
        candidates = Candidates.of(logits)
    for step in order:
        candidates = _taken(step, candidates, params, steps, history, uniforms[1])
    if steps.mirostat is not None:
        return _draw_mirostat(candidates, steps.mirostat, len(logits), learned, uniforms[0])
    if steps.adaptive is not None:
        return _draw_adaptive(candidates, steps.adaptive, learned, uniforms[0])
    return Draw(int(candidates.ids[pick(candidates.weights, uniforms[0])]), candidates, ())


def _changes(step: Step, params: SamplingParams, steps: SamplingSteps) -> bool:
    """Whether the step can change anything."""
    if steps.mirostat is not None and step not in _BESIDE_MIROSTAT:
        return False
    match step:
        case Step.PENALTIES:
            return params.penalizes
        case Step.DRY:
            return steps.dry is not None
        case Step.TEMPERATURE:
            return params.temperature != 1 or steps.dynatemp_range > 0
        case Step.TOP_N_SIGMA:
            return steps.top_n_sigma > 0
        case Step.TOP_K:
            return params.top_k > 0
        case Step.TYPICAL_P:
            return steps.typical_p < 1
        case Step.TOP_P:
            return params.top_p < 1
        case Step.MIN_P:
            return params.min_p > 0
        case Step.XTC:
            return steps.xtc_probability > 0


def _taken(
    step: Step, candidates: Candidates, params: SamplingParams, steps: SamplingSteps, history: History | None, chance: float
) -> Candidates:
    match step:
        case Step.PENALTIES:
            return _penalized(candidates, params, history)
        case Step.DRY:
            return _without_repeats(candidates, steps, history)
        case Step.TEMPERATURE:
            return tempered(candidates, params.temperature, steps.dynatemp_range, steps.dynatemp_exponent)
        case Step.TOP_N_SIGMA:
            return top_n_sigma(candidates, steps.top_n_sigma)
        case Step.TOP_K:
            return top_k(candidates, params.top_k)
        case Step.TYPICAL_P:
            return typical_p(candidates, steps.typical_p, steps.min_keep)
        case Step.TOP_P:
            return top_p(candidates, params.top_p, steps.min_keep)
        case Step.MIN_P:
            return min_p(candidates, params.min_p, steps.min_keep)
        case Step.XTC:
            wanted = chance < steps.xtc_probability
            return without_top_choices(candidates, steps.xtc_threshold, steps.min_keep) if wanted else candidates


def _penalized(candidates: Candidates, params: SamplingParams, history: History | None) -> Candidates:
    assert history is not None
    logits = np.zeros(max(int(candidates.ids[-1]), int(history.tokens.max(initial=0))) + 1)
    logits[candidates.ids] = candidates.logits
    penalize(logits, params, history)
    return candidates.with_logits(logits[candidates.ids])


def _without_repeats(candidates: Candidates, steps: SamplingSteps, history: History | None) -> Candidates:
    assert steps.dry is not None
    assert history is not None
    tokens, losses = dry_penalties(history.tokens, steps.dry)
    places = np.searchsorted(candidates.ids, tokens)
    left = np.flatnonzero(places < len(candidates))
    left = left[candidates.ids[places[left]] == tokens[left]]
    if not len(left):
        return candidates
    logits = candidates.logits.copy()
    logits[places[left]] -= losses[left]
    return candidates.with_logits(logits)


# -- draws that learn --------------------------------------------------------------------------------------------------------------
def _draw_mirostat(candidates: Candidates, wanted: Mirostat, vocabulary: int, learned: tuple[float, ...], u: float) -> Draw:
    """Tokens of more surprise than a bound, in bits, are left out; the bound follows the surprise of what is drawn."""
    (bound,) = learned or (2 * wanted.tau,)
    if wanted.version == 1:
        kept = top_k(candidates, _mirostat_count(candidates, bound, vocabulary))
    else:
        _, surprises = candidates.surprises
        kept = candidates.at_least(1, np.flatnonzero(surprises <= bound * math.log(2)))
    shares = kept.probabilities
    index = pick(shares, u)
    error = -math.log2(float(shares[index])) - wanted.tau
    return Draw(int(kept.ids[index]), kept, (bound - wanted.eta * error,))


def _mirostat_count(candidates: Candidates, bound: float, vocabulary: int) -> int:
    """How many tokens to keep: probabilities, best first, are taken to fall by a power law whose exponent the best ones show."""
    if len(candidates) == 1:
        return 1
    logits = candidates.logits[candidates.best(MIROSTAT_BEST)]
    ranks = np.log(np.arange(2, len(logits) + 1) / np.arange(1, len(logits)))
    exponent = (ranks * (logits[:-1] - logits[1:])).sum() / (ranks * ranks).sum()
    excess = exponent - 1
    with np.errstate(all="ignore"):
        share_of_rest = 1 - np.float64(vocabulary) ** -excess
        count = (excess * np.float64(2) ** bound / share_of_rest) ** (1 / exponent)
    return int(min(max(count, 1), len(candidates))) if np.isfinite(count) else len(candidates)


def _draw_adaptive(candidates: Candidates, wanted: AdaptiveP, learned: tuple[float, ...], u: float) -> Draw:
    """Tokens are drawn the more gladly the nearer their probability is to a target, which makes up for the tokens before."""
    weighted, weight = learned or (wanted.target / (1 - wanted.decay), 1 / (1 - wanted.decay))
    target = min(max(2 * wanted.target - weighted / weight, 0.0), 1.0)
    shares = candidates.probabilities
    distance = np.abs(shares - target) / ADAPTIVE_WIDTH
    moved = candidates.with_logits(ADAPTIVE_PEAK - ADAPTIVE_SHARPNESS * distance * distance / (1 + distance))
    index = pick(moved.weights, u)
    return Draw(int(moved.ids[index]), moved, (float(shares[index]) + wanted.decay * weighted, 1 + wanted.decay * weight))
