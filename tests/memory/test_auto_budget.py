"""Automatic budgets: within the memory there is, never less than the slots need, never more than is useful."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.errors import MemoryBudgetError
from svc.memory.auto_budget import (
    HOST_SHARE,
    USEFUL_CONTEXTS_PER_SLOT,
    USEFUL_HOST_TIERS,
    USEFUL_SNAPSHOTS_PER_SLOT,
    resolve_budgets,
    resolve_host_budgets,
    weights_remark,
)
from svc.memory.layout import MemoryLayout
from svc.memory.plan import MemoryPlan, plan_memory, with_host_tier
from svc.sizes import parse_size

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
    slots=st.integers(min_value=1, max_value=64),
    context=st.integers(min_value=1, max_value=300_000),
    attention_layers=st.integers(min_value=1, max_value=8),
    delta_layers=st.integers(min_value=0, max_value=40),
)
def test_automatic_budgets_can_always_be_planned(
    available: int, slots: int, context: int, attention_layers: int, delta_layers: int
) -> None:
    """Either the slots fit and the plan stays within the memory, or the error says that they do not."""
    shape = layout(attention_layers=attention_layers, delta_layers=delta_layers)
    smallest = slots * (2 * shape.page_bytes + 2 * shape.state_bytes)
    try:
        kv, snapshots = resolve_budgets(
            shape,
            kv_bytes=None,
            snapshot_bytes=None,
            available_bytes=available,
            weights_bytes=0,
            num_rows=slots,
            context_tokens=context,
        )
    except MemoryBudgetError:
        # Half of the memory is left alone unless the slots need it, so only their own need can be too much.
        assert smallest > available // 2
        return
    plan = plan_memory(shape, kv_bytes=kv, snapshot_bytes=snapshots, num_rows=slots, context_tokens=context)
    assert plan.total_bytes <= available
    assert kv <= USEFUL_CONTEXTS_PER_SLOT * slots * (context + 31) // 32 * shape.page_bytes + 2 * slots * shape.page_bytes
    assert snapshots <= USEFUL_SNAPSHOTS_PER_SLOT * slots * shape.state_bytes


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
    assert kv == USEFUL_CONTEXTS_PER_SLOT * 2 * 2 * shape.page_bytes
    share_left = 150 * MIB - 2 * shape.state_bytes - kv
    assert snapshots == min(share_left, USEFUL_SNAPSHOTS_PER_SLOT * 2 * shape.state_bytes)


@pytest.mark.parametrize("given", [("kv_bytes",), ("snapshot_bytes",), ("kv_bytes", "snapshot_bytes")])
def test_budget_beyond_the_memory_is_refused_with_what_fits(given: tuple[str, ...]) -> None:
    """The message names the budgets, what is free, and what would fit: that is taken, and a MiB more is not."""
    sizes: dict[str, Any] = {"available_bytes": 100 * MIB, "weights_bytes": 0, "num_rows": 3, "context_tokens": 64}

    def resolve(total_bytes: int) -> tuple[int, int]:
        budgets: dict[str, Any] = dict.fromkeys(("kv_bytes", "snapshot_bytes")) | dict.fromkeys(given, total_bytes // len(given))
        return resolve_budgets(layout(), **budgets, **sizes)

    names = " and ".join(given) + (" together" if len(given) > 1 else "")
    with pytest.raises(
        MemoryBudgetError, match=rf"{given[0]}=200MiB.* 100MiB are free.*: {names} can be at most \d+MiB$"
    ) as refusal:
        resolve(200 * MIB * len(given))
    fits = parse_size(str(refusal.value).split()[-1])
    kv, snapshots = resolve(fits)
    assert plan_memory(layout(), kv_bytes=kv, snapshot_bytes=snapshots, num_rows=3, context_tokens=64).total_bytes <= 100 * MIB
    with pytest.raises(MemoryBudgetError):
        resolve(fits + MIB)


def test_slots_beyond_the_memory_are_refused_with_what_fits() -> None:
    """Where no budget is to blame, the number of slots that fit is named, or what a single one needs."""
    sizes: dict[str, Any] = {"kv_bytes": None, "snapshot_bytes": None, "weights_bytes": 0, "context_tokens": 64}
    with pytest.raises(MemoryBudgetError, match=r"max_slots can be at most \d+$") as refusal:
        resolve_budgets(layout(), available_bytes=100 * MIB, num_rows=500, **sizes)
    fit = int(str(refusal.value).split()[-1])
    resolve_budgets(layout(), available_bytes=100 * MIB, num_rows=fit, **sizes)
    with pytest.raises(MemoryBudgetError, match=f"max_slots can be at most {fit}$"):
        resolve_budgets(layout(), available_bytes=100 * MIB, num_rows=fit + 1, **sizes)
    with pytest.raises(MemoryBudgetError, match="one slot alone needs"):
        resolve_budgets(layout(), available_bytes=1 * MIB, num_rows=1, **sizes)


def test_weights_that_do_not_fit_are_no_reason_against_budgets_that_do() -> None:
    """With both budgets given the caches alone must fit: the weights are mapped. With one of them automatic, the error says so."""
    sizes = {"available_bytes": 100 * MIB, "weights_bytes": 900 * MIB, "num_rows": 2, "context_tokens": 64}
    assert resolve_budgets(layout(), kv_bytes=7 * MIB, snapshot_bytes=9 * MIB, **sizes) == (7 * MIB, 9 * MIB)
    with pytest.raises(MemoryBudgetError, match=r"0 are free beside the weights: .* both budgets as numbers"):
        resolve_budgets(layout(), kv_bytes=7 * MIB, snapshot_bytes=None, **sizes)
    with pytest.raises(MemoryBudgetError, match=r"100MiB are free: kv_bytes and snapshot_bytes together can be at most \d+MiB$"):
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


# -- the host tier ----------------------------------------------------------------------------------------------------------------


def device_plan() -> MemoryPlan:
    return plan_memory(layout(), kv_bytes=64 * MIB, snapshot_bytes=32 * MIB, num_rows=2, context_tokens=4096)


@given(available=st.integers(0, 2**40), kv=st.sampled_from([None, 0, 5 * MIB]), snapshots=st.sampled_from([None, 0, 3 * MIB]))
def test_automatic_host_budgets_can_always_be_planned(available: int, kv: int | None, snapshots: int | None) -> None:
    """A share of what is free and no more than is useful, what is given included; numbers are taken as they are."""
    plan = device_plan()
    given_bytes = (kv or 0) + (snapshots or 0)
    budgets: dict[str, Any] = {"host_kv_bytes": kv, "host_snapshot_bytes": snapshots}
    if given_bytes > available:
        with pytest.raises(MemoryBudgetError):
            resolve_host_budgets(plan, **budgets, available_bytes=available, beside_gpu=True)
        return
    found = resolve_host_budgets(plan, **budgets, available_bytes=available, beside_gpu=True)
    whole = with_host_tier(plan, host_kv_bytes=found[0], host_snapshot_bytes=found[1])
    assert found[0] == kv or kv is None
    assert found[1] == snapshots or snapshots is None
    assert whole.host_bytes <= max(HOST_SHARE * available, given_bytes)
    assert found[0] <= max(USEFUL_HOST_TIERS * plan.kv_bytes, kv or 0)
    if available > 2**32:
        assert kv is not None or found[0] == USEFUL_HOST_TIERS * plan.kv_bytes
        assert snapshots is not None or found[1] == USEFUL_HOST_TIERS * plan.snapshot_bytes


def test_without_a_gpu_there_is_a_host_tier_only_on_request() -> None:
    """The caches are in that memory already."""
    sizes: dict[str, Any] = {"available_bytes": 2**40, "beside_gpu": False}
    assert resolve_host_budgets(device_plan(), host_kv_bytes=None, host_snapshot_bytes=None, **sizes) == (0, 0)
    assert resolve_host_budgets(device_plan(), host_kv_bytes=7 * MIB, host_snapshot_bytes=None, **sizes) == (7 * MIB, 0)


def test_host_budgets_that_cannot_work() -> None:
    """Named, with what would do."""
    sizes: dict[str, Any] = {"available_bytes": 100 * MIB, "beside_gpu": True}
    with pytest.raises(
        MemoryBudgetError, match=r"host_kv_bytes=200MiB need .* 100MiB are free: host_kv_bytes can be at most 100MiB$"
    ):
        resolve_host_budgets(device_plan(), host_kv_bytes=200 * MIB, host_snapshot_bytes=None, **sizes)
    with pytest.raises(MemoryBudgetError, match=r"host_kv_bytes and host_snapshot_bytes can be at most 100MiB together$"):
        resolve_host_budgets(device_plan(), host_kv_bytes=60 * MIB, host_snapshot_bytes=60 * MIB, **sizes)
    plan, each = device_plan(), layout().state_bytes
    with pytest.raises(MemoryBudgetError, match=rf"host_snapshot_bytes={each - 1} holds no snapshot of {each} bytes"):
        with_host_tier(plan, host_kv_bytes=0, host_snapshot_bytes=each - 1)
    assert with_host_tier(plan, host_kv_bytes=0, host_snapshot_bytes=each).num_host_snapshots == 1
    assert not with_host_tier(plan, host_kv_bytes=0, host_snapshot_bytes=0).host_tier
