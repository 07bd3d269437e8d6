"""Recurrent states in snapshots: packed into words of four bytes and unpacked again (memory/layout.py has the types).

    q8:  q = round(x * (127 / m)), scale = m / 127, x' = q * scale     m: largest magnitude of a value column

Rounded to the nearest, ties to even. A column with a number that is not finite comes back as NaN; one below 1e-30 as zeros.
"""

import numpy as np
from numpy.typing import NDArray

from svc.compute.reference.math import Float32

TINY = np.float32(1e-30)  # the inverse of a much smaller number is infinite
LEVELS = np.float32(127)


def pack(state: Float32, snapshot_type: str, num_words: int) -> Float32:
    """A layer's state [H_v, D_k, D_v] as `num_words` words, scales included."""
    words = np.zeros(num_words, np.float32)
    match snapshot_type:
        case "f32":
            words[:] = state.ravel()
        case "bf16":
            words.view(np.uint16)[: state.size] = _to_bf16(state).ravel()
        case _:
            values, scales = _to_q8(state)
            words.view(np.int8)[: state.size] = values.ravel()
            words[num_words - scales.size :] = scales.ravel()
    return words


def unpack(words: Float32, shape: tuple[int, ...], snapshot_type: str) -> Float32:
    """The reverse, as far as it can be: [H_v, D_k, D_v]."""
    size, (heads, _, value_dim) = int(np.prod(shape)), shape
    match snapshot_type:
        case "f32":
            return words.reshape(shape)
        case "bf16":
            return (words.view(np.uint16)[:size].astype(np.uint32) << 16).view(np.float32).reshape(shape)
        case _:
            scales = words[len(words) - heads * value_dim :].reshape(heads, 1, value_dim)
            return words.view(np.int8)[:size].reshape(shape) * scales


def _to_bf16(values: Float32) -> NDArray[np.uint16]:
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype(np.uint16)


def _to_q8(state: Float32) -> tuple[NDArray[np.int8], Float32]:
    """Values like `state`, and scales [H_v, D_v]."""
    most = np.abs(state).max(axis=1)  # NaN if one is
    used = np.isfinite(most) & (most >= TINY)
    inverse = np.divide(LEVELS, most, out=np.zeros_like(most), where=used)
    values = np.where(used[:, None], state, 0) * inverse[:, None]
    scales = np.where(np.isfinite(most), np.where(used, most, 0) / LEVELS, np.float32(np.nan))
    return np.rint(values).astype(np.int8), scales.astype(np.float32)
