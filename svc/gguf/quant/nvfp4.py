"""NVFP4: 64 four-bit floats (E2M1) in 4 groups of 16, each group under an 8-bit float (E4M3 without its sign).

| bytes  | content                                                                                     |
|--------|---------------------------------------------------------------------------------------------|
| 0..4   | scale of each group                                                                         |
| 4..36  | q: 8 bytes a group; byte j holds the group's value j in its low and j + 8 in its high half   |

value = scale * E2M1[q]. Files of this type usually carry one more float per tensor (`....scale`), which multiplies the
product with the matrix.
"""

import numpy as np

from svc.gguf.quant.bits import planes
from svc.gguf.quant.mxfp4 import DOUBLED_E2M1
from svc.gguf.quant.quant_type import Bytes, Floats, QuantType


def half_e4m3() -> Floats:
    """Half of every E4M3 number 0..255, the sign bit ignored (the other half of the product is in DOUBLED_E2M1)."""
    code = np.arange(256, dtype=np.uint8)
    exponent = (code >> 3 & 15).astype(np.int32)
    mantissa = (code & 7).astype(np.float32)
    subnormal = np.ldexp(mantissa, -10)
    normal = np.ldexp(np.float32(8) + mantissa, exponent - 11)
    table = np.where(exponent == 0, subnormal, normal)
    table[0x7F] = 0  # NaN in E4M3; a scale of zero by convention
    return table


HALF_E4M3 = half_e4m3()


def decode(blocks: Bytes) -> Floats:
    half_scale = HALF_E4M3[blocks[:, :4]]
    q = planes(blocks[:, 4:].reshape(-1, 4, 8), 4).reshape(-1, 4, 16)
    return (half_scale[:, :, None] * DOUBLED_E2M1[q]).reshape(-1, 64)


NVFP4 = QuantType("NVFP4", ggml_id=40, block_size=64, block_bytes=36, decode=decode)
