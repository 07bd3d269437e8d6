"""Token ids as the memory looks at them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

TokenIds = Sequence[int] | NDArray[np.int32]
"""Token ids of a sequence. An int32 array is used as it is; anything else is converted on every call (about 40 ns per token)."""

TokenArray = NDArray[np.int32]


def token_array(tokens: TokenIds, end: int | None = None) -> TokenArray:
    """The first `end` tokens (all by default) as int32 `[end]`."""
    head = tokens if end is None or end == len(tokens) else tokens[:end]
    return np.asarray(head, dtype=np.int32)


class TokenSource(Protocol):
    """Token ids that grow at the end."""

    @property
    def array(self) -> TokenArray:
        """All tokens so far, int32 `[n]`."""


@dataclass(frozen=True, slots=True)
class FixedTokens:
    """Token ids that do not grow."""

    array: TokenArray

    @classmethod
    def of(cls, tokens: TokenIds) -> "FixedTokens":
        return cls(token_array(tokens))


def common_prefix(tokens: TokenArray, others: TokenArray) -> int:
    """Length of the common prefix; looks at little more than that."""
    length = min(len(tokens), len(others))
    start, block = 0, 64
    while start < length:
        stop = min(start + block, length)
        differ = tokens[start:stop] != others[start:stop]
        first = int(differ.argmax())
        if differ[first]:
            return start + first
        start, block = stop, 4 * block
    return length


def edge(tokens: TokenArray) -> tuple[TokenArray, bytearray]:
    """A copy of some tokens as an edge keeps them: an array that is a view of bytes."""
    data = bytearray(tokens.data.cast("B"))
    array = np.frombuffer(data, np.int32)
    array.setflags(write=False)
    return array, data
