"""Q4_1: 32 values of 4 bits under one scale and one minimum.

| bytes  | content                                                              |
|--------|----------------------------------------------------------------------|
| 0..2   | d, half precision                                                    |
| 2..4   | m, half precision                                                    |
| 4..20  | q: byte j holds value j in its low and value j + 16 in its high half |

value = d * q + m
"""

import numpy as np

from svc.gguf.quant.bits import half, planes
from svc.gguf.quant.quant_type import Bytes, Floats, QuantType


def decode(blocks: Bytes) -> Floats:
    d, m = half(blocks[:, :2]), half(blocks[:, 2:4])
    q = planes(blocks[:, 4:], 4).reshape(-1, 32)
    return d * q.astype(np.float32) + m


Q4_1 = QuantType("Q4_1", ggml_id=3, block_size=32, block_bytes=20, decode=decode)
