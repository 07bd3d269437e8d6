"""What the memory has done and how full it is."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Counted where it happens, never reset. Owned by SequenceCache."""

    num_opened: int = 0  # leases
    num_resumed: int = 0  # leases that started behind position 0
    resumed_tokens: int = 0
    num_published: int = 0
    num_duplicates: int = 0  # published where a snapshot already stood; the snapshot went back
    num_skipped: int = 0  # captures wanted for which no snapshot was worth taking
    num_abandoned: int = 0
    num_page_copies: int = 0
    num_take_overs: int = 0  # shared partial pages written on without a copy
    num_evicted_snapshots: int = 0  # lost for good, not moved to the host
    evicted_pages: int = 0  # claims given up for lack of free pages
    pages_moved_out: int = 0  # from the device to the host
    pages_moved_in: int = 0
    snapshots_moved_out: int = 0
    rows_moved_in: int = 0  # snapshots copied from the host into a slot
    num_host_resumes: int = 0  # leases for which something came from the host
    num_candidates: int = 0  # snapshots and leaves that the hands looked at: the cost of eviction, free of any clock


@dataclass(frozen=True, slots=True)
class CacheStats:
    """How full everything is at one moment. Pages on the device: free + cached + held = all. Snapshots: those of both tiers, but
    for `num_snapshots` and `free_snapshots`, which are the device's."""

    num_pages: int
    free_pages: int
    cached_pages: int  # claimed by the tree alone: eviction can free them
    held_pages: int  # by live leases and pins
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
    counters: Counters  # a copy

    def bytes_of(self, pages: int, states: int) -> int:
        """What so many of each take."""
        return pages * self.page_bytes + states * self.state_bytes
