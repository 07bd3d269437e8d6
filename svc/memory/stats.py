"""What the memory has done and how full it is."""

from dataclasses import dataclass, field

from svc.memory.lease import StateRows
from svc.memory.page_pool import PagePool
from svc.memory.placement import WantedKind
from svc.memory.plan import MemoryPlan
from svc.memory.prefix_tree import PrefixTree
from svc.memory.snapshot_ring import SnapshotRing, SnapshotState


def _of_each_kind() -> dict[WantedKind, int]:
    return dict.fromkeys(WantedKind, 0)


@dataclass(slots=True)
class CacheCounters:
    """Counted where it happens, never reset. Owned by SequenceCache."""

    num_opened: int = 0  # leases
    num_resumed: int = 0  # leases that started behind position 0
    resumed_tokens: int = 0
    num_published: int = 0
    num_duplicates: int = 0  # published where there was a snapshot already; one of the two was freed
    num_skipped: int = 0  # captures wanted for which no snapshot had a lower score
    num_discarded: int = 0  # reserved and never published
    num_page_copies: int = 0
    num_stolen_pages: int = 0  # shared partial pages written on without a copy
    num_evicted_snapshots: int = 0  # lost for good, not moved to the host
    evicted_pages: int = 0  # references dropped for lack of free pages
    pages_moved_out: int = 0  # from the device to the host
    pages_moved_in: int = 0
    snapshots_moved_out: int = 0
    rows_moved_in: int = 0  # snapshots copied from the host into a state row
    num_host_resumes: int = 0  # leases that fetched pages or a state from the host
    num_candidates: int = 0  # snapshots and leaves that eviction looked at
    num_walks: int = 0  # of the prefix tree
    published: dict[WantedKind, int] = field(default_factory=_of_each_kind)  # captures: together `num_published`
    resumed: dict[WantedKind, int] = field(default_factory=_of_each_kind)  # leases that started at a snapshot of that kind
    evicted: dict[WantedKind, int] = field(default_factory=_of_each_kind)  # together `num_evicted_snapshots`


@dataclass(frozen=True, slots=True)
class CacheStats:
    """How full everything is at one moment. Pages on the device: free + cached + pinned = all. Snapshots: those of both tiers, but
    for `num_snapshots` and `free_snapshots`, which are the device's."""

    num_pages: int
    free_pages: int
    cached_pages: int  # referenced by the tree alone: eviction can free them
    pinned_pages: int  # by live leases, copies and pinned snapshots
    num_rows: int
    free_rows: int
    num_snapshots: int
    free_snapshots: int
    reserved_snapshots: int
    published_snapshots: int
    stranded_snapshots: int
    pinned_snapshots: int
    num_host_pages: int
    free_host_pages: int
    num_host_snapshots: int
    free_host_snapshots: int
    page_bytes: int
    state_bytes: int  # of one snapshot
    num_nodes: int
    counters: CacheCounters  # a copy

    def bytes_of(self, pages: int, states: int) -> int:
        """Bytes of that many pages and states."""
        return pages * self.page_bytes + states * self.state_bytes


def cache_stats(
    plan: MemoryPlan, pool: PagePool, ring: SnapshotRing, rows: StateRows, tree: PrefixTree, counters: CacheCounters
) -> CacheStats:
    return CacheStats(
        num_pages=pool.num_pages,
        free_pages=pool.num_free,
        cached_pages=pool.num_cached,
        pinned_pages=pool.num_pages - pool.num_available,
        num_rows=rows.num_rows,
        free_rows=rows.num_free,
        num_snapshots=ring.num_snapshots,
        free_snapshots=ring.num_free,
        reserved_snapshots=ring.count(SnapshotState.RESERVED) + ring.count(SnapshotState.WRITTEN),
        published_snapshots=ring.count(SnapshotState.PUBLISHED),
        stranded_snapshots=ring.count(SnapshotState.STRANDED),
        pinned_snapshots=ring.num_pinned,
        num_host_pages=pool.num_host_pages,
        free_host_pages=pool.num_free_on_host,
        num_host_snapshots=ring.num_host_snapshots,
        free_host_snapshots=ring.num_free_on_host,
        page_bytes=plan.layout.page_bytes,
        state_bytes=plan.layout.snapshot_bytes,
        num_nodes=tree.num_nodes,
        counters=counters,
    )
