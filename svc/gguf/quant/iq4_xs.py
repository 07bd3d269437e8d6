"""IQ4_XS: 256 values of 4 bits in 8 groups of 32 with the levels of IQ4_NL, each group with a 6-bit scale.

| bytes  | content                                                                                   |
|--------|-------------------------------------------------------------------------------------------|
| 0..2   | d, half precision                                                                         |
| 2..4   | upper two bits of scale i in bits 2 i and 2 i + 1 of this word                            |
| 4..8   | low four bits of the scales, two a byte, low half first                                   |
| 8..136 | q: 16 bytes a group; byte j holds the group's value j in its low and j + 16 in its high half |

value = d * (scale - 32) * LEVELS[q]
"""

import numpy as np

from svc.gguf.quant.bits import half, in_order, planes
from svc.gguf.quant.iq4_nl import LEVELS
from svc.gguf.quant.quant_type import Bytes, Floats, QuantType


def decode(blocks: Bytes) -> Floats:
    scales = in_order(blocks[:, 4:8], 4) | in_order(blocks[:, 2:4], 2) << np.uint8(4)
    scale = half(blocks[:, :2]) * (scales.astype(np.float32) - np.float32(32))
    q = planes(blocks[:, 8:].reshape(-1, 8, 16), 4).reshape(-1, 8, 32)
    return (scale[:, :, None] * LEVELS[q]).reshape(-1, 256)


IQ4_XS = QuantType("IQ4_XS", ggml_id=23, block_size=256, block_bytes=136, decode=decode)
