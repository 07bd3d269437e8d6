"""DRY's sequence breakers: from texts to the tokens that have them, as llama.cpp does.

A token that contains a whole breaker is one by itself. A token that ends with the beginning of one is a breaker together with the
tokens of the rest, as the tokenizer writes that.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from svc.compute.sampling.steps import Breakers, Int32

MAX_CHARS = 40  # of a breaker that count; the others are cut off
MAX_REST_TOKENS = 20
_END = b"\xff"  # of each token's text: no UTF-8 text has it
_KEPT = 8  # answers: most requests have the same few breakers


class BreakerIndex:
    """The texts of all tokens, to be searched. Takes some 20 ms to build and 1 ms for each character of a breaker."""

    def __init__(self, texts: list[bytes], encode: Callable[[str], list[int]]) -> None:
        """`encode`: a text's tokens."""
        self._joined = _END.join([*texts, b""])
        self._ends = np.cumsum([len(text) + 1 for text in texts]) - 1  # where each token's _END is
        self._encode = encode
        self.find = lru_cache(_KEPT)(self._find)

    def _find(self, breakers: tuple[str, ...]) -> Breakers:
        single: list[Int32] = [np.zeros(0, np.int32)]
        longer: dict[tuple[int, ...], list[Int32]] = {}
        for text in breakers:
            text = text[:MAX_CHARS]
            single.append(self._tokens_at(self._places(text.encode())))
            for length in range(1, len(text)):
                heads = self._ending_with(text[:length].encode())
                if len(heads):
                    rest = tuple(self._encode(text[length:])[:MAX_REST_TOKENS])
                    longer.setdefault(rest, []).append(heads)
        return Breakers(_union(single), tuple((_union(heads), rest) for rest, heads in longer.items()))

    def _ending_with(self, text: bytes) -> Int32:
        places = self._places(text + _END)
        tokens = self._tokens_at(places)
        # A token of one lone byte may be _END itself: then the match is not at its end.
        return tokens[np.isin(self._ends[tokens], places + len(text))]

    def _tokens_at(self, places: NDArray[np.int64]) -> Int32:
        """The tokens whose texts these places are in, each once, ascending."""
        found = np.zeros(len(self._ends), np.bool_)
        found[np.searchsorted(self._ends, places)] = True
        return np.flatnonzero(found).astype(np.int32)

    def _places(self, text: bytes) -> NDArray[np.int64]:
        if len(text) == 1:
            return np.flatnonzero(np.frombuffer(self._joined, np.uint8) == text[0])
        return np.fromiter(self._search(text), np.int64)

    def _search(self, text: bytes) -> Iterator[int]:
        place = self._joined.find(text)
        while place >= 0:
            yield place
            place = self._joined.find(text, place + 1)


def _union(parts: list[Int32]) -> Int32:
    return np.unique(np.concatenate(parts))
