"""From one row of logits to one token.

The steps, in this order; the default of a field skips its step.

| | field | does |
|---|---|---|
| 0 | grammar | takes out all tokens that a grammar does not allow |
| 1 | `logit_bias` | adds to the logits of single tokens |
| 2 | `repetition_penalty` | divides (above 0) or multiplies the logits of tokens among the last `repeat_last_n`, prompt included |
| 3 | `presence_penalty`, `frequency_penalty` | subtract once, and once per occurrence, from tokens of the answer |
| 4 | banned tokens | excluded: `ignore_eos`, stop tokens before `min_tokens`, a bias of false, ends of `bad_words` |
| 5 | `temperature` | divides; 0 takes the best and ends here |
| 6 | `top_k` | keeps the k best |
| 7 | `top_p` | keeps the fewest best that have this share of the remaining probability |
| 8 | `min_p` | keeps those with at least this probability relative to the best |
| 9 | `seed` | draws one |

The temperature comes before top-p and min-p, as in OpenAI's API and vLLM: they see the distribution that is drawn from.
With `steps`, the steps in ordered.py take the place of 2, 3 and 5 to 8, in every backend.
Log probabilities are those of the model before step 1. All arithmetic is float64 and on one row, so the outcome cannot depend on
the other rows of a batch.

The draw inverts the cumulative distribution over the kept tokens in the order of their ids. In the order of their probabilities,
two nearly equal logits that swap under a last-bit difference would change the token; in the order of ids they do not.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from svc.compute.backend import NO_TOKEN, NOT_FINITE, History, Sample, Sampled
from svc.compute.sampling.bad_words import completions
from svc.compute.sampling.best import Ids, best
from svc.compute.sampling.inverse_cdf import Float64, pick
from svc.compute.sampling.masks import Words, bans_beside, unpacked
from svc.compute.sampling.ordered import Draw, draw_in_steps
from svc.compute.sampling.params import SamplingParams
from svc.compute.sampling.penalties import add_bias, penalize
from svc.compute.sampling.randomness import uniform
from svc.compute.sampling.top_p import nucleus, scaled_below_best

XTC_CHANCE = 1  # another uniform number than the draw's


def sample(
    logits: NDArray[np.float32],
    params: SamplingParams,
    banned: tuple[int, ...],
    choice: int,
    position: int,
    history: History | None = None,
    mask: Words | None = None,
    learned: tuple[float, ...] = (),
) -> Sampled:
    """Chooses a token from `logits` [V] (not changed), of those in `mask` if there is one.

    NOT_FINITE where logits are not, NO_TOKEN where the mask is empty. At least one token must not be banned; if bans leave none of
    the mask they do not count. `history` is given if and only if the parameters need it.
    """
    if not is_finite(logits):
        return Sampled(NOT_FINITE)
    if mask is not None and not mask.any():
        return Sampled(NO_TOKEN)
    assert (history is not None) == params.needs_history, "history given without need, or missing"
    bans = bans_beside((*banned, *completions(params.bad_words, history)), mask)
    if params.steps is not None:
        allowed = _allowed(logits, params, bans, None, mask)
        uniforms = uniform(params.seed, choice, position), uniform(params.seed, choice, position, XTC_CHANCE)
        return _reported(draw_in_steps(allowed, params, history, learned, uniforms), logits, params)
    allowed = _allowed(logits, params, bans, history, mask)
    if params.temperature == 0:
        token = int(np.argmax(allowed))  # the lowest id among equals
    else:
        token = draw(allowed, params, uniform(params.seed, choice, position))
    if params.num_logprobs is None:
        return Sampled(token=token)
    return with_logprobs(token, logits, params.num_logprobs)


def sample_rows(logits: NDArray[np.float32], rows: Sequence[int], samples: Sequence[Sample]) -> list[Sampled]:
    """samples[i] from logits[rows[i]]; logits [n, V]."""
    return [
        sample(
            logits[row],
            each.params,
            each.banned,
            each.choice,
            each.position,
            each.history,
            each.mask() if each.mask else None,
            each.learned,
        )
        for row, each in zip(rows, samples, strict=True)
    ]


def _reported(drawn: Draw, logits: NDArray[np.float32], params: SamplingParams) -> Sampled:
    """The outcome of the steps, with the log probabilities asked for."""
    if params.num_logprobs is None:
        return Sampled(drawn.token, learned=drawn.learned)
    if params.steps is not None and params.steps.post_sampling_probs:
        return Sampled(drawn.token, drawn.logprob, drawn.top(params.num_logprobs), drawn.learned)
    return replace(with_logprobs(drawn.token, logits, params.num_logprobs), learned=drawn.learned)


def _allowed(
    logits: NDArray[np.float32], params: SamplingParams, banned: tuple[int, ...], history: History | None, mask: Words | None
) -> NDArray[np.floating]:
    """Steps 0 to 4. Returns `logits` itself if there is nothing to do, which is the usual case."""
    assert len(set(banned)) < len(logits), "every token is banned"
    if not (params.logit_bias or history or banned or mask is not None):
        return logits
    changed = logits.astype(np.float64)
    if mask is not None:
        changed[~unpacked(mask, len(logits))] = -np.inf
    add_bias(changed, params)
    if history is not None:
        penalize(changed, params, history)
    changed[list(banned)] = -np.inf
    return changed


def draw(logits: NDArray[np.floating], params: SamplingParams, u: float) -> int:
    """The token at `u` in [0, 1) of the filtered distribution. A logit of -inf has no chance."""
    ids: Ids | None = None  # None: all of them
    if 0 < params.top_k < len(logits):  # the temperature does not change the order: the rest is done with
        ids = np.sort(best(logits, params.top_k))
        logits = logits[ids]
    if params.min_p > 0 and params.top_p == 1:
        likely = _perhaps_above(logits, params)
        if len(likely) < len(logits) // 4:
            ids = likely if ids is None else ids[likely]
            logits = logits[likely]
    weights = _weights(logits, params.temperature)
    if params.top_p < 1:
        kept = nucleus(logits, params.temperature, weights, params.top_p)
        ids = kept if ids is None else ids[kept]
        weights = weights[kept]
    if params.min_p > 0:
        kept = np.flatnonzero(weights >= params.min_p * weights.max())
        ids = kept if ids is None else ids[kept]
        weights = weights[kept]
    index = pick(weights, u)
    return index if ids is None else int(ids[index])


def _weights(logits: NDArray[np.floating], temperature: float) -> Float64:
    """Probabilities up to a factor: the largest is 1. One new array only: allocating more costs more than the mathematics."""
    scaled = scaled_below_best(logits, temperature, float(logits.max()))
    return np.exp(scaled, out=scaled)


def _perhaps_above(logits: NDArray[np.floating], params: SamplingParams) -> Ids:
    """Ids of all tokens that min_p may keep, and few others. Only these need an exponential."""
    with np.errstate(over="ignore"):
        threshold = logits.dtype.type(float(logits.max()) + params.temperature * (math.log(params.min_p) - 1e-3))
        return np.flatnonzero(logits >= np.nextafter(threshold, logits.dtype.type(-np.inf)))  # it may have been rounded up


def is_finite(logits: NDArray[np.float32]) -> bool:
    """Whether all logits are finite: NaN and infinity show in the minimum or the maximum."""
    return math.isfinite(logits.min()) and math.isfinite(logits.max())


def with_logprobs(token: int, logits: NDArray[np.float32], num_top: int) -> Sampled:
    """Adds log probabilities of the model's own distribution: temperature 1, nothing filtered or banned."""
    log_total = _log_sum_exp(logits)
    top = best(logits, num_top) if num_top else ()
    return Sampled(
        token=token,
        logprob=float(logits[token]) - log_total,
        top=tuple((int(i), float(logits[i]) - log_total) for i in top),
    )


def logprob(logits: NDArray[np.float32], token: int) -> float:
    """Log probability of `token` in the model's own distribution; NaN if the logits [V] are not all finite."""
    return float(logits[token]) - _log_sum_exp(logits) if is_finite(logits) else math.nan


def _log_sum_exp(logits: NDArray[np.float32]) -> float:
    return float(logits.max()) + float(np.log(_weights(logits, 1.0).sum()))
