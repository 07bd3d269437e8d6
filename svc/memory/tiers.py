"""The two tiers of memory: where each page or snapshot is, and the moves between the tiers, as numbers.

A page or snapshot keeps its id for life. It is in one place at a time: a place of the device's slab, which kernels read and write,
or a place of the host's (pinned memory beside a GPU), which keeps what is evicted from the device. Moving it is a copy that the
backend makes: here only the numbers change.

Order is everything. A place is reused as soon as a move out of it is queued, and a page moved out can be moved in again at once.
That is right because the backend makes moves in the order they were queued, and lets no step write a place that an earlier move
uses.
"""

import enum
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NOWHERE = np.iinfo(np.int32).min


class MoveKind(enum.Enum):
    PAGE_OUT = "page_out"  # device page -> host page
    PAGE_IN = "page_in"  # host page -> device page
    SNAPSHOT_OUT = "snapshot_out"  # snapshot on the device -> on the host
    ROW_IN = "row_in"  # snapshot on the host -> state row


@dataclass(frozen=True, slots=True)
class Move:
    """Copy one whole page, or one whole state."""

    kind: MoveKind
    source: int
    target: int


class MoveQueue:
    """Moves not yet handed to a step, and the count of finished ones. A move's number is the count of moves up to and with it."""

    def __init__(self) -> None:
        self.num_given_out = 0
        self.num_over = 0
        self._waiting: list[Move] = []

    def __repr__(self) -> str:
        return f"MoveQueue({len(self._waiting)} waiting, {self.num_over} of {self.num_given_out} over)"

    def __len__(self) -> int:
        """Moves not yet handed to a step."""
        return len(self._waiting)

    @property
    def num_under_way(self) -> int:
        """Handed to a step and not finished."""
        return self.num_given_out - self.num_over

    def add(self, kind: MoveKind, source: int, target: int) -> int:
        """Queues a move and returns its number."""
        self._waiting.append(Move(kind, source, target))
        return self.num_given_out + len(self._waiting)

    def take(self) -> tuple[Move, ...]:
        """All waiting moves, in order, for the next step."""
        moves, self._waiting = tuple(self._waiting), []
        self.num_given_out += len(moves)
        return moves

    def over(self, count: int) -> None:
        """The first `count` moves ever queued are finished."""
        assert count <= self.num_given_out, f"{count} moves over, {self.num_given_out} given out"
        self.num_over = max(self.num_over, count)


class Tiers:
    """`num_device` places on the device, `num_host` on the host, and as many ids as both hold.

    `places[id]` is a place of the device where it is >= 0, else -1 - (a place of the host), or NOWHERE.
    """

    def __init__(self, num_device: int, num_host: int) -> None:
        self.num_device = num_device
        self.num_host = num_host
        self.places: NDArray[np.int32] = np.full(num_device + num_host, NOWHERE, np.int32)
        self._free_device = deque(range(num_device - 1, -1, -1))
        self._free_host = deque(range(num_host - 1, -1, -1))
        self._ids_on_device = [NOWHERE] * num_device
        self._ids_on_host = [NOWHERE] * num_host

    @property
    def free_on_device(self) -> int:
        return len(self._free_device)

    @property
    def free_on_host(self) -> int:
        return len(self._free_host)

    # -- looking --------------------------------------------------------------------------------------------------------------
    def on_host(self, item: int) -> bool:
        return self.num_host > 0 and NOWHERE < self.places[item] < 0

    def device_place(self, item: int) -> int:
        place = int(self.places[item])
        assert place >= 0, f"{item} is not on the device"
        return place

    def host_place(self, item: int) -> int:
        assert self.on_host(item), f"{item} is not on the host"
        return -1 - int(self.places[item])

    def id_on_device(self, place: int) -> int | None:
        """The page or snapshot in that place, if any."""
        item = self._ids_on_device[place]
        return None if item == NOWHERE else item

    def id_on_host(self, place: int) -> int | None:
        item = self._ids_on_host[place]
        return None if item == NOWHERE else item

    # -- changing -------------------------------------------------------------------------------------------------------------
    def put(self, item: int) -> int:
        """A free place on the device for a new page or snapshot."""
        assert self.places[item] == NOWHERE, f"{item} has a place already"
        # With a host tier, the place that has been free longest: the copies out of it are the likeliest to be over.
        place = self._free_device.popleft() if self.num_host else self._free_device.pop()
        self._ids_on_device[place] = item
        self.places[item] = place
        return place

    def remove(self, item: int) -> None:
        """Frees the place of `item`."""
        if self.on_host(item):
            place = self.host_place(item)
            self._ids_on_host[place] = NOWHERE
            self._free_host.append(place)
        else:
            place = self.device_place(item)
            self._ids_on_device[place] = NOWHERE
            self._free_device.append(place)
        self.places[item] = NOWHERE

    def move_out(self, item: int) -> tuple[int, int]:
        """From the device to a free place of the host: (source, target)."""
        source, target = self.device_place(item), self._free_host.pop()
        self.remove(item)
        self._ids_on_host[target] = item
        self.places[item] = -1 - target
        return source, target

    def move_in(self, item: int) -> tuple[int, int]:
        """From the host to a free place of the device: (source, target)."""
        source = self.host_place(item)
        self.remove(item)
        return source, self.put(item)

    # -- checks ---------------------------------------------------------------------------------------------------------------
    def check(self, items: Iterable[int]) -> None:
        """Exactly `items` have places, each its own, and every other place is free."""
        expected = set(items)
        found = set(np.flatnonzero(self.places != NOWHERE).tolist())
        assert found == expected, f"{sorted(found ^ expected)} have a place and should not, or the reverse"
        for name, free, taken in (
            ("device", self._free_device, self._ids_on_device),
            ("host", self._free_host, self._ids_on_host),
        ):
            empty = [place for place, item in enumerate(taken) if item == NOWHERE]
            assert sorted(free) == empty, f"free places on the {name} {sorted(free)} listed, {empty} found"
        for item in found:
            place = int(self.places[item])
            there = self._ids_on_device[place] if place >= 0 else self._ids_on_host[-1 - place]
            assert there == item, f"{there} is where {item} should be"
