"""Keys and values in KV pages: rows [..., D] of floats to rows in the pages' type and back (memory/layout.py has the types).

    q8_0:  d = m / 127, q = round(x / d)                   m: largest magnitude of 32 neighbours
    q4_0:  d = e / -8,  q = min(15, floor(x / d + 8.5))    e: the number of largest magnitude, with its sign; x' = d (q - 8)

`x / d` is x times the float32 inverse of d; d is stored as float16. A block with a number that is not finite is NaN; one whose
numbers are below 1e-30 is zeros.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.compute.reference.math import Float32
from svc.memory.layout import KV_BLOCK, KV_BLOCK_BYTES

KV_DTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "q8_0": np.uint8, "q4_0": np.uint8}
TINY = 1e-30  # the inverse of a much smaller number is infinite


def fresh_pages(num_pages: int, page_elements: int, kv_type: str) -> NDArray[Any]:
    """A slab full of NaN."""
    fill = 0xFF if kv_type in KV_BLOCK_BYTES else np.nan
    return np.full((num_pages, page_elements), fill, KV_DTYPES[kv_type])


def pack_rows(rows: Float32, kv_type: str) -> NDArray[Any]:
    if kv_type not in KV_BLOCK_BYTES:
        with np.errstate(over="ignore"):
            return rows.astype(KV_DTYPES[kv_type])
    blocks = rows.reshape(-1, KV_BLOCK)
    out = np.empty((len(blocks), KV_BLOCK_BYTES[kv_type]), np.uint8)
    finite = np.isfinite(blocks).all(axis=1, keepdims=True)
    values: Float32 = np.where(finite, blocks, np.float32(0)).astype(np.float32)
    if kv_type == "q8_0":
        scales = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
        out[:, 2:] = np.rint(values * _inverse(values, scales)).astype(np.int8).view(np.uint8)
    else:
        extremes: Float32 = np.take_along_axis(values, np.abs(values).argmax(axis=1)[:, None], axis=1)
        scales = extremes / np.float32(-8)
        levels = np.minimum(values * _inverse(values, scales) + np.float32(8.5), 15).astype(np.uint8)
        out[:, 2:] = levels[:, :16] | levels[:, 16:] << 4
    scales = np.where(np.abs(values).max(axis=1, keepdims=True) >= TINY, scales, np.float32(0))
    with np.errstate(over="ignore"):
        out[:, :2] = np.where(finite, scales, np.float32(np.nan)).astype(np.float16).view(np.uint8)
    return out.reshape(*rows.shape[:-1], -1)


def unpack_rows(rows: NDArray[Any], kv_type: str) -> Float32:
    if kv_type not in KV_BLOCK_BYTES:
        return rows.astype(np.float32)
    blocks = np.ascontiguousarray(rows).reshape(-1, KV_BLOCK_BYTES[kv_type])
    scales, stored = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32), blocks[:, 2:]
    if kv_type == "q8_0":
        levels = stored.view(np.int8).astype(np.float32)
    else:
        levels = np.concatenate([stored & 15, stored >> 4], axis=1).astype(np.float32) - 8
    return (levels * scales).reshape(*rows.shape[:-1], -1)


def _inverse(values: Float32, scales: Float32) -> Float32:
    used = np.abs(values).max(axis=1, keepdims=True) >= TINY
    return np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=used)
