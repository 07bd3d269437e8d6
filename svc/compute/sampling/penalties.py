"""What moves logits before anything is filtered: the bias a client asks for, and penalties on tokens that came before."""

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
    """Makes tokens of the past less likely (or more, if a client asks for that), in place.

    Repetition first: a logit above 0 is divided by the penalty, any other multiplied, once however often the token came. Then
    presence is subtracted once and frequency as often as the token came.
    """
    window = history.tokens if params.repeat_last_n < 0 else history.tokens[max(0, len(history.tokens) - params.repeat_last_n) :]
    if params.repetition_penalty != 1:
        seen = logits[window]  # a token that came twice is here twice, and written twice with the same number
        logits[window] = np.where(seen > 0, seen / params.repetition_penalty, seen * params.repetition_penalty)
    if params.presence_penalty or params.frequency_penalty:
        counted = window if params.penalize_prompt else history.tokens[history.num_prompt :]
        tokens, counts = np.unique(counted, return_counts=True)
        logits[tokens] -= params.presence_penalty + params.frequency_penalty * counts
