"""From budgets in bytes to counts of pages, rows and snapshots; refuses budgets that cannot work, saying what would fit."""

from dataclasses import dataclass, replace

from svc.config import format_size
from svc.errors import MemoryBudgetError
from svc.memory.layout import MemoryLayout


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Everything a backend has to allocate, and everything `memory/` hands out numbers of."""

    layout: MemoryLayout
    num_pages: int
    num_rows: int  # slots: sequences that can be live at once
    num_snapshots: int  # snapshots that can be kept
    num_host_pages: int = 0  # beside the device: what has no room there is kept here
    num_host_snapshots: int = 0

    @property
    def host_tier(self) -> bool:
        return self.num_host_pages > 0 or self.num_host_snapshots > 0

    @property
    def host_bytes(self) -> int:
        return self.num_host_pages * self.layout.page_bytes + self.num_host_snapshots * self.layout.state_bytes

    @property
    def kv_bytes(self) -> int:
        return self.num_pages * self.layout.page_bytes

    @property
    def row_bytes(self) -> int:
        return self.num_rows * self.layout.state_bytes

    @property
    def snapshot_bytes(self) -> int:
        return self.num_snapshots * self.layout.state_bytes

    @property
    def total_bytes(self) -> int:
        """On the device."""
        return self.kv_bytes + self.row_bytes + self.snapshot_bytes

    @property
    def kv_tokens(self) -> int:
        return self.num_pages * self.layout.page_tokens


def plan_memory(layout: MemoryLayout, *, kv_bytes: int, snapshot_bytes: int, num_rows: int, context_tokens: int) -> MemoryPlan:
    """Divides budgets (bytes) into whole pages and snapshots of the device.

    Raises MemoryBudgetError when the KV budget holds less than one page per slot or the snapshot budget less than one snapshot per
    slot; the message gives the smallest budget that would do. A KV budget below `context_tokens` is allowed (prompts are then
    bounded by the budget; the caller warns).
    """
    num_pages = kv_bytes // layout.page_bytes if layout.page_bytes else context_tokens * num_rows // layout.page_tokens
    num_snapshots = snapshot_bytes // layout.state_bytes
    if num_rows < 1:
        raise MemoryBudgetError(f"max_slots is {num_rows}: at least one slot is needed")
    if num_pages < 2 * num_rows:
        need = 2 * num_rows * layout.page_bytes
        raise MemoryBudgetError(
            f"kv_bytes={format_size(kv_bytes)} holds {num_pages} pages of {layout.page_bytes} bytes, "
            f"too few for {num_rows} slots: give at least {format_size(need)}, or fewer slots"
        )
    if num_snapshots < num_rows:
        need = num_rows * layout.state_bytes
        raise MemoryBudgetError(
            f"snapshot_bytes={format_size(snapshot_bytes)} holds {num_snapshots} snapshots of {layout.state_bytes} bytes, "
            f"too few for {num_rows} slots: give at least {format_size(need)}, or fewer slots"
        )
    return MemoryPlan(layout=layout, num_pages=num_pages, num_rows=num_rows, num_snapshots=num_snapshots)


def with_host_tier(plan: MemoryPlan, *, host_kv_bytes: int, host_snapshot_bytes: int) -> MemoryPlan:
    """The plan with budgets (bytes, 0: none) for what has no room on the device. MemoryBudgetError when one holds nothing."""
    budgets = (
        ("host_kv_bytes", host_kv_bytes, "page", plan.layout.page_bytes),
        ("host_snapshot_bytes", host_snapshot_bytes, "snapshot", plan.layout.state_bytes),
    )
    for key, size, what, each in budgets:
        if 0 < size < each:
            raise MemoryBudgetError(
                f"{key}={format_size(size)} holds no {what} of {each} bytes: give at least {format_size(each)}, or 0 for none"
            )
    num_pages, num_snapshots = (size // each if each else 0 for _, size, _, each in budgets)
    return replace(plan, num_host_pages=num_pages, num_host_snapshots=num_snapshots)
