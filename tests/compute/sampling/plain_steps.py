"""The steps of sampling as llama.cpp's documentation and their authors describe them, one token after the other: slow and plain.

A row of logits is a dict here: token -> logit, of those that are left.
"""

import math
from collections.abc import Sequence
from typing import Any

Left = dict[int, float]


def softmax(left: Left) -> Left:
    best = max(left.values())
    weights = {token: math.exp(logit - best) for token, logit in left.items()}
    total = math.fsum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


def best_first(left: Left) -> list[int]:
    return sorted(left, key=lambda token: (-left[token], token))


def only(left: Left, tokens: Sequence[int]) -> Left:
    return {token: left[token] for token in tokens}


def top_k(left: Left, k: int) -> Left:
    return only(left, best_first(left)[:k]) if k > 0 else left


def top_p(left: Left, p: float, min_keep: int) -> Left:
    """ "Limit the next token selection to a subset of tokens with a cumulative probability above a threshold P"."""
    if p >= 1:
        return left
    shares, kept, total = softmax(left), [], 0.0
    for token in best_first(left):
        kept.append(token)
        total += shares[token]
        if total >= p and len(kept) >= min_keep:
            break
    return only(left, kept)


def min_p(left: Left, p: float, min_keep: int) -> Left:
    """ "The minimum probability for a token to be considered, relative to the probability of the most likely token"."""
    shares = softmax(left)
    ranked = best_first(left)
    return only(left, [t for rank, t in enumerate(ranked) if shares[t] >= p * shares[ranked[0]] or rank < min_keep])


def typical_p(left: Left, p: float, min_keep: int) -> Left:
    """Locally typical sampling (Meister et al. 2022): the surprise is close to the entropy."""
    if p >= 1:
        return left
    shares = softmax(left)
    entropy = -math.fsum(share * math.log(share) for share in shares.values() if share)
    kept, total = [], 0.0
    for token in sorted(left, key=lambda token: (abs(-math.log(shares[token]) - entropy), token)):
        kept.append(token)
        total += shares[token]
        if total > p and len(kept) >= min_keep:
            break
    return only(left, kept)


def top_n_sigma(left: Left, n: float) -> Left:
    """Tang et al. 2024: logits within n standard deviations of the best."""
    if n <= 0:
        return left
    mean = math.fsum(left.values()) / len(left)
    deviation = math.sqrt(math.fsum((logit - mean) ** 2 for logit in left.values()) / len(left))
    return {token: logit for token, logit in left.items() if logit >= max(left.values()) - n * deviation}


def xtc(left: Left, threshold: float, min_keep: int) -> Left:
    """ "Removes all tokens above the threshold except the least likely one of them"."""
    shares = softmax(left)
    likely = [token for token in best_first(left) if shares[token] >= threshold]
    if threshold > 0.5 or len(likely) < 2 or len(left) - len(likely) + 1 < min_keep:
        return left
    return {token: logit for token, logit in left.items() if token not in likely[:-1]}


def temperature(left: Left, t: float, reach: float = 0.0, exponent: float = 1.0) -> Left:
    """Fixed, or from t - reach to t + reach as the entropy is from none to the most there can be."""
    if reach > 0 and len(left) > 1:
        entropy = -math.fsum(share * math.log(share) for share in softmax(left).values() if share)
        low = max(0.0, t - reach)
        t = low + (t + reach - low) * (entropy / math.log(len(left))) ** exponent
    if t <= 0:
        return only(left, best_first(left)[:1])
    return {token: logit / t for token, logit in left.items()}


def penalties(left: Left, past: Sequence[int], repetition: float, presence: float, frequency: float) -> Left:
    out = {}
    for token, logit in left.items():
        count = past.count(token)
        if count:
            logit = logit / repetition if logit > 0 else logit * repetition
            logit -= presence + frequency * count
        out[token] = logit
    return out


def dry(left: Left, past: Sequence[int], wanted: Any, breakers: Sequence[tuple[int, ...]] = ()) -> Left:
    """For each token: the longest end of the text behind the last breaker that has come before with that token behind it.

    A token that is a breaker loses nothing.
    """
    past = list(past)[-wanted.last_n :] if wanted.last_n >= 0 else list(past)
    if wanted.last_n == 0 or len(past) <= wanted.allowed_length:
        return left
    ends = [i + len(b) for b in breakers for i in range(len(past)) if tuple(past[i : i + len(b)]) == b]
    limit = len(past) - max(ends, default=0)
    if limit < wanted.allowed_length:
        return left
    out = dict(left)
    for token in left:
        if (token,) in breakers:
            continue
        longest = -1
        for place in range(1, len(past)):
            if past[place] != token:
                continue
            length = 0
            while length < min(place, limit) and past[place - 1 - length] == past[-1 - length]:
                length += 1
            longest = max(longest, length)
        if longest >= wanted.allowed_length:
            out[token] -= wanted.multiplier * wanted.base ** (longest - wanted.allowed_length)
    return out


def mirostat(left: Left, version: int, mu: float, vocabulary: int) -> Left:
    """Basu et al. 2020: the tokens left to draw from. Version 2 leaves out those of more surprise than mu."""
    shares = softmax(left)
    ranked = best_first(left)
    if version == 2:
        return only(left, [token for token in ranked if -math.log2(shares[token]) <= mu] or ranked[:1])
    if len(left) == 1:
        return left
    above = below = 0.0
    for i in range(1, min(100, len(ranked))):
        t, b = math.log((i + 1) / i), math.log(shares[ranked[i - 1]] / shares[ranked[i]])
        above, below = above + t * b, below + t * t
    s = above / below
    k = ((s - 1) * 2**mu / (1 - vocabulary ** (1 - s))) ** (1 / s)
    return only(left, ranked[: max(1, int(k))])


def adaptive(left: Left, target: float) -> Left:
    """llama.cpp's adaptive-p: new logits, highest where the probability is the target."""
    distances = {token: abs(share - target) / 0.3 for token, share in softmax(left).items()}
    return {token: 5.0 - 10.0 * d * d / (1.0 + d) for token, d in distances.items()}


def drawn(left: Left, u: float) -> tuple[int, float]:
    """(the first token, by id, up to which there is more than `u` of the probability; how near `u` was to another)."""
    shares, total, nearest = softmax(left), 0.0, 1.0
    found = None
    for token in sorted(left):
        total += shares[token]
        nearest = min(nearest, abs(total - u))
        if found is None and total > u:
            found = token
    return (max(left) if found is None else found), nearest
