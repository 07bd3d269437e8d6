"""F16: IEEE half precision, one value a block."""

import numpy as np

from svc.gguf.quant.quant_type import Bytes, Floats, QuantType


def decode(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def encode(values: Floats) -> Bytes:
    """Rounds to nearest even; values beyond half precision become infinity."""
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype("<f2").view(np.uint8)


F16 = QuantType("F16", ggml_id=1, block_size=1, block_bytes=2, decode=decode, encode=encode)
