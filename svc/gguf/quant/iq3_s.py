"""IQ3_S: 256 values in 8 groups of 32; four magnitudes at a time come from a grid of 512 entries.

| bytes    | content                                                                             |
|----------|-------------------------------------------------------------------------------------|
| 0..2     | d, half precision                                                                   |
| 2..66    | low eight bits of the 64 grid indices                                               |
| 66..74   | ninth bits of the grid indices, eight a byte, lowest first                          |
| 74..106  | signs, one bit a value                                                              |
| 106..110 | 8 scales of 4 bits, two a byte, low half first                                      |

value = d * (2 * scale + 1) * GRID[index] * sign
"""

import numpy as np

from svc.gguf.grids import grid
from svc.gguf.quant.bits import half, in_order
from svc.gguf.quant.quant_type import Bytes, Floats, QuantType
from svc.gguf.quant.signs import signs_of_bits


def decode(blocks: Bytes) -> Floats:
    index = blocks[:, 2:66].astype(np.uint16) | in_order(blocks[:, 66:74], 1).astype(np.uint16) << 8
    scales = in_order(blocks[:, 106:], 4).astype(np.float32)
    scale = half(blocks[:, :2]) * (np.float32(1) + np.float32(2) * scales)
    signs = signs_of_bits(blocks[:, 74:106]).reshape(-1, 8, 32)
    magnitudes = grid("IQ3_S")[index].reshape(-1, 8, 32)
    values: Floats = scale[:, :, None] * magnitudes * signs
    return values.reshape(-1, 256)


IQ3_S = QuantType("IQ3_S", ggml_id=21, block_size=256, block_bytes=110, decode=decode)
