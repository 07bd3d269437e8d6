"""A GGUF block type: the number of values in a block, its bytes, and how to decode it.

A quantized tensor is a row-major matrix whose rows are cut into blocks of `block_size` values, each packed into
`block_bytes` bytes on its own. The docstring of each type file in this folder describes those bytes, and the file ends with
one `QuantType` value. Bytes are little-endian everywhere.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from svc.errors import ModelFileError

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Decoding works on pieces, whose temporaries (several times their size) then stay in the CPU's cache.
VALUES_PER_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class QuantType:
    """One block type.

    `decode` maps blocks `(n, block_bytes)` uint8 to values `(n, block_size)` float32. `encode`, if there is one, is the
    other direction. Both get contiguous arrays and may return views of them.
    """

    name: str
    ggml_id: int
    block_size: int
    block_bytes: int
    decode: Callable[[Bytes], Floats]
    encode: Callable[[Floats], Bytes] | None = None

    def row_bytes(self, num_values: int) -> int:
        """Bytes of a row of `num_values` values; ModelFileError unless that is a whole number of blocks."""
        num_blocks, rest = divmod(num_values, self.block_size)
        if rest:
            raise ModelFileError(
                f"rows of {num_values} values cannot be stored as {self.name}, which packs {self.block_size} values a block"
            )
        return num_blocks * self.block_bytes

    def dequantize(self, blocks: Bytes) -> Floats:
        """Values `(..., num_blocks * block_size)` float32 (a new array) of packed rows `(..., num_blocks * block_bytes)`.

        Exact: the float32 operations of the format's definition, so every implementation gets the same bits. A file
        with damaged scales gives NaN or infinity here, without a warning.
        """
        *rows, row_bytes = blocks.shape
        num_blocks, rest = divmod(row_bytes, self.block_bytes)
        assert rest == 0, f"{row_bytes} bytes are not whole {self.name} blocks of {self.block_bytes}"
        packed = blocks.reshape(-1, self.block_bytes)
        values = np.empty((packed.shape[0], self.block_size), np.float32)
        step = VALUES_PER_PIECE // self.block_size
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, len(packed), step):
                piece = np.ascontiguousarray(packed[start : start + step])
                values[start : start + step] = self.decode(piece)
        return values.reshape(*rows, num_blocks * self.block_size)

    def quantize(self, values: Floats) -> Bytes:
        """Packed rows `(..., num_blocks * block_bytes)` uint8 of values `(..., num_blocks * block_size)` float32.

        Only F32, F16, BF16 and Q8_0 can be written; another type is a NotImplementedError.
        """
        if self.encode is None:
            raise NotImplementedError(f"{self.name} can be read but not written")
        *rows, num_values = values.shape
        row_bytes = self.row_bytes(num_values)
        blocks = np.ascontiguousarray(values, np.float32).reshape(-1, self.block_size)
        return self.encode(blocks).reshape(*rows, row_bytes)
