"""Q6_K: 256 values of 6 bits in 16 groups of 16, each group with a signed 8-bit scale.

| bytes    | content                                                                                              |
|----------|------------------------------------------------------------------------------------------------------|
| 0..128   | low four bits: two runs of 64 bytes; byte j of a run holds its values j (low half) and j + 64         |
| 128..192 | upper two bits: two runs of 32 bytes; byte j of a run holds its values j, j + 32, j + 64, j + 96      |
| 192..208 | scales: 16 signed bytes                                                                              |
| 208..210 | d, half precision                                                                                    |

value = d * scale * (q - 32)
"""

import numpy as np

from svc.gguf.quant.bits import half, planes
from svc.gguf.quant.quant_type import Bytes, Floats, QuantType


def decode(blocks: Bytes) -> Floats:
    low = planes(blocks[:, :128].reshape(-1, 2, 64), 4).reshape(-1, 256)
    upper = planes(blocks[:, 128:192].reshape(-1, 2, 32), 2).reshape(-1, 256)
    q = (low | upper << np.uint8(4)).astype(np.float32) - np.float32(32)
    scale = half(blocks[:, 208:]) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return (scale[:, :, None] * q.reshape(-1, 16, 16)).reshape(-1, 256)


Q6_K = QuantType("Q6_K", ggml_id=14, block_size=256, block_bytes=210, decode=decode)
