"""The rooms that the tests in this folder run in. A new room is one more line of ROOMS; nothing else here names one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.compute.cpu import CpuOps
from svc.compute.cpu.library import available_levels
from svc.compute.ops import Ops
from svc.compute.reference import ReferenceOps
from tests.tolerances import KERNEL


def _write(array: Any, values: NDArray[Any]) -> None:
    array[...] = values


@dataclass(frozen=True)
class Room:
    """`state_order`: inner order of a recurrent state, "kv" (S[k][v]) or "vk". `read` and `write` move whole arrays of the room.

    `tolerances`: absolute and relative, by GGUF type, for types whose products the room rounds more coarsely than float32.
    """

    name: str
    make: Callable[[], Ops]
    state_order: str = "kv"
    read: Callable[[Any], NDArray[Any]] = np.asarray
    write: Callable[[Any, NDArray[Any]], None] = _write
    tolerances: Mapping[str, float] = field(default_factory=dict)

    def tolerance(self, weight_type: str) -> float:
        return self.tolerances.get(weight_type, KERNEL)

    def __str__(self) -> str:
        return self.name


ROOMS = [
    Room("reference", ReferenceOps),
    *(Room(f"cpu-{level}", partial(CpuOps, 2, level=level, poison=True, least_shared_work=0)) for level in available_levels()),
]
