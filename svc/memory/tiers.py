"""Where things stand: each page or snapshot keeps its number for life, and stands in a place of the device's slab or the host's.

The device tier is what kernels read and write; the host tier (pinned memory beside a GPU) keeps what the device has no room for.
A thing stands in exactly one place. Moving it is a copy that somebody else makes (moves.py): here only the numbers change.
"""

from collections import deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

NOWHERE = np.iinfo(np.int32).min


class Tiers:
    """`num_device` places on the device, `num_host` on the host, and as many things as both hold.

    `places[thing]` is a place of the device where it is >= 0, else -1 - (a place of the host), or NOWHERE.
    """

    def __init__(self, num_device: int, num_host: int) -> None:
        self.num_device = num_device
        self.num_host = num_host
        self.places: NDArray[np.int32] = np.full(num_device + num_host, NOWHERE, np.int32)
        self._free_device = deque(range(num_device - 1, -1, -1))
        self._free_host = deque(range(num_host - 1, -1, -1))
        self._things_on_device = [NOWHERE] * num_device
        self._things_on_host = [NOWHERE] * num_host

    @property
    def free_on_device(self) -> int:
        return len(self._free_device)

    @property
    def free_on_host(self) -> int:
        return len(self._free_host)

    # -- looking --------------------------------------------------------------------------------------------------------------
    def on_host(self, thing: int) -> bool:
        return self.num_host > 0 and NOWHERE < self.places[thing] < 0

    def device_place(self, thing: int) -> int:
        place = int(self.places[thing])
        assert place >= 0, f"{thing} does not stand on the device"
        return place

    def host_place(self, thing: int) -> int:
        assert self.on_host(thing), f"{thing} does not stand on the host"
        return -1 - int(self.places[thing])

    def thing_on_device(self, place: int) -> int | None:
        """What stands there; None: nothing."""
        thing = self._things_on_device[place]
        return None if thing == NOWHERE else thing

    def thing_on_host(self, place: int) -> int | None:
        thing = self._things_on_host[place]
        return None if thing == NOWHERE else thing

    # -- changing -------------------------------------------------------------------------------------------------------------
    def put(self, thing: int) -> int:
        """A free place on the device for something new."""
        assert self.places[thing] == NOWHERE, f"{thing} stands somewhere already"
        # With a host tier the place that has been free for longest: the copies out of it are the likeliest to be over.
        place = self._free_device.popleft() if self.num_host else self._free_device.pop()
        self._things_on_device[place] = thing
        self.places[thing] = place
        return place

    def remove(self, thing: int) -> None:
        """The thing is gone, its place is free."""
        if self.on_host(thing):
            place = self.host_place(thing)
            self._things_on_host[place] = NOWHERE
            self._free_host.append(place)
        else:
            place = self.device_place(thing)
            self._things_on_device[place] = NOWHERE
            self._free_device.append(place)
        self.places[thing] = NOWHERE

    def move_out(self, thing: int) -> tuple[int, int]:
        """From the device to a free place of the host: (source, target)."""
        source, target = self.device_place(thing), self._free_host.pop()
        self.remove(thing)
        self._things_on_host[target] = thing
        self.places[thing] = -1 - target
        return source, target

    def move_in(self, thing: int) -> tuple[int, int]:
        """From the host to a free place of the device: (source, target)."""
        source = self.host_place(thing)
        self.remove(thing)
        return source, self.put(thing)

    # -- checks ---------------------------------------------------------------------------------------------------------------
    def check(self, things: Iterable[int]) -> None:
        """Exactly `things` stand somewhere, each alone in its place, and every other place is free."""
        expected = set(things)
        found = set(np.flatnonzero(self.places != NOWHERE).tolist())
        assert found == expected, f"{sorted(found ^ expected)} stand somewhere and should not, or the reverse"
        for name, free, standing in (
            ("device", self._free_device, self._things_on_device),
            ("host", self._free_host, self._things_on_host),
        ):
            empty = [place for place, thing in enumerate(standing) if thing == NOWHERE]
            assert sorted(free) == empty, f"free places on the {name} {sorted(free)} listed, {empty} found"
        for thing in found:
            place = int(self.places[thing])
            there = self._things_on_device[place] if place >= 0 else self._things_on_host[-1 - place]
            assert there == thing, f"{there} stands where {thing} should"
