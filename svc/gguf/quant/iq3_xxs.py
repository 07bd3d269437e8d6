"""IQ3_XXS: 256 values in 8 groups of 32; four magnitudes at a time come from a grid of 256 entries.

| bytes  | content                                                                             |
|--------|-------------------------------------------------------------------------------------|
| 0..2   | d, half precision                                                                   |
| 2..66  | 64 grid indices                                                                     |
| 66..98 | one word a group: four 7-bit sign indices (for 8 values each) and a 4-bit scale     |

value = d * (scale + 1/2) / 2 * GRID[index] * sign, each eighth sign being the parity of the seven stored ones.
"""

import numpy as np

from svc.gguf.grids import grid
from svc.gguf.quant.bits import half, uint32
from svc.gguf.quant.iq2_xxs import SIGN_SHIFTS
from svc.gguf.quant.quant_type import Bytes, Floats, QuantType
from svc.gguf.quant.signs import EVEN_PARITY, signs_of_bits


def decode(blocks: Bytes) -> Floats:
    words = uint32(blocks[:, 66:])
    scale = half(blocks[:, :2]) * (np.float32(0.5) + (words >> 28).astype(np.float32)) * np.float32(0.5)
    signs = signs_of_bits(EVEN_PARITY[words[:, :, None] >> SIGN_SHIFTS & 127]).reshape(-1, 8, 32)
    magnitudes = grid("IQ3_XXS")[blocks[:, 2:66]].reshape(-1, 8, 32)
    return (scale[:, :, None] * magnitudes * signs).reshape(-1, 256)


IQ3_XXS = QuantType("IQ3_XXS", ggml_id=18, block_size=256, block_bytes=98, decode=decode)
