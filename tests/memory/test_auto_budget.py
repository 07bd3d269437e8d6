"""Automatic budgets: within the memory there is, never less than the seats need, never more than is useful."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.config import parse_size
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


@pytest.mark.parametrize("given", [("kv_bytes",), ("snapshot_bytes",), ("kv_bytes", "snapshot_bytes")])
def test_budget_beyond_the_memory_is_refused_with_what_fits(given: tuple[str, ...]) -> None:
    """The message names the budgets, what is free, and what would fit: that is taken, and a MiB more is not."""
    sizes: dict[str, Any] = {"available_bytes": 100 * MIB, "weights_bytes": 0, "num_rows": 3, "context_tokens": 64}

    def resolve(total_bytes: int) -> tuple[int, int]:
        budgets: dict[str, Any] = dict.fromkeys(("kv_bytes", "snapshot_bytes")) | dict.fromkeys(given, total_bytes // len(given))
        return resolve_budgets(layout(), **budgets, **sizes)

    names = " and ".join(given) + (" together" if len(given) > 1 else "")
    with pytest.raises(MemoryBudgetError, match=rf"{given[0]}=200MiB.* 100MiB are free.*: {names} can be \d+MiB$") as refusal:
        resolve(200 * MIB * len(given))
    fits = parse_size(str(refusal.value).split()[-1])
    kv, snapshots = resolve(fits)
    assert plan_memory(layout(), kv_bytes=kv, snapshot_bytes=snapshots, num_rows=3, context_tokens=64).total_bytes <= 100 * MIB
    with pytest.raises(MemoryBudgetError):
        resolve(fits + MIB)


def test_seats_beyond_the_memory_are_refused_with_what_fits() -> None:
    """Where no budget is to blame, the number of seats that fit is named, or what a single one needs."""
    sizes: dict[str, Any] = {"kv_bytes": None, "snapshot_bytes": None, "weights_bytes": 0, "context_tokens": 64}
    with pytest.raises(MemoryBudgetError, match=r"max_seats can be \d+$") as refusal:
        resolve_budgets(layout(), available_bytes=100 * MIB, num_rows=500, **sizes)
    fit = int(str(refusal.value).split()[-1])
    resolve_budgets(layout(), available_bytes=100 * MIB, num_rows=fit, **sizes)
    with pytest.raises(MemoryBudgetError, match=f"max_seats can be {fit}$"):
        resolve_budgets(layout(), available_bytes=100 * MIB, num_rows=fit + 1, **sizes)
    with pytest.raises(MemoryBudgetError, match="one seat alone needs"):
        resolve_budgets(layout(), available_bytes=1 * MIB, num_rows=1, **sizes)


def test_weights_that_do_not_fit_are_no_reason_against_budgets_that_do() -> None:
    """With both budgets given the caches alone must fit: the weights are mapped. With one of them automatic, the error says so."""
    sizes = {"available_bytes": 100 * MIB, "weights_bytes": 900 * MIB, "num_rows": 2, "context_tokens": 64}
    assert resolve_budgets(layout(), kv_bytes=7 * MIB, snapshot_bytes=9 * MIB, **sizes) == (7 * MIB, 9 * MIB)
    with pytest.raises(MemoryBudgetError, match=r"0 are free beside the weights: .* both budgets as numbers"):
        resolve_budgets(layout(), kv_bytes=7 * MIB, snapshot_bytes=None, **sizes)
    with pytest.raises(MemoryBudgetError, match=r"100MiB are free: kv_bytes and snapshot_bytes together can be \d+MiB$"):
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
