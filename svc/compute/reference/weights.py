"""Weights of the reference: in their file type, dequantized exactly at each use.

Owner of the dequantized copies: `DequantCache`, one per ReferenceOps, with a byte limit.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from svc.compute.reference.math import Float32
from svc.gguf.gguf_file import GgufTensor
from svc.gguf.quant import QUANT_TYPES

TILE_ELEMENTS = 1 << 22  # a matrix too large for the cache is dequantized 16 MiB at a time


class DequantCache:
    """The budget for dequantized matrices that stay in memory."""

    def __init__(self, limit_bytes: int) -> None:
        self._left_bytes = limit_bytes

    def admits(self, num_bytes: int) -> bool:
        """Takes `num_bytes` from the budget for good; False if less is left."""
        if num_bytes > self._left_bytes:
            return False
        self._left_bytes -= num_bytes
        return True


class ReferenceWeight:
    """A matrix [rows, columns]; a stack of experts is a list of them."""

    def __init__(self, name: str, quant: str, data: NDArray[np.uint8], columns: int, cache: DequantCache) -> None:
        """`data`: uint8 [rows, bytes per row], blocks of GGUF type `quant`."""
        self.name = name
        self.rows = len(data)
        self.columns = columns
        self._quant = QUANT_TYPES[quant]
        self._data = data
        self._cache = cache
        self._matrix: Float32 | None = None

    def __repr__(self) -> str:
        return f"ReferenceWeight({self.name}, {self.rows} x {self.columns})"

    def dot(self, x: Float32) -> Float32:
        """[n, columns] -> [n, rows]: x times the transposed matrix."""
        out = np.empty((len(x), self.rows), np.float32)
        for start, tile in self._tiles():
            out[:, start : start + len(tile)] = x @ tile.T
        return out

    def gather(self, rows: NDArray[np.int32]) -> Float32:
        """[n] row numbers -> [n, columns]."""
        return self._dequantize(self._data[rows])

    def _tiles(self) -> Iterator[tuple[int, Float32]]:
        if self._matrix is None and self._cache.admits(4 * self.rows * self.columns):
            self._matrix = self._dequantize(self._data)
        if self._matrix is not None:
            yield 0, self._matrix
            return
        step = max(1, TILE_ELEMENTS // self.columns)
        for start in range(0, self.rows, step):
            yield start, self._dequantize(self._data[start : start + step])

    def _dequantize(self, data: NDArray[np.uint8]) -> Float32:
        return np.asarray(self._quant.dequantize(data), np.float32).reshape(len(data), self.columns)


def prepare(tensor: GgufTensor, cache: DequantCache) -> "ReferenceWeight | list[ReferenceWeight]":
    """A ReferenceWeight of a 2-D tensor, a list of them (one per expert) of a 3-D one."""
    columns = tensor.shape[-1]
    if len(tensor.shape) == 2:
        return ReferenceWeight(tensor.name, tensor.type, tensor.data, columns, cache)
    assert len(tensor.shape) == 3, f"{tensor.name} has shape {tensor.shape}"
    return [ReferenceWeight(f"{tensor.name}[{e}]", tensor.type, data, columns, cache) for e, data in enumerate(tensor.data)]
