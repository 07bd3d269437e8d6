"""Q4_K: 256 values of 4 bits in 8 groups of 32, each group with a 6-bit scale and a 6-bit minimum.

| bytes   | content                                                                                       |
|---------|-----------------------------------------------------------------------------------------------|
| 0..2    | d, half precision                                                                             |
| 2..4    | dmin, half precision                                                                          |
| 4..16   | scales and minima, see `scales_and_minima`                                                    |
| 16..144 | q: four runs of 32 bytes; a run's low halves are group 2 i, its high halves group 2 i + 1      |

value = d * scale * q - dmin * minimum
"""

import numpy as np

from svc.gguf.quant.bits import half, planes
from svc.gguf.quant.quant_type import Bytes, Floats, QuantType


def scales_and_minima(packed: Bytes) -> tuple[Floats, Floats]:
    """The 8 scales and 8 minima (each 0..63) of `(n, 12)` bytes, as two float32 `(n, 8)`.

    Bytes 0..3 hold scales 0..3 and bytes 4..7 minima 0..3 in their low six bits. Bytes 8..11 hold the low four bits of
    scale 4 + j (low half) and minimum 4 + j (high half); their upper two bits sit on top of bytes j and 4 + j.
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 0x3F, third & 0x0F | first >> 6 << 4], axis=1)
    minima = np.concatenate([second & 0x3F, third >> 4 | second >> 6 << 4], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def decode(blocks: Bytes) -> Floats:
    scales, minima = scales_and_minima(blocks[:, 4:16])
    scale = half(blocks[:, 0:2]) * scales
    minimum = half(blocks[:, 2:4]) * minima
    q = planes(blocks[:, 16:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32).astype(np.float32)
    return (scale[:, :, None] * q - minimum[:, :, None]).reshape(-1, 256)


Q4_K = QuantType("Q4_K", ggml_id=12, block_size=256, block_bytes=144, decode=decode)
