"""KV pages as numbers: who uses each page, how many of its rows are sealed, who may write it, which are free.

Owner of all page counts. A page is *pinned* by live leases, by copies under way and by pinned snapshots, and *referenced* by nodes
of the prefix tree. A page with references only is *cached*: eviction can free it, or move it to the host. With neither it is free.
A page keeps its number when it moves between the tiers (tiers.py); a pinned page stays where it is, except that a lease fetches
its own.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from svc.memory.tiers import Tiers

NO_WRITER = -1

Pages = NDArray[np.int32]
"""Page numbers, each at most once."""


class PagePool:
    """`num_pages` pages of `page_tokens` rows each on the device, and `num_host_pages` more on the host."""

    def __init__(self, num_pages: int, page_tokens: int, num_host_pages: int = 0) -> None:
        self.num_pages = num_pages
        self.page_tokens = page_tokens
        # Pages on the device with references and no pin; kept as a count so that admission is O(1) (check() recounts).
        self.num_cached = 0
        self.num_freed = 0  # since start: who copies pages beside running steps sees by it that none has changed hands
        self._tiers = Tiers(num_pages, num_host_pages)
        total = num_pages + num_host_pages
        self._free = list(range(total - 1, -1, -1))
        self._pins = np.zeros(total, np.int32)
        self._references = np.zeros(total, np.int32)
        # Rows below this number are immutable until the page is free. It never falls while the page lives, even when the reference
        # that set it goes: a lease that resumed behind that reference still reads those rows.
        self._sealed_rows = np.zeros(total, np.int32)
        self._writer = np.full(total, NO_WRITER, np.int64)

    def __repr__(self) -> str:
        return f"PagePool({self.num_free} free, {self.num_cached} cached of {self.num_pages})"

    @property
    def num_free(self) -> int:
        """Pages free on the device."""
        return self._tiers.free_on_device

    @property
    def num_available(self) -> int:
        """Pages free on the device, and those that eviction can free."""
        return self.num_free + self.num_cached

    @property
    def num_host_pages(self) -> int:
        return self._tiers.num_host

    @property
    def num_free_on_host(self) -> int:
        return self._tiers.free_on_host

    @property
    def places(self) -> NDArray[np.int32]:
        """Place on the device by page, negative for pages elsewhere: int32, changes with every move."""
        return self._tiers.places

    def places_of(self, pages: Pages) -> NDArray[np.int32]:
        """Their places on the device, int32 `[n]`."""
        return self._tiers.places.take(pages)

    def pages_for(self, end: int) -> int:
        """How many pages cover positions [0, end)."""
        return -(-end // self.page_tokens)

    # -- pins -----------------------------------------------------------------------------------------------------------------
    def allocate(self, count: int, writer: int) -> Pages:
        """`count` free pages, each pinned once, with `writer` (a lease's serial) as their only writer."""
        pages = np.array([self._free.pop() for _ in range(count)], np.int32)
        for page in pages.tolist():
            self._tiers.put(page)
        self._pins[pages] = 1
        self._writer[pages] = writer
        return pages

    def pin(self, pages: Pages, times: int = 1) -> None:
        """Each of `pages`, so many times over."""
        index = pages.astype(np.intp)
        pins = self._pins.take(index)
        unpinned = pages[pins == 0]
        assert self._references.take(unpinned).all(), "a free page cannot be pinned"
        self.num_cached -= self._count_on_device(unpinned)
        self._pins[index] = pins + times

    def unpin(self, pages: Pages) -> None:
        index = pages.astype(np.intp)
        pins = self._pins.take(index)
        assert pins.all(), "a page is unpinned more often than pinned"
        pins -= 1
        self._pins[index] = pins
        unpinned = pages[pins == 0]
        if len(unpinned):
            cached = self._references.take(unpinned) > 0
            self.num_cached += self._count_on_device(unpinned[cached])
            self._set_free(unpinned[~cached])

    def is_pinned(self, page: int) -> bool:
        return bool(self._pins[page] > 0)

    def num_wanted(self, pages: Pages) -> int:
        """Pages that pinning and fetching `pages` takes out of `num_available`: those unpinned, or on the host."""
        wanted = self._pins.take(pages) == 0
        return int(np.count_nonzero(wanted | (self.places[pages] < 0) if self.num_host_pages else wanted))

    # -- references -----------------------------------------------------------------------------------------------------------
    def add_references(self, pages: Pages) -> None:
        assert ((self._pins[pages] > 0) | (self._references[pages] > 0)).all(), "a free page cannot be referenced"
        self._references[pages] += 1

    def drop_references(self, pages: Pages) -> None:
        assert (self._references[pages] > 0).all(), "a page loses more references than it has"
        self._references[pages] -= 1
        unused = pages[(self._references[pages] == 0) & (self._pins[pages] == 0)]
        self.num_cached -= self._count_on_device(unused)
        self._set_free(unused)

    def num_freed_with(self, pages: Pages) -> int:
        """How many of `pages` would be free with one reference less to each."""
        return int(np.count_nonzero((self._references.take(pages) == 1) & (self._pins.take(pages) == 0)))

    def seal(self, page: int, rows: int) -> None:
        """Makes the first `rows` rows immutable."""
        self._sealed_rows[page] = max(int(self._sealed_rows[page]), rows)

    def seal_whole(self, pages: Pages) -> None:
        """Makes all rows of `pages` immutable."""
        self._sealed_rows[pages] = self.page_tokens

    def sealed_rows(self, page: int) -> int:
        return int(self._sealed_rows[page])

    # -- tiers ----------------------------------------------------------------------------------------------------------------
    def on_host(self, page: int) -> bool:
        return self._tiers.on_host(page)

    def absent(self, pages: Pages) -> list[int]:
        """Those of `pages` that are on the host."""
        return pages[self.places_of(pages) < 0].tolist() if self.num_host_pages else []

    def device_place(self, page: int) -> int:
        """Its place on the device."""
        return self._tiers.device_place(page)

    def move_out(self, page: int) -> tuple[int, int]:
        """To the host, which must have a free place; the page is cached: (place on the device, place on the host)."""
        assert self._references[page], f"page {page} is free and cannot be moved"
        assert not self._pins[page], f"page {page} is pinned and cannot be moved"
        self.num_cached -= 1
        return self._tiers.move_out(page)

    def move_in(self, page: int) -> tuple[int, int]:
        """To the device, which must have a free place; the page is pinned: (place on the host, place on the device)."""
        assert self._pins[page], f"page {page} is not pinned: nobody needs it on the device"
        return self._tiers.move_in(page)

    def find_cached(self) -> int | None:
        """Some cached page on the device. Looks at all of them."""
        pages = np.flatnonzero((self.places >= 0) & (self._pins == 0) & (self._references > 0))
        return int(pages[0]) if len(pages) else None

    # -- writers --------------------------------------------------------------------------------------------------------------
    def writer(self, page: int) -> int:
        return int(self._writer[page])

    def can_steal(self, page: int, row: int) -> bool:
        """Whether a newcomer may write rows >= `row` in place: nobody else writes there and nothing beyond is sealed."""
        return bool(self._writer[page] == NO_WRITER and self._sealed_rows[page] <= row)

    def steal(self, page: int, writer: int) -> None:
        assert self._writer[page] == NO_WRITER, f"page {page} already has a writer"
        self._writer[page] = writer

    def stop_writing(self, pages: Pages, writer: int) -> None:
        self._writer[pages[self._writer.take(pages) == writer]] = NO_WRITER

    # -- checks ---------------------------------------------------------------------------------------------------------------
    def check(self, pins: Sequence[int], references: Sequence[int]) -> None:
        """Compares the counts with those of all users: every page once per use, in any order."""
        num = len(self._pins)
        _expect_equal("pins", self._pins, np.bincount(np.array(pins, dtype=np.intp), minlength=num))
        _expect_equal("references", self._references, np.bincount(np.array(references, dtype=np.intp), minlength=num))
        listed = np.bincount(np.array(self._free, dtype=np.intp), minlength=num)
        used = (self._pins > 0) | (self._references > 0)
        _expect_equal("entries in the free list", listed, (~used).astype(np.intp))
        self._tiers.check(np.flatnonzero(used).tolist())
        cached = int(((self._pins == 0) & (self._references > 0) & (self.places >= 0)).sum())
        assert cached == self.num_cached, f"{self.num_cached} cached pages counted, {cached} found"
        for page in self._free:
            assert self._sealed_rows[page] == 0, f"free page {page} has sealed rows"
            assert self._writer[page] == NO_WRITER, f"free page {page} has a writer"

    def _count_on_device(self, pages: Pages) -> int:
        return int((self.places[pages] >= 0).sum()) if self.num_host_pages else len(pages)

    def _set_free(self, pages: Pages) -> None:
        self.num_freed += len(pages)
        self._sealed_rows[pages] = 0
        self._writer[pages] = NO_WRITER
        for page in pages.tolist():
            self._tiers.remove(page)
            self._free.append(page)


def _expect_equal(what: str, counted: NDArray[np.int32] | NDArray[np.intp], found: NDArray[np.intp]) -> None:
    for page in np.flatnonzero(counted != found)[:1]:
        raise AssertionError(f"page {page}: {counted[page]} {what} counted, {found[page]} expected")
