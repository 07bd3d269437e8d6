"""What the memory has done and how full it is."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Counted where it happens, never reset. Owned by SequenceCache."""

    num_opened: int = 0  # leases
    num_resumed: int = 0  # leases that started behind position 0
    resumed_tokens: int = 0
    num_published: int = 0
    num_duplicates: int = 0  # published where a snapshot already stood; the cell went back
    num_skipped: int = 0  # captures wanted for which no cell was worth taking
    num_abandoned: int = 0
    num_page_copies: int = 0
    num_take_overs: int = 0  # shared partial pages written on without a copy
    num_evicted_snapshots: int = 0  # lost for good, not moved to the host
    evicted_pages: int = 0  # claims given up for lack of free pages
    pages_moved_out: int = 0  # from the device to the host
    pages_moved_in: int = 0
    snapshots_moved_out: int = 0
    rows_moved_in: int = 0  # snapshots copied from the host into a seat
    num_host_resumes: int = 0  # leases for which something came from the host
    num_candidates: int = 0  # cells and leaves that the hands looked at: the cost of eviction, free of any clock


@dataclass(frozen=True, slots=True)
class CacheStats:
    """A snapshot of how full everything is. Pages on the device: free + cached + held = all. Cells: those of both tiers, but for
    `num_cells` and `free_cells`, which are the device's."""

    num_pages: int
    free_pages: int
    cached_pages: int  # claimed by the tree alone: eviction can free them
    held_pages: int  # by live leases and pins
    num_rows: int
    free_rows: int
    num_cells: int
    free_cells: int
    reserved_cells: int
    published_cells: int
    stranded_cells: int
    pinned_cells: int
    num_host_pages: int
    free_host_pages: int
    num_host_cells: int
    free_host_cells: int
    page_bytes: int
    state_bytes: int  # of one cell
    num_nodes: int
    counters: Counters  # a copy

    def bytes_of(self, pages: int, states: int) -> int:
        """What so many of each take."""
        return pages * self.page_bytes + states * self.state_bytes
