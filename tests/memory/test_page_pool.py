"""References, seals and writers of pages, and tables of them."""

import numpy as np
import pytest

from svc.memory.lease import BlockTable
from svc.memory.page_pool import PagePool, Pages


def pages_of(*pages: int) -> Pages:
    return np.array(pages, np.int32)


def test_pins_and_references_keep_a_page() -> None:
    """A page is free when neither a lease nor the tree has it, cached when only the tree does."""
    pool = PagePool(2, 4)
    page = pool.allocate(1, writer=1)
    pool.add_references(page)
    pool.add_references(page)
    assert (pool.num_free, pool.num_cached, pool.num_available) == (1, 0, 1)
    pool.unpin(page)
    assert (pool.num_free, pool.num_cached, pool.num_available) == (1, 1, 2)
    pool.drop_references(page)
    assert (pool.num_free, pool.num_cached) == (1, 1)
    pool.pin(page)
    pool.drop_references(page)
    assert (pool.num_free, pool.num_cached) == (1, 0)
    pool.unpin(page)
    assert (pool.num_free, pool.num_cached) == (2, 0)
    pool.check(pins=[], references=[])


def test_many_pages_at_once_are_counted_one_by_one() -> None:
    """Of the pages of one call some stay pinned, some become cached and some free."""
    pool = PagePool(6, 4)
    pages = pool.allocate(6, writer=1)
    pool.pin(pages[:2])
    pool.add_references(pages[1:4])
    pool.unpin(pages)
    assert (pool.num_free, pool.num_cached, pool.num_available) == (2, 2, 4)
    pool.check(pins=pages[:2].tolist(), references=pages[1:4].tolist())
    assert pool.num_wanted(pages[:4]) == 2
    pool.drop_references(pages[1:4])
    pool.unpin(pages[:2])
    assert pool.num_free == 6
    pool.check(pins=[], references=[])


def test_free_pages_have_no_users() -> None:
    """Pinning or unpinning a free page, and adding or dropping a reference to it, is caught."""
    pool = PagePool(1, 4)
    for use in (pool.pin, pool.unpin, pool.add_references, pool.drop_references):
        with pytest.raises(AssertionError, match="page"):
            use(pages_of(0))
    pool.check(pins=[], references=[])


def test_sealed_rows_never_become_writable() -> None:
    """A shorter text does not open rows that a longer one sealed; only a page that was free starts anew, without a writer."""
    pool = PagePool(1, 8)
    (page,) = pool.allocate(1, writer=1).tolist()
    pool.seal(page, 6)
    pool.seal(page, 2)
    assert pool.sealed_rows(page) == 6
    assert not pool.can_steal(page, 6)  # it has a writer
    pool.stop_writing(pages_of(page), writer=2)  # not theirs to stop
    assert not pool.can_steal(page, 6)
    pool.stop_writing(pages_of(page), writer=1)
    assert not pool.can_steal(page, 5)
    assert pool.can_steal(page, 6)
    pool.steal(page, writer=3)
    with pytest.raises(AssertionError, match="already has a writer"):
        pool.steal(page, writer=4)
    pool.unpin(pages_of(page))
    assert pool.allocate(1, writer=5).tolist() == [page]
    assert pool.sealed_rows(page) == 0
    assert pool.writer(page) == 5


@pytest.mark.parametrize(("end", "expected"), [(0, []), (1, [7]), (16, [7]), (17, [7, 9]), (48, [7, 9, 8])])
def test_table_covers_positions(end: int, expected: list[int]) -> None:
    """`array(end)` holds the pages of positions [0, end) as int32 and is a copy."""
    table = BlockTable(16, np.array([7, 9, 8], np.int32), np.array([7, 9, 8], np.int32))
    pages = table.array(end)
    assert pages.dtype == np.int32
    assert pages.tolist() == expected
    table.replace(0, 5, 6)
    assert pages.tolist() == expected


def test_table_grows() -> None:
    """Appending keeps what was there; positions without a page are an error."""
    table = BlockTable(2, np.arange(20, dtype=np.int32), np.arange(20, dtype=np.int32))
    for page in range(20, 100, 4):
        table.extend(pages_of(*range(page, page + 4)), pages_of(*range(page, page + 4)))
    assert table.pages.tolist() == list(range(100))
    assert table.end == 200
    with pytest.raises(AssertionError, match="no page"):
        table.array(201)
