"""IQ2_S: 256 values in 16 groups of 16; eight magnitudes at a time come from a grid of 1024 entries.

| bytes  | content                                                                             |
|--------|-------------------------------------------------------------------------------------|
| 0..2   | d, half precision                                                                   |
| 2..34  | low eight bits of the 32 grid indices                                               |
| 34..66 | signs, one bit a value                                                              |
| 66..74 | upper two bits of the grid indices, four a byte, lowest first                       |
| 74..82 | 16 scales of 4 bits, two a byte, low half first                                     |

value = d * (scale + 1/2) / 4 * GRID[index] * sign
"""

import numpy as np

from svc.gguf.grids import grid
from svc.gguf.quant.bits import half, in_order
from svc.gguf.quant.quant_type import Bytes, Floats, QuantType
from svc.gguf.quant.signs import signs_of_bits


def decode(blocks: Bytes) -> Floats:
    index = blocks[:, 2:34].astype(np.uint16) | in_order(blocks[:, 66:74], 2).astype(np.uint16) << 8
    scales = in_order(blocks[:, 74:], 4).astype(np.float32)
    scale = half(blocks[:, :2]) * (np.float32(0.5) + scales) * np.float32(0.25)
    signs = signs_of_bits(blocks[:, 34:66]).reshape(-1, 16, 16)
    magnitudes = grid("IQ2_S")[index].reshape(-1, 16, 16)
    values: Floats = scale[:, :, None] * magnitudes * signs
    return values.reshape(-1, 256)


IQ2_S = QuantType("IQ2_S", ggml_id=22, block_size=256, block_bytes=82, decode=decode)
