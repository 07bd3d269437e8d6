"""MXFP4 (OCP microscaling): 32 four-bit floats (E2M1) under one power of two (E8M0).

| bytes  | content                                                              |
|--------|----------------------------------------------------------------------|
| 0      | e, the scale is 2^(e - 127)                                          |
| 1..17  | q: byte j holds value j in its low and value j + 16 in its high half |

value = 2^(e - 127) * E2M1[q]. The table below holds the doubled numbers, all integers, so the scale is halved.
"""

import numpy as np

from svc.gguf.quant.bits import planes
from svc.gguf.quant.quant_type import Bytes, Floats, QuantType

# Sign, two exponent bits, one mantissa bit: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, doubled. Index 8 is +0 here.
DOUBLED_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def decode(blocks: Bytes) -> Floats:
    half_scale = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    q = planes(blocks[:, 1:], 4).reshape(-1, 32)
    return half_scale * DOUBLED_E2M1[q]


MXFP4 = QuantType("MXFP4", ggml_id=39, block_size=32, block_bytes=17, decode=decode)
