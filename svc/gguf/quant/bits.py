"""Unpacking shared by the block types: small fields in bytes, and half-precision numbers between them."""

import numpy as np
from numpy.typing import NDArray

from svc.gguf.quant.quant_type import Bytes, Floats


def planes(packed: Bytes, bits: int) -> Bytes:
    """Split bytes `(..., k)` into planes `(..., 8 // bits, k)`: first the lowest field of every byte, then the next.

    This is how most types store values: byte j holds the values j, j + k, j + 2k ...
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return packed[..., None, :] >> shifts & np.uint8((1 << bits) - 1)


def in_order(packed: Bytes, bits: int) -> Bytes:
    """Split bytes `(..., k)` into fields `(..., k * 8 // bits)`, the fields of one byte side by side, lowest first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    fields = packed[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return fields.reshape(*packed.shape[:-1], -1)


def half(packed: Bytes) -> Floats:
    """Half-precision numbers stored in bytes `(n, 2k)`, as float32 `(n, k)`."""
    return np.ascontiguousarray(packed).view("<f2").astype(np.float32)


def uint16(packed: Bytes) -> NDArray[np.uint16]:
    """Words stored in bytes `(n, 2k)`, as `(n, k)`."""
    return np.ascontiguousarray(packed).view("<u2")


def uint32(packed: Bytes) -> NDArray[np.uint32]:
    """Words stored in bytes `(n, 4k)`, as `(n, k)`."""
    return np.ascontiguousarray(packed).view("<u4")
