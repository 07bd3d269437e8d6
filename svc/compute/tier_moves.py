"""Moves between device and host for all backends: source and target slabs, runs that are one copy, places that a step writes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.compute.backend import StepBatch
from svc.memory.tiers import Move, MoveKind

SLABS = {
    MoveKind.PAGE_OUT: ("kv", "host_kv"),
    MoveKind.PAGE_IN: ("host_kv", "kv"),
    MoveKind.SNAPSHOT_OUT: ("snapshots", "host_snapshots"),
    MoveKind.ROW_IN: ("host_snapshots", "rows"),
}
"""Attributes of a backend's caches, source and target: slabs [n, elements] of one element type and row size, but for ROW_IN, which
restores a snapshot."""


@dataclass(frozen=True, slots=True)
class Run:
    """`count` blocks that are neighbours in both slabs, from `source` and `target` on."""

    kind: MoveKind
    source: int
    target: int
    count: int


def runs(moves: Sequence[Move]) -> Iterator[Run]:
    """The moves in order, with neighbours joined; a run may go through a slab backwards."""
    start = 0
    while start < len(moves):
        first, end = moves[start], start + 1
        step = moves[end].source - first.source if end < len(moves) else 0
        if step in (1, -1):
            while end < len(moves) and _continues(first, moves[end], step * (end - start)):
                end += 1
        back = min(0, step * (end - start - 1))
        yield Run(first.kind, first.source + back, first.target + back, end - start)
        start = end


def _continues(first: Move, move: Move, distance: int) -> bool:
    return (move.kind, move.source - first.source, move.target - first.target) == (first.kind, distance, distance)


def move_at_once(caches: Any, moves: Sequence[Move], restore_from_host: Callable[[Any, NDArray[np.int32]], None]) -> None:
    """For backends whose tiers are both numpy arrays: done on return. `restore_from_host(caches, pairs)`: like Ops.restore_rows."""
    for run in runs(moves):
        if run.kind is MoveKind.ROW_IN:
            numbers = range(run.count)
            restore_from_host(caches, np.array([(run.target + i, run.source + i) for i in numbers], np.int32))
        else:
            source, target = (getattr(caches, name) for name in SLABS[run.kind])
            target[run.target : run.target + run.count] = source[run.source : run.source + run.count]


@dataclass(frozen=True, slots=True)
class Places:
    """Pages, live rows and snapshots of the device."""

    pages: frozenset[int]
    rows: frozenset[int]
    snapshots: frozenset[int]

    def meet(self, other: "Places") -> bool:
        """Whether they have a place in common."""
        return not (
            self.pages.isdisjoint(other.pages) and self.rows.isdisjoint(other.rows) and self.snapshots.isdisjoint(other.snapshots)
        )


def places_moved(moves: Sequence[Move]) -> Places:
    """The places on the device that moves read or write."""
    return Places(
        frozenset(
            move.source if move.kind is MoveKind.PAGE_OUT else move.target
            for move in moves
            if move.kind in (MoveKind.PAGE_OUT, MoveKind.PAGE_IN)
        ),
        frozenset(move.target for move in moves if move.kind is MoveKind.ROW_IN),
        frozenset(move.source for move in moves if move.kind is MoveKind.SNAPSHOT_OUT),
    )


def places_written(batch: StepBatch, page_tokens: int) -> Places:
    """The places that a step writes apart from its moves."""
    pages = [copy.target for copy in batch.copies]
    for chunk in batch.chunks:
        pages += chunk.pages[chunk.start // page_tokens : -(-chunk.end // page_tokens)].tolist()
    rows = [*batch.zero_rows, *(restore.row for restore in batch.restores), *(chunk.row for chunk in batch.chunks)]
    snapshots = [*(save.snapshot_id for save in batch.saves), *(capture.snapshot_id for capture in batch.captures)]
    return Places(frozenset(pages), frozenset(rows), frozenset(snapshots))
