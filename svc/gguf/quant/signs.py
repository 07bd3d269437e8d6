"""Signs of the IQ2 and IQ3 types: groups of eight values whose magnitudes come from a grid and whose signs are bits."""

import numpy as np

from svc.gguf.quant.bits import in_order
from svc.gguf.quant.quant_type import Bytes, Floats


def signs_of_bits(packed: Bytes) -> Floats:
    """-1 for a set bit and +1 for a clear one: bytes `(..., k)` give float32 `(..., 8 * k)`, lowest bit first."""
    return np.float32(1) - np.float32(2) * in_order(packed, 1).astype(np.float32)


def even_parity_bytes() -> Bytes:
    """Byte i of 128 is i with bit 7 set if needed to make the number of set bits even.

    The small types store seven signs of eight: their quantizer flips one value if the number of minuses is odd.
    """
    index = np.arange(128, dtype=np.uint8)
    parity = in_order(index[:, None], 1).sum(axis=1, dtype=np.uint8) & np.uint8(1)
    completed: Bytes = index | parity << np.uint8(7)
    return completed


EVEN_PARITY = even_parity_bytes()
