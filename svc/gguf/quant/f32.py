"""F32: IEEE single precision, one value a block."""

import numpy as np

from svc.gguf.quant.quant_type import Bytes, Floats, QuantType


def decode(blocks: Bytes) -> Floats:
    return blocks.view("<f4")


def encode(values: Floats) -> Bytes:
    return values.astype("<f4").view(np.uint8)


F32 = QuantType("F32", ggml_id=0, block_size=1, block_bytes=4, decode=decode, encode=encode)
