"""Changes of logits before filtering: the bias that a client asks for, and penalties on earlier tokens."""

import numpy as np
from numpy.typing import NDArray

from svc.compute.backend import History
from svc.compute.sampling.params import SamplingParams

Float64 = NDArray[np.float64]


def add_bias(logits: Float64, params: SamplingParams) -> None:
    """Adds `logit_bias`, in place."""
    for token, bias in params.logit_bias:
        logits[token] += bias


def penalize(logits: Float64, params: SamplingParams, history: History) -> None:
    """Makes earlier tokens less likely (or more, if the client asks for that), in place.

    First repetition: a logit above 0 is divided by the penalty and any other multiplied, once per token however often it occurred.
    Then presence is subtracted once, and frequency once per occurrence.
    """
    window = history.tokens if params.repeat_last_n < 0 else history.tokens[max(0, len(history.tokens) - params.repeat_last_n) :]
    if params.repetition_penalty != 1:
        seen = logits[window]  # a repeated token is read twice and written twice with the same number
        logits[window] = np.where(seen > 0, seen / params.repetition_penalty, seen * params.repetition_penalty)
    if params.presence_penalty or params.frequency_penalty:
        counted = window if params.penalize_prompt else history.tokens[history.num_prompt :]
        tokens, counts = np.unique(counted, return_counts=True)
        logits[tokens] -= params.presence_penalty + params.frequency_penalty * counts
