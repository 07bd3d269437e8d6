"""From one row of logits to one token.

The steps, in this order: banned tokens out, temperature, top-k, top-p, min-p, then one draw. (The temperature comes first, as
OpenAI's and vLLM's users expect: top-p and min-p see the distribution that is drawn from.) Everything is float64 and looks at one
row only, so the outcome cannot depend on the other rows of a batch.

The draw inverts the cumulative distribution over the kept tokens in the order of their ids. The order of their probabilities would
do as well, but there two nearly equal logits that change places under a last-bit difference change the token; here they do not.
"""

import numpy as np
from numpy.typing import NDArray

from svc.compute.backend import Sampled
from svc.compute.sampling.params import SamplingParams
from svc.compute.sampling.randomness import uniform

FIRST_HEAD = 512  # top-p: how many of the best tokens to sort at first; enough for nearly every real distribution

Ids = NDArray[np.intp]
Float64 = NDArray[np.float64]


def sample(logits: NDArray[np.float32], params: SamplingParams, banned: tuple[int, ...], choice: int, position: int) -> Sampled:
    """Chooses a token from `logits` [V] (not changed).

    Logits that are not all finite give token -1. At least one token must not be banned.
    """
    if not np.isfinite(logits).all():
        return Sampled(token=-1)
    allowed = logits
    if banned:
        assert len(set(banned)) < len(logits), "every token is banned"
        allowed = logits.copy()
        allowed[list(banned)] = -np.inf
    if params.temperature == 0:
        token = int(np.argmax(allowed))  # the first of equals, so the lowest id
    else:
        token = draw(allowed, params, uniform(params.seed, choice, position))
    if params.num_logprobs is None:
        return Sampled(token=token)
    return with_logprobs(token, logits, params.num_logprobs)


def draw(logits: NDArray[np.float32], params: SamplingParams, u: float) -> int:
    """The token at `u` in [0, 1) of the filtered distribution. A logit of -inf has no chance."""
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf, as it should
        scaled = (logits.astype(np.float64) - float(np.max(logits))) / params.temperature
    weights = np.exp(scaled)  # the largest is 1
    ids: Ids | None = None  # None: all of them
    if 0 < params.top_k < len(weights):
        ids = np.sort(best(weights, params.top_k))
        weights = weights[ids]
    if params.top_p < 1:
        kept = np.sort(nucleus(weights, params.top_p))
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


def nucleus(weights: Float64, top_p: float) -> Ids:
    """The fewest best tokens whose weights sum to at least `top_p` of the total; always at least one. Best first."""
    target = top_p * weights.sum()
    count = FIRST_HEAD
    while True:
        order = best(weights, count)
        reached = int(np.searchsorted(np.cumsum(weights[order]), target, side="left"))
        if reached < len(order):
            return order[: reached + 1]
        if count >= len(weights):
            return order  # rounding kept the sum below the target
        count *= 16


def with_logprobs(token: int, logits: NDArray[np.float32], num_top: int) -> Sampled:
    """Adds log probabilities of the model's own distribution: temperature 1, nothing filtered or banned."""
    values = logits.astype(np.float64)
    peak = values.max()
    log_total = peak + np.log(np.exp(values - peak).sum())
    top = best(logits, num_top) if num_top else ()
    return Sampled(
        token=token,
        logprob=float(values[token] - log_total),
        top=tuple((int(i), float(values[i] - log_total)) for i in top),
    )
