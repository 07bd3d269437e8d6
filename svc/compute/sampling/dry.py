"""DRY ("don't repeat yourself"): tokens that would make a repeat longer lose, the more the longer the repeat is already."""

import math

import numpy as np
from numpy.typing import NDArray

from svc.compute.sampling.inverse_cdf import Float64
from svc.compute.sampling.steps import Dry

Int32 = NDArray[np.int32]
MAX_LOG_PENALTY = 88.7228391  # of the largest float32: llama.cpp's bound of a penalty without its multiplier
# Text of one token only must not take long. No shorter or rarer repeat is affected.
MAX_REPEAT = 256  # tokens of a repeat that count
SURE_TOKENS, MOST_LONGER = 16, 2048  # beyond that length, only so many of the latest repeats are followed further back


def dry_penalties(tokens: Int32, dry: Dry) -> tuple[Int32, Float64]:
    """(tokens that lose, each once; how much their logits lose), after `tokens`, prompt included."""
    nothing = np.zeros(0, np.int32), np.zeros(0)
    recent = tokens if dry.last_n < 0 else tokens[max(0, len(tokens) - dry.last_n) :]
    if len(recent) <= dry.allowed_length:
        return nothing
    limit = _since_breaker(recent, dry)
    if limit < dry.allowed_length:
        return nothing
    followers, lengths = _repeats(recent, limit, dry.allowed_length)
    goes_on = ~np.isin(followers, dry.breakers.single)
    followers, longer = followers[goes_on], (lengths[goes_on] - dry.allowed_length).astype(np.float64)
    if dry.base > 1.000001:
        longer = np.minimum(longer, int(MAX_LOG_PENALTY / math.log(dry.base)))
    return followers, dry.multiplier * dry.base**longer


def _repeats(tokens: Int32, limit: int, least: int) -> tuple[Int32, Int32]:
    """Tokens that came after a repeat of the last tokens, each once, and the length of the longest such repeat.

    Of the repeats, those of at least `least` tokens; a length is at most `limit`.
    """
    last = len(tokens) - 1
    lengths = np.zeros(last, np.int32)  # of the repeat that ends at each place
    goes_on = tokens[:last] == tokens[last]
    num_passes = min(limit, MAX_REPEAT, last)
    for length in range(1, min(num_passes, SURE_TOKENS) + 1):
        lengths += goes_on
        goes_on[:length] = False
        goes_on[length:] &= tokens[: last - length] == tokens[last - length]
    ends = np.flatnonzero(goes_on)[-MOST_LONGER:]
    for length in range(SURE_TOKENS + 1, num_passes + 1):
        if not len(ends):
            break
        lengths[ends] = length
        ends = ends[ends >= length]
        ends = ends[tokens[ends - length] == tokens[last - length]]
    places = np.flatnonzero(lengths >= least)
    longest = np.full(int(tokens.max()) + 1, -1, np.int32)  # by token
    np.maximum.at(longest, tokens[places + 1], lengths[places])
    followers = np.flatnonzero(longest >= 0).astype(np.int32)
    return followers, longest[followers]


def _since_breaker(tokens: Int32, dry: Dry) -> int:
    """How many tokens there are behind the last breaker: no repeat reaches further back. At most about MAX_REPEAT counts."""
    longest = max((len(rest) for _, rest in dry.breakers.longer), default=0)
    end = tokens[-(MAX_REPEAT + longest + 1) :]
    found = {int(place): 0 for place in np.flatnonzero(np.isin(end, dry.breakers.single))[-1:]}  # place: tokens of the rest
    for heads, rest in dry.breakers.longer:
        for place in np.flatnonzero(np.isin(end, heads)).tolist():
            if len(rest) > found.get(place, -1) and tuple(end[place + 1 : place + 1 + len(rest)].tolist()) == rest:
                found[place] = len(rest)
    if not found:
        return len(tokens)
    place = max(found)
    return len(end) - 1 - place - found[place]
