"""KV pages as numbers: who holds each page, how many of its rows are sealed, who may write it, which are free.

Owner of all page counts. A page has two kinds of references: *holds* (live leases, copies under way, pins) and *claims* (nodes
of the prefix tree). A page with claims only is *cached*: eviction can give it back, or move it to the host. With neither it is
free. A page keeps its number wherever it stands (tiers.py); a held page stays where it is, except that a lease fetches its own.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from svc.memory.tiers import Tiers

NO_WRITER = -1


class PagePool:
    """`num_pages` pages of `page_tokens` rows each on the device, and room for `num_host_pages` more on the host."""

    def __init__(self, num_pages: int, page_tokens: int, num_host_pages: int = 0) -> None:
        self.num_pages = num_pages
        self.page_tokens = page_tokens
        # Pages on the device with claims and no hold; kept as a count so that admission is O(1) (check() recounts).
        self.num_cached = 0
        self._tiers = Tiers(num_pages, num_host_pages)
        num_pages += num_host_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._holds = [0] * num_pages
        self._claims = [0] * num_pages
        # Rows below this number are immutable until the page is free. It never falls while the page lives, even when the claim
        # that set it goes: a lease that resumed behind that claim still reads those rows.
        self._sealed_rows = [0] * num_pages
        self._writer = [NO_WRITER] * num_pages

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
        """Place on the device by page, negative for pages that stand elsewhere: int32, changes with every move."""
        return self._tiers.places

    def pages_for(self, end: int) -> int:
        """How many pages cover positions [0, end)."""
        return -(-end // self.page_tokens)

    # -- holds ----------------------------------------------------------------------------------------------------------------
    def allocate(self, writer: int) -> int:
        """A free page, held once, with `writer` (a lease's serial) as its only writer."""
        page = self._free.pop()
        self._tiers.put(page)
        self._holds[page] = 1
        self._writer[page] = writer
        return page

    def hold(self, pages: Iterable[int]) -> None:
        for page in pages:
            if not self._holds[page]:
                assert self._claims[page], f"page {page} is free and cannot be held"
                self.num_cached -= not self.on_host(page)
            self._holds[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        for page in pages:
            assert self._holds[page] > 0, f"page {page} is released more often than held"
            self._holds[page] -= 1
            if not self._holds[page]:
                if self._claims[page]:
                    self.num_cached += not self.on_host(page)
                else:
                    self._set_free(page)

    def is_held(self, page: int) -> bool:
        return self._holds[page] > 0

    # -- claims ---------------------------------------------------------------------------------------------------------------
    def claim(self, pages: Iterable[int]) -> None:
        for page in pages:
            assert self._holds[page] or self._claims[page], f"page {page} is free and cannot be claimed"
            self._claims[page] += 1

    def unclaim(self, pages: Iterable[int]) -> None:
        for page in pages:
            assert self._claims[page] > 0, f"page {page} is unclaimed more often than claimed"
            self._claims[page] -= 1
            if not self._claims[page] and not self._holds[page]:
                self.num_cached -= not self.on_host(page)
                self._set_free(page)

    def seal(self, page: int, rows: int) -> None:
        """Makes the first `rows` rows immutable."""
        self._sealed_rows[page] = max(self._sealed_rows[page], rows)

    def sealed_rows(self, page: int) -> int:
        return self._sealed_rows[page]

    # -- tiers ----------------------------------------------------------------------------------------------------------------
    def on_host(self, page: int) -> bool:
        return self._tiers.on_host(page)

    def device_place(self, page: int) -> int:
        """Where on the device it stands."""
        return self._tiers.device_place(page)

    def move_out(self, page: int) -> tuple[int, int]:
        """To the host, which must have a free place; the page is cached: (place on the device, place on the host)."""
        assert self._claims[page], f"page {page} is free and cannot be moved"
        assert not self._holds[page], f"page {page} is held and cannot be moved"
        self.num_cached -= 1
        return self._tiers.move_out(page)

    def move_in(self, page: int) -> tuple[int, int]:
        """To the device, which must have a free place; the page is held: (place on the host, place on the device)."""
        assert self._holds[page], f"page {page} is not held: nobody needs it on the device"
        return self._tiers.move_in(page)

    def find_idle(self) -> int | None:
        """Some cached page on the device. Looks at all of them."""
        pages = np.flatnonzero(self.places >= 0).tolist()
        return next((page for page in pages if not self._holds[page] and self._claims[page]), None)

    # -- writers --------------------------------------------------------------------------------------------------------------
    def writer(self, page: int) -> int:
        return self._writer[page]

    def can_take_over(self, page: int, row: int) -> bool:
        """Whether a newcomer may write rows >= `row` in place: nobody else writes there and nothing beyond is sealed."""
        return self._writer[page] == NO_WRITER and self._sealed_rows[page] <= row

    def take_over(self, page: int, writer: int) -> None:
        assert self._writer[page] == NO_WRITER, f"page {page} already has a writer"
        self._writer[page] = writer

    def stop_writing(self, page: int, writer: int) -> None:
        if self._writer[page] == writer:
            self._writer[page] = NO_WRITER

    # -- checks ---------------------------------------------------------------------------------------------------------------
    def check(self, holds: Sequence[int], claims: Sequence[int]) -> None:
        """Compares the counts with what the holders say: every page once per reference, in any order."""
        held, claimed = np.array(self._holds), np.array(self._claims)
        _expect_equal("holds", held, np.bincount(np.array(holds, dtype=np.intp), minlength=len(held)))
        _expect_equal("claims", claimed, np.bincount(np.array(claims, dtype=np.intp), minlength=len(held)))
        listed = np.bincount(np.array(self._free, dtype=np.intp), minlength=len(held))
        _expect_equal("entries in the free list", listed, ((held == 0) & (claimed == 0)).astype(np.intp))
        self._tiers.check(np.flatnonzero((held > 0) | (claimed > 0)).tolist())
        cached = int(((held == 0) & (claimed > 0) & (self.places >= 0)).sum())
        assert cached == self.num_cached, f"{self.num_cached} cached pages counted, {cached} found"
        for page in self._free:
            assert self._sealed_rows[page] == 0, f"free page {page} has sealed rows"
            assert self._writer[page] == NO_WRITER, f"free page {page} has a writer"

    def _set_free(self, page: int) -> None:
        self._sealed_rows[page] = 0
        self._writer[page] = NO_WRITER
        self._tiers.remove(page)
        self._free.append(page)


def _expect_equal(what: str, counted: NDArray[np.intp], found: NDArray[np.intp]) -> None:
    for page in np.flatnonzero(counted != found)[:1]:
        raise AssertionError(f"page {page}: {counted[page]} {what} counted, {found[page]} expected")
