"""Q5_1: 32 values of 5 bits under one scale and one minimum, the fifth bits kept apart.

| bytes  | content                                                                        |
|--------|--------------------------------------------------------------------------------|
| 0..2   | d, half precision                                                              |
| 2..4   | m, half precision                                                              |
| 4..8   | fifth bit of value j is bit j of these four bytes                              |
| 8..24  | low four bits: byte j holds value j in its low and value j + 16 in its high half |

value = d * q + m
"""

from svc.gguf.quant.bits import half
from svc.gguf.quant.q5_0 import five_bits
from svc.gguf.quant.quant_type import Bytes, Floats, QuantType


def decode(blocks: Bytes) -> Floats:
    d, m = half(blocks[:, :2]), half(blocks[:, 2:4])
    return d * five_bits(blocks[:, 4:8], blocks[:, 8:]) + m


Q5_1 = QuantType("Q5_1", ggml_id=7, block_size=32, block_bytes=24, decode=decode)
