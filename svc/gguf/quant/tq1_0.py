"""TQ1_0: 256 values -1, 0 or +1 under one scale, five of them in a byte as base-3 digits.

| bytes   | content                                                                    |
|---------|----------------------------------------------------------------------------|
| 0..32   | digit i of byte j is value 32 i + j (i < 5)                                |
| 32..48  | digit i of byte j is value 160 + 16 i + j (i < 5)                          |
| 48..52  | digit i of byte j is value 240 + 4 i + j (i < 4)                           |
| 52..54  | d, half precision                                                          |

A byte is the fraction 0.t0 t1 t2 t3 t4 in base 3, scaled to 256 and rounded up, so that digit i is the integer part of
3 * frac(byte * 3^i / 256). value = d * (digit - 1)
"""

import numpy as np

from svc.gguf.quant.bits import half
from svc.gguf.quant.quant_type import Bytes, Floats, QuantType

POWERS_OF_THREE = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]


def digits(packed: Bytes, count: int) -> Bytes:
    """The first `count` base-3 digits of bytes `(n, k)`, digit by digit: `(n, count * k)`."""
    fraction = packed[:, None, :] * POWERS_OF_THREE[:count]  # modulo 256 on purpose: drops the digits before
    digit = fraction.astype(np.uint16) * np.uint16(3) >> 8
    return digit.astype(np.uint8).reshape(len(packed), -1)


def decode(blocks: Bytes) -> Floats:
    parts = [digits(blocks[:, :32], 5), digits(blocks[:, 32:48], 5), digits(blocks[:, 48:52], 4)]
    q = np.concatenate(parts, axis=1).astype(np.float32) - np.float32(1)
    return half(blocks[:, 52:]) * q


TQ1_0 = QuantType("TQ1_0", ggml_id=34, block_size=256, block_bytes=54, decode=decode)
