"""Numbers that tell texts apart, for statistics about what is no longer kept. Never a proof that two texts are equal."""

import numpy as np
from numpy.typing import NDArray

from svc.memory.tokens import TokenArray

Digests = NDArray[np.uint64]

FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that its powers are never 0


class PrefixDigests:
    """digest(tokens) = sum of (token + 1) * FACTOR^position, modulo 2^64: a longer text's goes on from a shorter one's."""

    def __init__(self) -> None:
        self._powers: Digests = np.ones(1, np.uint64)

    def of(self, tokens: TokenArray, start: int = 0, before: int = 0) -> Digests:
        """The digests of tokens[:start + 1], tokens[:start + 2], ..., where `before` is that of tokens[:start]."""
        if len(self._powers) < len(tokens):
            powers = np.full(2 * len(tokens), FACTOR)
            powers[0] = 1
            self._powers = np.multiply.accumulate(powers)
        added = (tokens[start:].astype(np.uint64) + np.uint64(1)) * self._powers[start : len(tokens)]
        digests: Digests = np.cumsum(added, dtype=np.uint64) + np.uint64(before)
        return digests
