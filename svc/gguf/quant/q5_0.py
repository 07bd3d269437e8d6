"""Q5_0: 32 values of 5 bits under one scale, the fifth bits kept apart.

| bytes  | content                                                                        |
|--------|--------------------------------------------------------------------------------|
| 0..2   | d, half precision                                                              |
| 2..6   | fifth bit of value j is bit j of these four bytes                              |
| 6..22  | low four bits: byte j holds value j in its low and value j + 16 in its high half |

value = d * (q - 16)
"""

import numpy as np

from svc.gguf.quant.bits import half, in_order, planes
from svc.gguf.quant.quant_type import Bytes, Floats, QuantType


def five_bits(fifth: Bytes, low: Bytes) -> Floats:
    """The 32 numbers 0..31 of fifth bits `(n, 4)` and low halves `(n, 16)`, as float32 `(n, 32)`."""
    q = planes(low, 4).reshape(-1, 32) | in_order(fifth, 1) << np.uint8(4)
    return q.astype(np.float32)


def decode(blocks: Bytes) -> Floats:
    d = half(blocks[:, :2])
    return d * (five_bits(blocks[:, 2:6], blocks[:, 6:]) - np.float32(16))


Q5_0 = QuantType("Q5_0", ggml_id=6, block_size=32, block_bytes=22, decode=decode)
