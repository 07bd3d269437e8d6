"""Automatic budgets: within the memory there is, never less than the seats need, never more than is useful."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.errors import MemoryBudgetError
from svc.memory.auto_budget import USEFUL_CELLS_PER_SEAT, USEFUL_CONTEXTS_PER_SEAT, resolve_budgets, weights_remark
from svc.memory.layout import MemoryLayout
from svc.memory.plan import plan_memory

MIB = 2**20


def layout(*, attention_layers: int = 4, delta_layers: int = 12) -> MemoryLayout:
    return MemoryLayout(
        hidden_size=1024,
        num_attention_layers=attention_layers,
        num_kv_heads=2,
        head_dim=64,
        num_delta_layers=delta_layers,
        num_value_heads=8,
        key_dim=64,
        value_dim=64,
        conv_channels=1536,
        conv_rows=3,
        page_tokens=32,
    )


@given(
    available=st.integers(min_value=0, max_value=2**40),
    seats=st.integers(min_value=1, max_value=64),
    context=st.integers(min_value=1, max_value=300_000),
    attention_layers=st.integers(min_value=1, max_value=8),
    delta_layers=st.integers(min_value=0, max_value=40),
)
def test_automatic_budgets_can_always_be_planned(
    available: int, seats: int, context: int, attention_layers: int, delta_layers: int
) -> None:
    """Either the seats fit and the plan stays within the memory, or the error says that they do not."""
    shape = layout(attention_layers=attention_layers, delta_layers=delta_layers)
    smallest = seats * (2 * shape.page_bytes + 2 * shape.state_bytes)
    try:
        kv, snapshots = resolve_budgets(
            shape,
            kv_bytes=None,
            snapshot_bytes=None,
            available_bytes=available,
            weights_bytes=0,
            num_rows=seats,
            context_tokens=context,
        )
    except MemoryBudgetError:
        # Half of the memory is left alone unless the seats need it, so only their own need can be too much.
        assert smallest > available // 2
        return
    plan = plan_memory(shape, kv_bytes=kv, snapshot_bytes=snapshots, num_rows=seats, context_tokens=context)
    assert plan.total_bytes <= available
    assert kv <= USEFUL_CONTEXTS_PER_SEAT * seats * (context + 31) // 32 * shape.page_bytes + 2 * seats * shape.page_bytes
    assert snapshots <= USEFUL_CELLS_PER_SEAT * seats * shape.state_bytes


def test_explicit_budgets_are_taken_as_given() -> None:
    """A number is a number, and leaves the other budget what remains of the share."""
    kv, snapshots = resolve_budgets(
        layout(),
        kv_bytes=100 * MIB,
        snapshot_bytes=None,
        available_bytes=1000 * MIB,
        weights_bytes=0,
        num_rows=2,
        context_tokens=2**20,
    )
    assert kv == 100 * MIB
    assert snapshots <= 400 * MIB
    assert resolve_budgets(
        layout(),
        kv_bytes=7 * MIB,
        snapshot_bytes=9 * MIB,
        available_bytes=100 * MIB,
        weights_bytes=0,
        num_rows=2,
        context_tokens=64,
    ) == (7 * MIB, 9 * MIB)


def test_share_that_one_budget_cannot_use_goes_to_the_other() -> None:
    """A short context needs few pages: snapshots get the rest, up to what is useful."""
    shape = layout()
    kv, snapshots = resolve_budgets(
        shape, kv_bytes=None, snapshot_bytes=None, available_bytes=300 * MIB, weights_bytes=0, num_rows=2, context_tokens=64
    )
    assert kv == USEFUL_CONTEXTS_PER_SEAT * 2 * 2 * shape.page_bytes
    share_left = 150 * MIB - 2 * shape.state_bytes - kv
    assert snapshots == min(share_left, USEFUL_CELLS_PER_SEAT * 2 * shape.state_bytes)


def test_budget_beyond_the_memory_is_refused() -> None:
    """The message names the budgets and what is free."""
    with pytest.raises(MemoryBudgetError, match=f"kv_bytes={200 * MIB}.* {100 * MIB} are free"):
        resolve_budgets(
            layout(),
            kv_bytes=200 * MIB,
            snapshot_bytes=None,
            available_bytes=100 * MIB,
            weights_bytes=0,
            num_rows=1,
            context_tokens=64,
        )


def test_weights_that_do_not_fit_are_no_reason_against_budgets_that_do() -> None:
    """With both budgets given the caches alone must fit: the weights are mapped. With one of them automatic, the error says so."""
    sizes = {"available_bytes": 100 * MIB, "weights_bytes": 900 * MIB, "num_rows": 2, "context_tokens": 64}
    assert resolve_budgets(layout(), kv_bytes=7 * MIB, snapshot_bytes=9 * MIB, **sizes) == (7 * MIB, 9 * MIB)
    with pytest.raises(MemoryBudgetError, match=r"0 are free beside the weights: .* both budgets as numbers"):
        resolve_budgets(layout(), kv_bytes=7 * MIB, snapshot_bytes=None, **sizes)
    with pytest.raises(MemoryBudgetError, match=f"{100 * MIB} are free: give smaller budgets or fewer seats$"):
        resolve_budgets(layout(), kv_bytes=70 * MIB, snapshot_bytes=90 * MIB, **sizes)


def test_automatic_budgets_leave_room_for_the_weights() -> None:
    """The share is one of what is free beside them."""
    sizes = {"kv_bytes": None, "snapshot_bytes": None, "num_rows": 2, "context_tokens": 2**20}
    beside = resolve_budgets(layout(), available_bytes=1000 * MIB, weights_bytes=600 * MIB, **sizes)
    assert beside == resolve_budgets(layout(), available_bytes=400 * MIB, weights_bytes=0, **sizes)


def test_remark_about_weights() -> None:
    """Exactly when weights and caches together are more than is free, with the numbers."""
    assert weights_remark(weights_bytes=60, caches_bytes=40, available_bytes=100) is None
    remark = weights_remark(weights_bytes=61, caches_bytes=40, available_bytes=100)
    assert remark is not None
    assert remark.startswith("the weights are 61 bytes but 60 are free beside the caches")
    assert weights_remark(weights_bytes=1, caches_bytes=140, available_bytes=100) is not None
