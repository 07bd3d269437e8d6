"""IQ1_S: 256 values in 8 groups of 32; eight at a time come from a grid of 2048 entries of -1, 0, +1.

| bytes  | content                                                                                            |
|--------|----------------------------------------------------------------------------------------------------|
| 0..2   | d, half precision                                                                                  |
| 2..34  | low eight bits of the 32 grid indices                                                              |
| 34..50 | one word a group: upper three bits of its four indices (bits 0..11), a 3-bit scale, the shift's sign |

value = d * (2 * scale + 1) * (GRID[index] + shift), shift = -1/8 where the sign bit is set, else +1/8.
"""

import numpy as np

from svc.gguf.grids import grid
from svc.gguf.quant.bits import half, uint16
from svc.gguf.quant.quant_type import Bytes, Floats, QuantType

SHIFT = np.float32(0.125)
INDEX_SHIFTS = np.array([0, 3, 6, 9], np.uint16)


def decode(blocks: Bytes) -> Floats:
    words = uint16(blocks[:, 34:])
    scale = half(blocks[:, :2]) * (np.float32(1) + np.float32(2) * (words >> 12 & 7).astype(np.float32))
    shift = np.where(words >> 15 == 0, SHIFT, -SHIFT)
    upper = (words[:, :, None] >> INDEX_SHIFTS & 7).reshape(-1, 32)
    digits = grid("IQ1_S")[blocks[:, 2:34] | upper << 8].reshape(-1, 8, 32)
    values: Floats = scale[:, :, None] * (digits + shift[:, :, None])
    return values.reshape(-1, 256)


IQ1_S = QuantType("IQ1_S", ggml_id=19, block_size=256, block_bytes=50, decode=decode)
