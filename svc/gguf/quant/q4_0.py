"""Q4_0: 32 values of 4 bits under one scale.

| bytes  | content                                                              |
|--------|----------------------------------------------------------------------|
| 0..2   | d, half precision                                                    |
| 2..18  | q: byte j holds value j in its low and value j + 16 in its high half |

value = d * (q - 8)
"""

import numpy as np

from svc.gguf.quant.bits import half, planes
from svc.gguf.quant.quant_type import Bytes, Floats, QuantType


def decode(blocks: Bytes) -> Floats:
    d = half(blocks[:, :2])
    q = planes(blocks[:, 2:], 4).reshape(-1, 32)
    return d * (q.astype(np.float32) - np.float32(8))


Q4_0 = QuantType("Q4_0", ggml_id=2, block_size=32, block_bytes=18, decode=decode)
