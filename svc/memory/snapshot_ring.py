"""The slab of equal snapshot cells as numbers: life cycle, generations, pins, and the hand that finds a cheap cell.

Owner of all cell states. What a cell's snapshot belongs to (a path of tokens, pages) is the prefix tree's business.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass

from svc.memory.eviction import sweep


class StaleSnapshotError(RuntimeError):
    """A reference to a snapshot that is no longer there, or not in the state the caller thinks. Always our bug, never served."""


@dataclass(frozen=True, slots=True)
class SnapshotRef:
    """One filling of a cell. A cell given back and taken again has a new generation, so an old reference is an error."""

    cell: int
    generation: int


class CellState(enum.Enum):
    FREE = "free"
    RESERVED = "reserved"  # the device will write it
    WRITTEN = "written"  # the device has written it
    PUBLISHED = "published"  # in the tree: can be matched
    STRANDED = "stranded"  # its path or its writer is gone; never matched; kept only until the last pin goes


TRANSITIONS: dict[CellState, frozenset[CellState]] = {
    CellState.FREE: frozenset({CellState.RESERVED}),
    CellState.RESERVED: frozenset({CellState.WRITTEN, CellState.STRANDED, CellState.FREE}),
    CellState.WRITTEN: frozenset({CellState.PUBLISHED, CellState.STRANDED, CellState.FREE}),
    CellState.PUBLISHED: frozenset({CellState.STRANDED, CellState.FREE}),
    CellState.STRANDED: frozenset({CellState.FREE}),
}


class SnapshotRing:
    """`num_cells` cells. References are checked on every call: StaleSnapshotError, never another sequence's state."""

    def __init__(self, num_cells: int) -> None:
        self.num_cells = num_cells
        self._free = list(range(num_cells - 1, -1, -1))
        self._state = [CellState.FREE] * num_cells
        self._generation = [0] * num_cells
        self._pins = [0] * num_cells
        self._position = [0] * num_cells
        self._hand = 0

    def __repr__(self) -> str:
        counts = {state.value: self._state.count(state) for state in CellState}
        return f"SnapshotRing({counts})"

    @property
    def num_free(self) -> int:
        return len(self._free)

    def count(self, state: CellState) -> int:
        return self._state.count(state)

    @property
    def num_pinned(self) -> int:
        return sum(1 for pins in self._pins if pins)

    # -- looking --------------------------------------------------------------------------------------------------------------
    def ref(self, cell: int) -> SnapshotRef:
        """The reference to what the cell holds now."""
        assert self._state[cell] is not CellState.FREE, f"cell {cell} is free"
        return SnapshotRef(cell, self._generation[cell])

    def state(self, ref: SnapshotRef) -> CellState:
        self._verify(ref)
        return self._state[ref.cell]

    def position(self, ref: SnapshotRef) -> int:
        """How many tokens the snapshot stands behind."""
        self._verify(ref)
        return self._position[ref.cell]

    def is_pinned(self, cell: int) -> bool:
        return self._pins[cell] > 0

    def is_published(self, ref: SnapshotRef) -> bool:
        """Whether `ref` is current and can be matched. The one question a stale reference may ask."""
        return self._generation[ref.cell] == ref.generation and self._state[ref.cell] is CellState.PUBLISHED

    # -- life cycle -----------------------------------------------------------------------------------------------------------
    def reserve(self, position: int) -> SnapshotRef | None:
        """A free cell for the state after `position` tokens, or None."""
        if not self._free:
            return None
        cell = self._free.pop()
        self._move(cell, CellState.RESERVED)
        self._position[cell] = position
        return SnapshotRef(cell, self._generation[cell])

    def mark_written(self, ref: SnapshotRef) -> None:
        self._verify(ref)
        self._move(ref.cell, CellState.WRITTEN)

    def mark_published(self, ref: SnapshotRef) -> None:
        self._verify(ref)
        self._move(ref.cell, CellState.PUBLISHED)

    def give_up(self, ref: SnapshotRef) -> None:
        """Ends the snapshot in any state: free at once, or stranded until the last pin goes. It is never matched again."""
        self._verify(ref)
        if self._pins[ref.cell]:
            self._move(ref.cell, CellState.STRANDED)
        else:
            self._set_free(ref.cell)

    # -- pins -----------------------------------------------------------------------------------------------------------------
    def pin(self, ref: SnapshotRef) -> bool:
        """One more pin; True when it is the first. A stranded snapshot cannot be pinned anew."""
        self._verify(ref)
        if self._state[ref.cell] is CellState.STRANDED:
            raise StaleSnapshotError(f"{ref} is stranded and cannot be pinned")
        self._pins[ref.cell] += 1
        return self._pins[ref.cell] == 1

    def unpin(self, ref: SnapshotRef) -> bool:
        """One pin less; True when it was the last. A stranded cell is then free."""
        self._verify(ref)
        assert self._pins[ref.cell] > 0, f"{ref} is unpinned more often than pinned"
        self._pins[ref.cell] -= 1
        last = self._pins[ref.cell] == 0
        if last and self._state[ref.cell] is CellState.STRANDED:
            self._set_free(ref.cell)
        return last

    # -- the hand -------------------------------------------------------------------------------------------------------------
    def find_cheap(self, worth_of: Callable[[int], float]) -> tuple[SnapshotRef | None, float, int]:
        """Moves the hand on and returns the cheapest unpinned published cell it saw, its worth and how many it looked at."""

        def worth(cell: int) -> float | None:
            if self._pins[cell] or self._state[cell] is not CellState.PUBLISHED:
                return None
            return worth_of(cell)

        cell, value, looked = sweep(self._hand, self.num_cells, worth)
        self._hand = (self._hand + looked) % max(self.num_cells, 1)
        return (None if cell is None else self.ref(cell)), value, looked

    # -- checks ---------------------------------------------------------------------------------------------------------------
    def check(self, published: set[int], pins: dict[int, int]) -> None:
        """Compares with the cells the tree has and the pins of live leases (cell -> count; joiners may have more)."""
        free = set(self._free)
        assert len(free) == len(self._free), "a cell is in the free list twice"
        for cell in range(self.num_cells):
            state = self._state[cell]
            assert (state is CellState.FREE) == (cell in free), f"cell {cell} is {state.value} and free list says {cell in free}"
            assert (state is CellState.PUBLISHED) == (cell in published), (
                f"cell {cell} is {state.value}, in tree: {cell in published}"
            )
            assert self._pins[cell] >= pins.get(cell, 0), (
                f"cell {cell}: {self._pins[cell]} pins counted, {pins.get(cell, 0)} holders"
            )
            assert state is not CellState.FREE or not self._pins[cell], f"free cell {cell} is pinned"
            assert state is not CellState.STRANDED or self._pins[cell], f"stranded cell {cell} has no pin and is lost"

    def _verify(self, ref: SnapshotRef) -> None:
        if self._generation[ref.cell] != ref.generation or self._state[ref.cell] is CellState.FREE:
            raise StaleSnapshotError(f"{ref} is stale: the cell is at generation {self._generation[ref.cell]}")

    def _move(self, cell: int, state: CellState) -> None:
        if state not in TRANSITIONS[self._state[cell]]:
            raise StaleSnapshotError(f"cell {cell} cannot go from {self._state[cell].value} to {state.value}")
        self._state[cell] = state

    def _set_free(self, cell: int) -> None:
        self._move(cell, CellState.FREE)
        self._generation[cell] += 1
        self._free.append(cell)
