"""From budgets in bytes to counts of pages, state rows and snapshots. Refuses budgets that cannot work and says which would."""

from dataclasses import dataclass, replace

from svc.errors import MemoryBudgetError
from svc.memory.layout import MemoryLayout
from svc.sizes import format_size


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How much a backend allocates, and how many pages, rows and snapshots `memory/` has to hand out."""

    layout: MemoryLayout
    num_pages: int
    num_rows: int  # slots: sequences that can be live at once
    num_snapshots: int  # snapshots that can be kept
    num_host_pages: int = 0  # on the host, for pages evicted from the device
    num_host_snapshots: int = 0
    journal_tokens: int = 0  # of each row: how far one can be rolled back; 0: there is no journal

    @property
    def host_tier(self) -> bool:
        return self.num_host_pages > 0 or self.num_host_snapshots > 0

    @property
    def host_bytes(self) -> int:
        return self.num_host_pages * self.layout.page_bytes + self.num_host_snapshots * self.layout.snapshot_bytes

    @property
    def kv_bytes(self) -> int:
        return self.num_pages * self.layout.page_bytes

    @property
    def row_bytes(self) -> int:
        return self.num_rows * self.layout.state_bytes

    @property
    def snapshot_bytes(self) -> int:
        return self.num_snapshots * self.layout.snapshot_bytes

    @property
    def journal_bytes(self) -> int:
        return self.num_rows * self.journal_tokens * self.layout.journal_bytes

    @property
    def total_bytes(self) -> int:
        """On the device."""
        return self.kv_bytes + self.row_bytes + self.snapshot_bytes + self.journal_bytes

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
    num_snapshots = snapshot_bytes // layout.snapshot_bytes
    if num_rows < 1:
        raise MemoryBudgetError(f"max_slots is {num_rows}: at least one slot is needed")
    if num_pages < 2 * num_rows:
        need = 2 * num_rows * layout.page_bytes
        raise MemoryBudgetError(
            f"kv_bytes={format_size(kv_bytes)} holds {num_pages} pages of {layout.page_bytes} bytes, "
            f"too few for {num_rows} slots: set it to at least {format_size(need)}, or lower max_slots"
        )
    if num_snapshots < num_rows:
        need = num_rows * layout.snapshot_bytes
        raise MemoryBudgetError(
            f"snapshot_bytes={format_size(snapshot_bytes)} holds {num_snapshots} snapshots of {layout.snapshot_bytes} bytes, "
            f"too few for {num_rows} slots: set it to at least {format_size(need)}, or lower max_slots"
        )
    return MemoryPlan(layout=layout, num_pages=num_pages, num_rows=num_rows, num_snapshots=num_snapshots)


def with_host_tier(plan: MemoryPlan, *, host_kv_bytes: int, host_snapshot_bytes: int) -> MemoryPlan:
    """The plan with a host tier of these budgets (bytes; 0: none). MemoryBudgetError when one is too small for anything."""
    budgets = (
        ("host_kv_bytes", host_kv_bytes, "page", plan.layout.page_bytes),
        ("host_snapshot_bytes", host_snapshot_bytes, "snapshot", plan.layout.snapshot_bytes),
    )
    for key, size, what, each in budgets:
        if 0 < size < each:
            raise MemoryBudgetError(
                f"{key}={format_size(size)} holds no {what} of {each} bytes: "
                f"set it to at least {format_size(each)}, or to 0 for none"
            )
    num_pages, num_snapshots = (size // each if each else 0 for _, size, _, each in budgets)
    return replace(plan, num_host_pages=num_pages, num_host_snapshots=num_snapshots)
