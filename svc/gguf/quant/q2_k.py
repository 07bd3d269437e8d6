"""Q2_K: 256 values of 2 bits in 16 groups of 16, each group with a 4-bit scale and a 4-bit minimum.

| bytes   | content                                                                                        |
|---------|------------------------------------------------------------------------------------------------|
| 0..16   | group g: scale in the low half, minimum in the high half of byte g                             |
| 16..80  | q: two runs of 32 bytes; byte j of a run holds that run's values j, j + 32, j + 64, j + 96      |
| 80..82  | d, half precision                                                                              |
| 82..84  | dmin, half precision                                                                           |

value = d * scale * q - dmin * minimum
"""

import numpy as np

from svc.gguf.quant.bits import half, planes
from svc.gguf.quant.quant_type import Bytes, Floats, QuantType


def decode(blocks: Bytes) -> Floats:
    groups = planes(blocks[:, :16], 4).astype(np.float32)
    scale = half(blocks[:, 80:82]) * groups[:, 0]
    minimum = half(blocks[:, 82:84]) * groups[:, 1]
    q = planes(blocks[:, 16:80].reshape(-1, 2, 32), 2).reshape(-1, 16, 16).astype(np.float32)
    return (scale[:, :, None] * q - minimum[:, :, None]).reshape(-1, 256)


Q2_K = QuantType("Q2_K", ggml_id=10, block_size=256, block_bytes=84, decode=decode)
