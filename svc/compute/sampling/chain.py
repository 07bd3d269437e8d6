"""From one row of logits to one token.

The steps, in this order; each is skipped where its field says so.

| | field | does |
|---|---|---|
| 1 | `logit_bias` | adds to the logits of single tokens |
| 2 | `repetition_penalty` | divides (above 0) or multiplies the logits of tokens among the last `repeat_last_n`, prompt included |
| 3 | `presence_penalty`, `frequency_penalty` | subtract once, and once per occurrence, from tokens of the answer |
| 4 | banned tokens | out: `ignore_eos`, stop tokens before `min_tokens`, a bias of false |
| 5 | `temperature` | divides; 0 takes the best and ends here |
| 6 | `top_k` | keeps the k best |
| 7 | `top_p` | keeps the fewest best that have this share of what is left |
| 8 | `min_p` | keeps those at least so likely, relative to the best |
| 9 | `seed` | draws one |

The temperature comes before top-p and min-p, as OpenAI's and vLLM's users expect: these see the distribution that is drawn from.
Log probabilities are those of the model before step 1. Everything is float64 and looks at one row only, so the outcome cannot
depend on the other rows of a batch.

The draw inverts the cumulative distribution over the kept tokens in the order of their ids. The order of their probabilities would
do as well, but there two nearly equal logits that change places under a last-bit difference change the token; here they do not.
"""

import math

import numpy as np
from numpy.typing import NDArray

from svc.compute.backend import History, Sampled
from svc.compute.sampling.params import SamplingParams
from svc.compute.sampling.penalties import add_bias, penalize
from svc.compute.sampling.randomness import uniform

# top-p's histogram over how far a scaled logit is below the best one: 128 units deep, e^-128 of the best being nothing.
BINS_PER_UNIT = 8
NUM_BINS = 1024

Ids = NDArray[np.intp]
Float64 = NDArray[np.float64]


def sample(
    logits: NDArray[np.float32],
    params: SamplingParams,
    banned: tuple[int, ...],
    choice: int,
    position: int,
    history: History | None = None,
) -> Sampled:
    """Chooses a token from `logits` [V] (not changed).

    Logits that are not all finite give token -1. At least one token must not be banned; penalties need a `history`.
    """
    if not np.isfinite(logits).all():
        return Sampled(token=-1)
    allowed = _allowed(logits, params, banned, history)
    if params.temperature == 0:
        token = int(np.argmax(allowed))  # the first of equals, so the lowest id
    else:
        token = draw(allowed, params, uniform(params.seed, choice, position))
    if params.num_logprobs is None:
        return Sampled(token=token)
    return with_logprobs(token, logits, params.num_logprobs)


def _allowed(
    logits: NDArray[np.float32], params: SamplingParams, banned: tuple[int, ...], history: History | None
) -> NDArray[np.floating]:
    """Steps 1 to 4. `logits` itself where there is nothing to do, as nearly always."""
    assert (history is not None) == params.has_penalties, "penalties need the tokens so far, and nothing else does"
    assert len(set(banned)) < len(logits), "every token is banned"
    if not (params.logit_bias or history or banned):
        return logits
    changed = logits.astype(np.float64)
    add_bias(changed, params)
    if history is not None:
        penalize(changed, params, history)
    changed[list(banned)] = -np.inf
    return changed


def draw(logits: NDArray[np.floating], params: SamplingParams, u: float) -> int:
    """The token at `u` in [0, 1) of the filtered distribution. A logit of -inf has no chance."""
    ids: Ids | None = None  # None: all of them
    if 0 < params.top_k < len(logits):  # the temperature does not change which these are, so the rest need not be looked at again
        ids = np.sort(best(logits, params.top_k))
        logits = logits[ids]
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf, as it should
        scaled = (logits.astype(np.float64) - float(np.max(logits))) / params.temperature
    weights = np.exp(scaled)  # the largest is 1
    if params.top_p < 1:
        kept = nucleus(scaled, weights, params.top_p)
        ids = kept if ids is None else ids[kept]
        weights = weights[kept]
    if params.min_p > 0:
        kept = np.flatnonzero(weights >= params.min_p * weights.max())
        ids = kept if ids is None else ids[kept]
        weights = weights[kept]
    cumulative = np.cumsum(weights)
    # The first entry above u * total: never one of weight zero. u < 1 keeps the product below the total.
    index = min(int(np.searchsorted(cumulative, u * cumulative[-1], side="right")), len(weights) - 1)
    return index if ids is None else int(ids[index])


def best(values: NDArray[np.floating], count: int) -> Ids:
    """Indices of the `count` largest values, best first; among equals the lower index first."""
    if count >= len(values):
        candidates = np.arange(len(values))
    else:
        threshold = np.partition(values, len(values) - count)[len(values) - count]
        candidates = np.flatnonzero(values >= threshold)  # more than `count` when the last place is shared
    return candidates[np.argsort(-values[candidates], kind="stable")][:count]


def nucleus(scaled: Float64, weights: Float64, top_p: float) -> Ids:
    """The fewest best tokens whose weights sum to at least `top_p` of the total; always at least one. In the order of their ids.

    `scaled` [n] are the logits below the best one, at most 0, and `weights` their exponentials. Sorting a large vocabulary takes
    ten times as long as finding the bin in which the sum is reached, so only that bin is sorted.
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


def with_logprobs(token: int, logits: NDArray[np.float32], num_top: int) -> Sampled:
    """Adds log probabilities of the model's own distribution: temperature 1, nothing filtered or banned."""
    values = logits.astype(np.float64)
    log_total = _log_sum_exp(values)
    top = best(logits, num_top) if num_top else ()
    return Sampled(
        token=token,
        logprob=float(values[token] - log_total),
        top=tuple((int(i), float(values[i] - log_total)) for i in top),
    )


def logprob(logits: NDArray[np.float32], token: int) -> float:
    """Log probability of `token` in the model's own distribution; NaN when the logits [V] are not all finite."""
    if not np.isfinite(logits).all():
        return math.nan
    values = logits.astype(np.float64)
    return float(values[token] - _log_sum_exp(values))


def _log_sum_exp(values: Float64) -> float:
    peak = values.max()
    return float(peak + np.log(np.exp(values - peak).sum()))
