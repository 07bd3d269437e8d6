"""IQ4_NL: 32 values of 4 bits under one scale, the 16 levels spaced for bell-shaped weights.

| bytes  | content                                                              |
|--------|----------------------------------------------------------------------|
| 0..2   | d, half precision                                                    |
| 2..18  | q: byte j holds value j in its low and value j + 16 in its high half |

value = d * LEVELS[q]
"""

import numpy as np

from svc.gguf.quant.bits import half, planes
from svc.gguf.quant.quant_type import Bytes, Floats, QuantType

LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


def decode(blocks: Bytes) -> Floats:
    return half(blocks[:, :2]) * LEVELS[planes(blocks[:, 2:], 4).reshape(-1, 32)]


IQ4_NL = QuantType("IQ4_NL", ggml_id=20, block_size=32, block_bytes=18, decode=decode)
