"""Which tokens a grammar allows, as bits, and what is left of them beside bans."""

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]  # [ceil(V / 32)]: bit i % 32 of word i // 32 is token i


def unpacked(words: Words, vocabulary: int) -> NDArray[np.bool_]:
    """For each token, whether it is allowed."""
    return np.unpackbits(words.view(np.uint8), count=vocabulary, bitorder="little").view(np.bool_)


def bans_beside(banned: tuple[int, ...], words: Words | None) -> tuple[int, ...]:
    """`banned`, or nothing if no token that the grammar allows would be left: it may only end the answer where it must not end."""
    if words is None or not banned:
        return banned
    left = words.copy()
    tokens = np.array(banned)
    np.bitwise_and.at(left, tokens // 32, ~(np.uint32(1) << (tokens % 32).astype(np.uint32)))
    return banned if left.any() else ()
