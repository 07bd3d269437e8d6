"""IQ2_XS: 256 values in 16 groups of 16; eight magnitudes at a time come from a grid of 512 entries.

| bytes  | content                                                                             |
|--------|-------------------------------------------------------------------------------------|
| 0..2   | d, half precision                                                                   |
| 2..66  | 32 words: 9-bit grid index, above it a 7-bit sign index                             |
| 66..74 | 16 scales of 4 bits, two a byte, low half first                                     |

value = d * (scale + 1/2) / 4 * GRID[index] * sign, the eighth sign being the parity of the seven stored ones.
"""

import numpy as np

from svc.gguf.grids import grid
from svc.gguf.quant.bits import half, in_order, uint16
from svc.gguf.quant.quant_type import Bytes, Floats, QuantType
from svc.gguf.quant.signs import EVEN_PARITY, signs_of_bits


def decode(blocks: Bytes) -> Floats:
    words = uint16(blocks[:, 2:66])
    scales = in_order(blocks[:, 66:], 4).astype(np.float32)
    scale = half(blocks[:, :2]) * (np.float32(0.5) + scales) * np.float32(0.25)
    signs = signs_of_bits(EVEN_PARITY[words >> 9]).reshape(-1, 16, 16)
    magnitudes = grid("IQ2_XS")[words & 511].reshape(-1, 16, 16)
    values: Floats = scale[:, :, None] * magnitudes * signs
    return values.reshape(-1, 256)


IQ2_XS = QuantType("IQ2_XS", ggml_id=17, block_size=256, block_bytes=74, decode=decode)
