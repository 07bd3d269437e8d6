"""Automatic budgets of the device's tier and the host's: a share of the memory that is free, and no more than is useful."""

from svc.errors import MemoryBudgetError
from svc.memory.layout import MemoryLayout
from svc.memory.plan import MemoryPlan
from svc.sizes import format_size

FREE_SHARE = 0.5  # of the memory free after the weights: the rest is left to the system and to other programs
KV_SHARE = 0.6  # of that, where both budgets are auto and both are needed
USEFUL_CONTEXTS_PER_SLOT = 4  # conversations kept whole for each one that is running
USEFUL_SNAPSHOTS_PER_SLOT = 64
HOST_SHARE = 0.25  # of the machine's free memory: pinned memory is lost to everything else
USEFUL_HOST_TIERS = 4  # times the device's budgets: entries unused for longer seldom come back
MIB = 2**20


def resolve_budgets(
    layout: MemoryLayout,
    *,
    kv_bytes: int | None,
    snapshot_bytes: int | None,
    available_bytes: int,
    weights_bytes: int,
    num_rows: int,
    context_tokens: int,
    journal_tokens: int = 0,
    free_share: float = FREE_SHARE,
) -> tuple[int, int]:
    """(kv_bytes, snapshot_bytes) for `plan_memory`. None asks for an automatic budget.

    `available_bytes` is free memory, of which the weights take `weights_bytes`; automatic budgets take `free_share` of the rest,
    but never less than what the slots need. Raises MemoryBudgetError when the sum, with live rows and journals, is more than is
    free beside the weights; or, where both budgets are given, more than is free: weights that do not fit can be read from the disk
    again (`weights_remark`), caches cannot.
    """
    all_given = kv_bytes is not None and snapshot_bytes is not None
    beside_bytes = max(available_bytes - weights_bytes, 0)
    row_bytes = num_rows * (layout.state_bytes + journal_tokens * layout.journal_bytes)
    smallest_kv, smallest_snapshots = 2 * num_rows * layout.page_bytes, num_rows * layout.snapshot_bytes
    pages_per_context = -(-context_tokens // layout.page_tokens)
    useful_kv = USEFUL_CONTEXTS_PER_SLOT * num_rows * pages_per_context * layout.page_bytes
    useful_snapshots = USEFUL_SNAPSHOTS_PER_SLOT * num_rows * layout.snapshot_bytes

    share = int(free_share * beside_bytes) - row_bytes - (kv_bytes or 0) - (snapshot_bytes or 0)
    if kv_bytes is None and snapshot_bytes is None:
        # The part of one budget that is of no use goes to the other.
        kv = min(useful_kv, max(int(KV_SHARE * share), share - useful_snapshots))
        snapshots = min(useful_snapshots, share - kv)
    else:
        kv = min(useful_kv, share) if kv_bytes is None else kv_bytes
        snapshots = min(useful_snapshots, share) if snapshot_bytes is None else snapshot_bytes
    if kv_bytes is None:
        kv = max(kv, smallest_kv)
    if snapshot_bytes is None:
        snapshots = max(snapshots, smallest_snapshots)

    total = kv + snapshots + row_bytes
    limit_bytes = available_bytes if all_given else beside_bytes
    if total > limit_bytes:
        place = "" if all_given else " beside the weights"
        what = f"{num_rows} slots with kv_bytes={format_size(kv)} and snapshot_bytes={format_size(snapshots)}"
        remedy = _what_fits(
            limit_bytes=limit_bytes - row_bytes,
            kv_bytes=kv_bytes,
            snapshot_bytes=snapshot_bytes,
            smallest_kv=smallest_kv,
            smallest_snapshots=smallest_snapshots,
        ) or _slots_that_fit(limit_bytes, (smallest_kv + 2 * smallest_snapshots) // num_rows)
        if total <= available_bytes:
            remedy += "; or give both budgets as numbers: weights that do not fit are then read from the disk again, which is slow"
        needed = format_size(-(-total // MIB) * MIB)
        raise MemoryBudgetError(f"{what} need {needed} but {_rounded(limit_bytes)} are free{place}: {remedy}")
    return kv, snapshots


def resolve_host_budgets(
    plan: MemoryPlan, *, host_kv_bytes: int | None, host_snapshot_bytes: int | None, available_bytes: int, beside_gpu: bool
) -> tuple[int, int]:
    """(host_kv_bytes, host_snapshot_bytes) for `with_host_tier`. None asks for an automatic budget: 0 unless `beside_gpu`.

    `available_bytes` is the machine's free memory, without what the device takes of it. Automatic budgets keep the proportion of
    the device's. MemoryBudgetError when those given are more than is free.
    """
    given_bytes = (host_kv_bytes or 0) + (host_snapshot_bytes or 0)
    if given_bytes > available_bytes:
        named = {"host_kv_bytes": host_kv_bytes, "host_snapshot_bytes": host_snapshot_bytes}
        settings = [f"{key}={format_size(size)}" for key, size in named.items() if size]
        limit = f"{' and '.join(key for key, size in named.items() if size)} can be at most"
        raise MemoryBudgetError(
            f"{' and '.join(settings)} need {format_size(given_bytes)} of the machine's memory, but {_rounded(available_bytes)} "
            f"are free: {limit} {_rounded(available_bytes)}{' together' if len(settings) > 1 else ''}"
        )
    if not beside_gpu:
        return host_kv_bytes or 0, host_snapshot_bytes or 0
    share = max(int(HOST_SHARE * available_bytes) - given_bytes, 0)
    automatic = (plan.kv_bytes if host_kv_bytes is None else 0) + (plan.snapshot_bytes if host_snapshot_bytes is None else 0)
    times = min(USEFUL_HOST_TIERS, share / max(automatic, 1))
    kv = int(times * plan.kv_bytes) if host_kv_bytes is None else host_kv_bytes
    snapshots = int(times * plan.snapshot_bytes) if host_snapshot_bytes is None else host_snapshot_bytes
    # An automatic budget too small for one page or snapshot is none.
    kv = 0 if host_kv_bytes is None and kv < plan.layout.page_bytes else kv
    return kv, 0 if host_snapshot_bytes is None and snapshots < plan.layout.snapshot_bytes else snapshots


def _what_fits(
    *, limit_bytes: int, kv_bytes: int | None, snapshot_bytes: int | None, smallest_kv: int, smallest_snapshots: int
) -> str | None:
    """The largest values, for the budgets that were given, that fit into `limit_bytes`; None when lower budgets would not help."""
    if limit_bytes < smallest_kv + smallest_snapshots:
        return None
    if kv_bytes is not None and snapshot_bytes is not None:
        return f"kv_bytes and snapshot_bytes together can be at most {_rounded(limit_bytes)}"
    if kv_bytes is not None:
        return f"kv_bytes can be at most {_rounded(limit_bytes - smallest_snapshots)}"
    if snapshot_bytes is not None:
        return f"snapshot_bytes can be at most {_rounded(limit_bytes - smallest_kv)}"
    return None


def _slots_that_fit(limit_bytes: int, slot_bytes: int) -> str:
    """`slot_bytes`: the least memory that one slot needs, its share of both budgets included."""
    slots = limit_bytes // slot_bytes
    return f"max_slots can be at most {slots}" if slots else f"one slot alone needs {format_size(slot_bytes)}"


def _rounded(size: int) -> str:
    """Rounded down to whole MiB, unless it is less than one: easy to read, and safe as a setting."""
    return format_size(size - size % MIB if size >= MIB else size)


def weights_remark(*, weights_bytes: int, caches_bytes: int, available_bytes: int) -> str | None:
    """A warning in one sentence about weights that do not fit beside the caches; None when they fit."""
    beside_bytes = max(available_bytes - caches_bytes, 0)
    if weights_bytes <= beside_bytes:
        return None
    return (
        f"the weights are {weights_bytes} bytes but {beside_bytes} are free beside the caches: "
        "they are read from the disk again and again, which is slow"
    )
