"""Where snapshots are taken: the positions worth a cell, and the choice among them when cells are scarce."""

import enum
from dataclasses import dataclass


class BoundaryKind(enum.Enum):
    """Positions the text side knows from the rendered template."""

    SYSTEM_END = "system_end"  # end of the stable system and tools block
    MESSAGE_START = "message_start"  # before a role header, the generation prompt's included


@dataclass(frozen=True, slots=True)
class Boundary:
    """`position` tokens stand before it."""

    position: int
    kind: BoundaryKind
