"""Whole pages and states as bytes, between a backend's slabs and the files of the cache."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.memory.layout import KV_BLOCK_BYTES, KV_TYPE_BYTES, MemoryLayout

Blocks = NDArray[np.uint8]
"""uint8 [n, bytes of a page or state]."""


def read_numpy(slab: NDArray[Any], places: Sequence[int]) -> Blocks:
    """Copies of those rows of a slab [n, elements]. Releases the interpreter's lock."""
    return slab.take(np.asarray(places, np.intp), axis=0).view(np.uint8)


def write_numpy(slab: NDArray[Any], places: Sequence[int], blocks: Blocks) -> None:
    """The reverse."""
    slab[np.asarray(places, np.intp)] = blocks.view(slab.dtype)


def finite_page(block: Blocks, layout: MemoryLayout) -> bool:
    """Whether all numbers of a page (one row of Blocks) are finite."""
    if layout.kv_type in KV_BLOCK_BYTES:  # their scales tell
        scales = np.ascontiguousarray(block.reshape(-1, KV_BLOCK_BYTES[layout.kv_type])[:, :2])
        return bool(np.isfinite(scales.view(np.float16)).all())
    return bool(np.isfinite(block.view(f"f{KV_TYPE_BYTES[layout.kv_type]}")).all())


def finite_state(block: Blocks, layout: MemoryLayout) -> bool:
    """The same of a snapshot. In one of 8 bits the scales tell: those of numbers that are not finite are NaN."""
    words = block.view(np.float32)
    if layout.snapshot_type == "bf16":
        recurrent = layout.snapshot_recurrent_words
        parts = [words[layout.snapshot_recurrent_offset(layer) :][:recurrent] for layer in range(layout.num_delta_layers)]
        if not all(np.isfinite((part.view(np.uint32) << np.uint32(16)).view(np.float32)).all() for part in parts):
            return False
    if layout.snapshot_type == "q8":
        starts = [layout.snapshot_recurrent_offset(layer) for layer in range(layout.num_delta_layers)]
        ends = [*starts[1:], layout.snapshot_elements]
        rounded = layout.snapshot_recurrent_words
        return all(bool(np.isfinite(words[start + rounded : end]).all()) for start, end in zip(starts, ends, strict=True))
    return bool(np.isfinite(words).all())
