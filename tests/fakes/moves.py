"""What a move between the tiers does, in models of a device that keep tokens instead of numbers."""

from typing import Any, Protocol

from svc.memory.moves import Move, MoveKind


class TwoTiers(Protocol):
    """Pages are lists, states are values; of the device and of the host."""

    pages: Any
    host_pages: Any
    rows: Any
    cells: Any
    host_cells: Any


def make_move(tiers: TwoTiers, move: Move) -> None:
    match move.kind:
        case MoveKind.PAGE_OUT:
            tiers.host_pages[move.target] = list(tiers.pages[move.source])
        case MoveKind.PAGE_IN:
            tiers.pages[move.target] = list(tiers.host_pages[move.source])
        case MoveKind.CELL_OUT:
            tiers.host_cells[move.target] = tiers.cells[move.source]
        case MoveKind.ROW_IN:
            tiers.rows[move.target] = tiers.host_cells[move.source]
