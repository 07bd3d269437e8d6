"""BF16: the upper half of an IEEE single precision number (sign, 8 exponent bits, 7 of 23 mantissa bits)."""

import numpy as np

from svc.gguf.quant.quant_type import Bytes, Floats, QuantType


def decode(blocks: Bytes) -> Floats:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def encode(values: Floats) -> Bytes:
    """Rounds to nearest even. A NaN stays one: rounding could carry it into infinity, so it gets its quiet bit instead."""
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> 16 & np.uint32(1))
    is_nan = bits & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000)
    upper = np.where(is_nan, bits | np.uint32(0x00400000), rounded) >> 16
    return upper.astype("<u2").view(np.uint8)


BF16 = QuantType("BF16", ggml_id=30, block_size=1, block_bytes=2, decode=decode, encode=encode)
