"""Q3_K: 256 values of 3 bits in 16 groups of 16, each group with a 6-bit scale.

| bytes    | content                                                                                           |
|----------|---------------------------------------------------------------------------------------------------|
| 0..32    | third bits: bit i of byte j belongs to value 32 i + j                                             |
| 32..96   | low two bits: two runs of 32 bytes; byte j of a run holds its values j, j + 32, j + 64, j + 96     |
| 96..108  | scales, see `six_bit_scales`                                                                      |
| 108..110 | d, half precision                                                                                 |

value = d * (scale - 32) * (q - 4)
"""

import numpy as np

from svc.gguf.quant.bits import half, planes
from svc.gguf.quant.quant_type import Bytes, Floats, QuantType


def decode(blocks: Bytes) -> Floats:
    third = planes(blocks[:, :32], 1).reshape(-1, 256)
    low = planes(blocks[:, 32:96].reshape(-1, 2, 32), 2).reshape(-1, 256)
    q = (low | third << np.uint8(2)).astype(np.float32) - np.float32(4)
    scale = half(blocks[:, 108:]) * (six_bit_scales(blocks[:, 96:108]).astype(np.float32) - np.float32(32))
    values: Floats = scale[:, :, None] * q.reshape(-1, 16, 16)
    return values.reshape(-1, 256)


def six_bit_scales(packed: Bytes) -> Bytes:
    """The 16 numbers 0..63 of `(n, 12)` bytes, as `(n, 16)`.

    Byte j < 8 holds the low four bits of number j in its low half and of number j + 8 in its high half; byte 8 + j holds
    the upper two bits of the numbers j, j + 4, j + 8 and j + 12, lowest first.
    """
    low = planes(packed[:, :8], 4).reshape(-1, 16)
    upper = planes(packed[:, 8:], 2).reshape(-1, 16)
    return low | upper << np.uint8(4)


Q3_K = QuantType("Q3_K", ggml_id=11, block_size=256, block_bytes=110, decode=decode)
