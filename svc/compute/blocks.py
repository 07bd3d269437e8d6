"""Whole pages and states as bytes, between a backend's slabs and the files of the cache."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Blocks = NDArray[np.uint8]
"""uint8 [n, bytes of a page or state]."""


def read_numpy(slab: NDArray[Any], places: Sequence[int]) -> Blocks:
    """Copies of those rows of a slab [n, elements]."""
    return slab[np.asarray(places, np.intp)].view(np.uint8)


def write_numpy(slab: NDArray[Any], places: Sequence[int], blocks: Blocks) -> None:
    """The reverse."""
    slab[np.asarray(places, np.intp)] = blocks.view(slab.dtype)
