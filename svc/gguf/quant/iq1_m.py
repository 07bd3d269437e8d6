"""IQ1_M: 256 values in 16 groups of 16; eight at a time come from the grid of IQ1_S.

| bytes  | content                                                                                            |
|--------|----------------------------------------------------------------------------------------------------|
| 0..32  | low eight bits of the 32 grid indices                                                              |
| 32..48 | half a byte an index, low half first: its upper three bits and the shift's sign                    |
| 48..56 | four words: each has four 3-bit scales and, in its top four bits, a quarter of d (lowest first)    |

value = d * (2 * scale + 1) * (GRID[index] + shift), shift = -1/8 where the sign bit is set, else +1/8. The only type
that keeps its half-precision scale in pieces.
"""

import numpy as np

from svc.gguf.grids import grid
from svc.gguf.quant.bits import in_order, uint16
from svc.gguf.quant.iq1_s import INDEX_SHIFTS, SHIFT
from svc.gguf.quant.quant_type import Bytes, Floats, QuantType


def decode(blocks: Bytes) -> Floats:
    words = uint16(blocks[:, 48:])
    quarters = words >> 12 << np.array([0, 4, 8, 12], np.uint16)
    d = np.bitwise_or.reduce(quarters, axis=1, keepdims=True).view(np.float16).astype(np.float32)
    scales = (words[:, :, None] >> INDEX_SHIFTS & 7).reshape(-1, 16)
    scale = d * (np.float32(1) + np.float32(2) * scales.astype(np.float32))
    upper = in_order(blocks[:, 32:48], 4).astype(np.uint16)
    shift = np.where(upper >> 3 == 0, SHIFT, -SHIFT)
    digits = grid("IQ1_S")[blocks[:, :32] | (upper & 7) << 8] + shift[:, :, None]
    values: Floats = scale[:, :, None] * digits.reshape(-1, 16, 16)
    return values.reshape(-1, 256)


IQ1_M = QuantType("IQ1_M", ggml_id=29, block_size=256, block_bytes=56, decode=decode)
