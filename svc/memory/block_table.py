"""Which page holds which positions of one sequence."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class BlockTable:
    """Page of position p is `pages[p // page_tokens]`. Grows at the end; owned by one lease."""

    def __init__(self, page_tokens: int, pages: Sequence[int] = (), places: NDArray[np.int32] | None = None) -> None:
        """`places[page]`: where on the device a page stands, the pool's own array; None: at its own number."""
        self.page_tokens = page_tokens
        self._places = places
        self._buffer = np.zeros(max(16, 2 * len(pages)), dtype=np.int32)
        self._buffer[: len(pages)] = pages
        self._length = len(pages)

    def __len__(self) -> int:
        """Number of pages."""
        return self._length

    def __repr__(self) -> str:
        return f"BlockTable({self._length} pages of {self.page_tokens})"

    @property
    def pages(self) -> list[int]:
        """All pages in order (a copy)."""
        pages: list[int] = self._buffer[: self._length].tolist()
        return pages

    @property
    def end(self) -> int:
        """First position that has no page."""
        return self._length * self.page_tokens

    def page_at(self, index: int) -> int:
        assert 0 <= index < self._length, f"no page at index {index} of {self!r}"
        return int(self._buffer[index])

    def append(self, page: int) -> None:
        if self._length == len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.zeros_like(self._buffer)])
        self._buffer[self._length] = page
        self._length += 1

    def replace(self, index: int, page: int) -> None:
        assert 0 <= index < self._length, f"no page at index {index} of {self!r}"
        self._buffer[index] = page

    def array(self, end: int) -> NDArray[np.int32]:
        """Places on the device of the pages covering positions [0, end), int32 `[ceil(end / page_tokens)]`: a copy, safe to hand
        to the compute thread."""
        count = -(-end // self.page_tokens)
        assert count <= self._length, f"positions up to {end} have no page in {self!r}"
        pages = self._buffer[:count]
        return pages.copy() if self._places is None else self._places[pages]
