"""Q5_K: 256 values of 5 bits in 8 groups of 32, each group with a 6-bit scale and a 6-bit minimum.

| bytes   | content                                                                                             |
|---------|-----------------------------------------------------------------------------------------------------|
| 0..2    | d, half precision                                                                                   |
| 2..4    | dmin, half precision                                                                                |
| 4..16   | scales and minima, as in Q4_K                                                                       |
| 16..48  | fifth bits: bit i of byte j belongs to value j of group i                                           |
| 48..176 | low four bits: four runs of 32 bytes; a run's low halves are group 2 i, its high halves group 2 i + 1 |

value = d * scale * q - dmin * minimum
"""

import numpy as np

from svc.gguf.quant.bits import half, planes
from svc.gguf.quant.q4_k import scales_and_minima
from svc.gguf.quant.quant_type import Bytes, Floats, QuantType


def decode(blocks: Bytes) -> Floats:
    scales, minima = scales_and_minima(blocks[:, 4:16])
    scale = half(blocks[:, 0:2]) * scales
    minimum = half(blocks[:, 2:4]) * minima
    low = planes(blocks[:, 48:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    q = (low | planes(blocks[:, 16:48], 1) << np.uint8(4)).astype(np.float32)
    return (scale[:, :, None] * q - minimum[:, :, None]).reshape(-1, 256)


Q5_K = QuantType("Q5_K", ggml_id=13, block_size=256, block_bytes=176, decode=decode)
