"""Snapshot cells as numbers: life cycle, generations, pins, and the hands that find a cheap cell in each tier.

Owner of all cell states. A cell keeps its number, and so its references stay good, when it moves from the device to the host
(tiers.py). What a cell's snapshot belongs to (a path of tokens, pages) is the prefix tree's business.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass

from svc.memory.eviction import sweep
from svc.memory.tiers import Tiers


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
    """`num_cells` cells on the device and `num_host_cells` on the host.

    References are checked on every call: StaleSnapshotError, never another sequence's state.
    """

    def __init__(self, num_cells: int, num_host_cells: int = 0) -> None:
        self.num_cells = num_cells
        self._tiers = Tiers(num_cells, num_host_cells)
        num_cells += num_host_cells
        self._free = list(range(num_cells - 1, -1, -1))
        self._state = [CellState.FREE] * num_cells
        self._generation = [0] * num_cells
        self._pins = [0] * num_cells
        self._position = [0] * num_cells
        self._hand = 0
        self._host_hand = 0

    def __repr__(self) -> str:
        counts = {state.value: self._state.count(state) for state in CellState}
        return f"SnapshotRing({counts})"

    @property
    def num_free(self) -> int:
        """Cells free on the device."""
        return self._tiers.free_on_device

    @property
    def num_host_cells(self) -> int:
        return self._tiers.num_host

    @property
    def num_free_on_host(self) -> int:
        return self._tiers.free_on_host

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
        """A free cell on the device for the state after `position` tokens, or None."""
        if not self.num_free:
            return None
        cell = self._free.pop()
        self._tiers.put(cell)
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

    # -- tiers ----------------------------------------------------------------------------------------------------------------
    def on_host(self, cell: int) -> bool:
        return self._tiers.on_host(cell)

    def device_place(self, ref: SnapshotRef) -> int:
        """Where on the device it stands."""
        self._verify(ref)
        return self._tiers.device_place(ref.cell)

    def host_place(self, ref: SnapshotRef) -> int:
        self._verify(ref)
        return self._tiers.host_place(ref.cell)

    def move_out(self, ref: SnapshotRef) -> tuple[int, int]:
        """A published, unpinned cell to the host, which must have a free place: (place on the device, place on the host)."""
        assert self.is_published(ref), f"{ref} is {self.state(ref).value} and cannot be moved"
        assert not self._pins[ref.cell], f"{ref} is pinned and cannot be moved"
        return self._tiers.move_out(ref.cell)

    # -- the hands ------------------------------------------------------------------------------------------------------------
    def find_cheap(self, worth_of: Callable[[int], float]) -> tuple[SnapshotRef | None, float, int]:
        """Moves the device's hand on and returns the cheapest unpinned published cell it saw, its worth and how many it looked
        at."""
        cell, value, looked = sweep(self._hand, self.num_cells, self._worth(self._tiers.thing_on_device, worth_of))
        self._hand = (self._hand + looked) % max(self.num_cells, 1)
        return self._cell_at(self._tiers.thing_on_device, cell), value, looked

    def find_cheap_on_host(self, worth_of: Callable[[int], float]) -> tuple[SnapshotRef | None, float, int]:
        """The same with the hand of the host tier."""
        place, value, looked = sweep(self._host_hand, self.num_host_cells, self._worth(self._tiers.thing_on_host, worth_of))
        self._host_hand = (self._host_hand + looked) % max(self.num_host_cells, 1)
        return self._cell_at(self._tiers.thing_on_host, place), value, looked

    def _worth(self, thing_at: Callable[[int], int | None], worth_of: Callable[[int], float]) -> Callable[[int], float | None]:
        """By place; None for what must stay."""

        def worth(place: int) -> float | None:
            cell = thing_at(place)
            if cell is None or self._pins[cell] or self._state[cell] is not CellState.PUBLISHED:
                return None
            return worth_of(cell)

        return worth

    def _cell_at(self, thing_at: Callable[[int], int | None], place: int | None) -> SnapshotRef | None:
        cell = None if place is None else thing_at(place)
        return None if cell is None else self.ref(cell)

    # -- checks ---------------------------------------------------------------------------------------------------------------
    def check(self, published: set[int], pins: dict[int, int]) -> None:
        """Compares with the cells the tree has and the pins of live leases (cell -> count; joiners may have more)."""
        free = set(self._free)
        assert len(free) == len(self._free), "a cell is in the free list twice"
        self._tiers.check(cell for cell in range(len(self._state)) if cell not in free)
        for cell in range(len(self._state)):
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
            assert state not in (CellState.RESERVED, CellState.WRITTEN) or not self.on_host(cell), (
                f"cell {cell} is {state.value} and stands on the host, where no step can write it"
            )

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
        self._tiers.remove(cell)
        self._free.append(cell)
