"""What a move between the tiers does, in models of a device that keep tokens instead of numbers."""

from typing import Any, Protocol

from svc.memory.tiers import Move, MoveKind


class TwoTiers(Protocol):
    """Pages are lists, states are values; of the device and of the host."""

    pages: Any
    host_pages: Any
    rows: Any
    snapshots: Any
    host_snapshots: Any


def make_move(tiers: TwoTiers, move: Move) -> None:
    match move.kind:
        case MoveKind.PAGE_OUT:
            tiers.host_pages[move.target] = list(tiers.pages[move.source])
        case MoveKind.PAGE_IN:
            tiers.pages[move.target] = list(tiers.host_pages[move.source])
        case MoveKind.SNAPSHOT_OUT:
            tiers.host_snapshots[move.target] = tiers.snapshots[move.source]
        case MoveKind.ROW_IN:
            tiers.rows[move.target] = tiers.host_snapshots[move.source]
