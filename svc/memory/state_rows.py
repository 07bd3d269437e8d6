"""Slots: which live rows of the state slab are taken."""


class StateRows:
    """`num_rows` live rows; a row belongs to one lease from `take` to `give_back`."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self._free = list(range(num_rows - 1, -1, -1))

    def __repr__(self) -> str:
        return f"StateRows({self.num_free} free of {self.num_rows})"

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self) -> int | None:
        """A row, or None when every slot is taken."""
        return self._free.pop() if self._free else None

    def give_back(self, row: int) -> None:
        assert 0 <= row < self.num_rows, f"there is no row {row}"
        assert row not in self._free, f"row {row} is not taken"
        self._free.append(row)

    def check(self, taken: list[int]) -> None:
        """Compares with the rows that live leases say they have."""
        assert sorted(taken + self._free) == list(range(self.num_rows)), f"rows taken {taken} and free {self._free} do not add up"
