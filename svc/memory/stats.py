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
    num_evicted_snapshots: int = 0
    evicted_pages: int = 0  # claims given up for lack of free pages
    num_candidates: int = 0  # cells and leaves that the hands looked at: the cost of eviction, free of any clock


@dataclass(frozen=True, slots=True)
class CacheStats:
    """A snapshot of how full everything is. Pages: free + cached + held = all; cells likewise."""

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
    num_nodes: int
    counters: Counters  # a copy
