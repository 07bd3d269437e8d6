"""References, seals and writers of pages, and tables of them."""

import numpy as np
import pytest

from svc.memory.block_table import BlockTable
from svc.memory.page_pool import PagePool


def test_holds_and_claims_keep_a_page() -> None:
    """A page is free when neither a lease nor the tree has it, cached when only the tree does."""
    pool = PagePool(2, 4)
    page = pool.allocate(writer=1)
    pool.claim([page, page])
    assert (pool.num_free, pool.num_cached, pool.num_available) == (1, 0, 1)
    pool.release([page])
    assert (pool.num_free, pool.num_cached, pool.num_available) == (1, 1, 2)
    pool.unclaim([page])
    assert (pool.num_free, pool.num_cached) == (1, 1)
    pool.hold([page])
    pool.unclaim([page])
    assert (pool.num_free, pool.num_cached) == (1, 0)
    pool.release([page])
    assert (pool.num_free, pool.num_cached) == (2, 0)
    pool.check(holds=[], claims=[])


def test_free_pages_have_no_references() -> None:
    """Holding, claiming, releasing or unclaiming a free page is caught."""
    pool = PagePool(1, 4)
    for use in (pool.hold, pool.claim, pool.release, pool.unclaim):
        with pytest.raises(AssertionError, match="page 0"):
            use([0])
    pool.check(holds=[], claims=[])


def test_sealed_rows_never_become_writable() -> None:
    """A shorter claim does not open rows that a longer one sealed; only a page that was free starts anew, without a writer."""
    pool = PagePool(1, 8)
    page = pool.allocate(writer=1)
    pool.seal(page, 6)
    pool.seal(page, 2)
    assert pool.sealed_rows(page) == 6
    assert not pool.can_take_over(page, 6)  # it has a writer
    pool.stop_writing(page, writer=2)  # not theirs to stop
    assert not pool.can_take_over(page, 6)
    pool.stop_writing(page, writer=1)
    assert not pool.can_take_over(page, 5)
    assert pool.can_take_over(page, 6)
    pool.take_over(page, writer=3)
    with pytest.raises(AssertionError, match="already has a writer"):
        pool.take_over(page, writer=4)
    pool.release([page])
    assert pool.allocate(writer=5) == page
    assert pool.sealed_rows(page) == 0
    assert pool.writer(page) == 5


@pytest.mark.parametrize(("end", "expected"), [(0, []), (1, [7]), (16, [7]), (17, [7, 9]), (48, [7, 9, 8])])
def test_table_covers_positions(end: int, expected: list[int]) -> None:
    """`array(end)` holds the pages of positions [0, end) as int32 and is a copy."""
    table = BlockTable(16, [7, 9, 8])
    pages = table.array(end)
    assert pages.dtype == np.int32
    assert pages.tolist() == expected
    table.replace(0, 5)
    assert pages.tolist() == expected


def test_table_grows() -> None:
    """Appending keeps what was there; positions without a page are an error."""
    table = BlockTable(2, range(20))
    for page in range(20, 100):
        table.append(page)
    assert table.pages == list(range(100))
    assert table.end == 200
    with pytest.raises(AssertionError, match="no page"):
        table.array(201)
