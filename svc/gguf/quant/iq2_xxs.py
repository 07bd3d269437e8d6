"""IQ2_XXS: 256 values in 8 groups of 32; eight magnitudes at a time come from a grid of 256 entries.

| bytes  | content                                                                                         |
|--------|-------------------------------------------------------------------------------------------------|
| 0..2   | d, half precision                                                                               |
| 2..66  | 8 bytes a group: four grid indices, then a word with four 7-bit sign indices and a 4-bit scale  |

value = d * (scale + 1/2) / 4 * GRID[index] * sign, the eighth sign being the parity of the seven stored ones.
"""

import numpy as np

from svc.gguf.grids import grid
from svc.gguf.quant.bits import half, uint32
from svc.gguf.quant.quant_type import Bytes, Floats, QuantType
from svc.gguf.quant.signs import EVEN_PARITY, signs_of_bits

SIGN_SHIFTS = np.array([0, 7, 14, 21], np.uint32)


def decode(blocks: Bytes) -> Floats:
    groups = blocks[:, 2:].reshape(-1, 8, 8)
    words = uint32(groups[:, :, 4:].reshape(-1, 32))
    scale = half(blocks[:, :2]) * (np.float32(0.5) + (words >> 28).astype(np.float32)) * np.float32(0.25)
    signs = signs_of_bits(EVEN_PARITY[words[:, :, None] >> SIGN_SHIFTS & 127]).reshape(-1, 8, 32)
    magnitudes = grid("IQ2_XXS")[groups[:, :, :4]].reshape(-1, 8, 32)
    return (scale[:, :, None] * magnitudes * signs).reshape(-1, 256)


IQ2_XXS = QuantType("IQ2_XXS", ggml_id=16, block_size=256, block_bytes=66, decode=decode)
