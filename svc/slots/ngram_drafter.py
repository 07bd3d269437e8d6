"""Drafts from the text itself: what followed when the last tokens stood there before. Finds copies: edited files, quotes, code."""

import numpy as np

from svc.slots.speculation import NO_DRAFTS, Tokens

LEAST_MATCH = 3  # tokens that must have stood there before
MOST_MATCH = 32  # of longer matches the latest is taken
PRIOR_WEIGHT = 4.0  # of what other sequences have shown, beside what this one has
FIRST_CHANCE = 0.5  # before anything was measured
MEMORY = 200.0  # most tokens that count in a measured chance


class Odds:
    """How often a proposed token was right, by the length of the match behind it. `prior`: what other sequences have shown."""

    def __init__(self, prior: "Odds | None" = None) -> None:
        self._prior = prior
        self._right, self._tried = [0.0] * 8, [0.0] * 8

    def note(self, match: int, *, right: bool) -> None:
        kind = _kind(match)
        keep = 1.0 - 1.0 / MEMORY
        self._tried[kind] = keep * self._tried[kind] + 1
        self._right[kind] = keep * self._right[kind] + right
        if self._prior is not None:
            self._prior.note(match, right=right)

    def chance(self, match: int) -> float:
        kind = _kind(match)
        prior = FIRST_CHANCE if self._prior is None else self._prior.chance(match)
        return (self._right[kind] + PRIOR_WEIGHT * prior) / (self._tried[kind] + PRIOR_WEIGHT)


class NgramDrafter:
    """Owner of one sequence's place in its own text. `Drafter`."""

    name = "ngram"

    def __init__(self, odds: Odds) -> None:
        """`odds`: of all sequences."""
        self._odds = Odds(odds)
        self._known = 0  # tokens seen so far
        self._source = 0  # the token that would be proposed next; 0: none
        self._match = 0  # tokens before it that are those at the end

    def advance(self, tokens: Tokens) -> None:
        for token in tokens[self._known :].tolist() if self._source else ():
            right = int(tokens[self._source]) == token
            self._odds.note(self._match, right=right)
            self._source, self._match = (self._source + 1, self._match + 1) if right else (0, 0)
            if not right:
                break
        self._known = len(tokens)
        if not self._source:
            self._source, self._match = _find(tokens)

    def draft(self, tokens: Tokens, most: int) -> tuple[Tokens, list[float]]:
        if not self._source:
            return NO_DRAFTS, []
        # Behind the last token the copy goes on with itself: a period repeats.
        period = len(tokens) - self._source
        drafts = tokens[self._source + np.arange(most) % period]
        return drafts, [self._odds.chance(self._match + place) for place in range(most)]


def _find(tokens: Tokens) -> tuple[int, int]:
    """(place behind the longest earlier match of the last tokens, its length), the latest of equals; (0, 0): none is long
    enough."""
    places = np.flatnonzero(tokens[:-1] == tokens[-1])
    match = 1
    while match < MOST_MATCH:
        longer = places[places >= match]
        longer = longer[tokens[longer - match] == tokens[-1 - match]] if len(longer) else longer
        if not len(longer):
            break
        places, match = longer, match + 1
    return (int(places[-1]) + 1, match) if match >= LEAST_MATCH else (0, 0)


def _kind(match: int) -> int:
    return min(match.bit_length(), 7)
