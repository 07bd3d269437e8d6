"""TQ2_0: 256 values -1, 0 or +1 (two bits each, so +2 can be stored too) under one scale.

| bytes   | content                                                                                 |
|---------|-----------------------------------------------------------------------------------------|
| 0..64   | q: two runs of 32 bytes; byte j of a run holds its values j, j + 32, j + 64, j + 96      |
| 64..66  | d, half precision                                                                       |

value = d * (q - 1)
"""

import numpy as np

from svc.gguf.quant.bits import half, planes
from svc.gguf.quant.quant_type import Bytes, Floats, QuantType


def decode(blocks: Bytes) -> Floats:
    q = planes(blocks[:, :64].reshape(-1, 2, 32), 2).reshape(-1, 256)
    return half(blocks[:, 64:]) * (q.astype(np.float32) - np.float32(1))


TQ2_0 = QuantType("TQ2_0", ggml_id=35, block_size=256, block_bytes=66, decode=decode)
