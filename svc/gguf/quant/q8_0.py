"""Q8_0: 32 values of 8 bits under one scale.

| bytes  | content                    |
|--------|----------------------------|
| 0..2   | d, half precision          |
| 2..34  | q: 32 signed bytes         |

value = d * q
"""

import numpy as np

from svc.gguf.quant.bits import half
from svc.gguf.quant.quant_type import Bytes, Floats, QuantType


def decode(blocks: Bytes) -> Floats:
    return half(blocks[:, :2]) * blocks[:, 2:].view(np.int8).astype(np.float32)


def encode(values: Floats) -> Bytes:
    """d = largest magnitude / 127, q = value / d rounded to nearest, halves away from zero.

    The quotient uses d in single precision, before it is rounded for storage: that is how the format's own tools do it.
    """
    d = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        scaled = values * np.where(d == 0, np.float32(0), np.float32(1) / d)
        magnitude = np.abs(scaled)
        whole = np.floor(magnitude)
        rounded = np.copysign(whole + (magnitude - whole >= 0.5), scaled)
        return np.concatenate([d.astype("<f2").view(np.uint8), rounded.astype(np.int8).view(np.uint8)], axis=1)


Q8_0 = QuantType("Q8_0", ggml_id=8, block_size=32, block_bytes=34, decode=decode, encode=encode)
