"""Loading: takes tensors from a file by name and shape and passes them to a backend."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from svc.errors import ModelFileError
from svc.gguf.gguf_file import GgufTensor
from svc.gguf.tensors import Shape, WeightSource

Progress = Callable[[int, int], None]  # (bytes done, bytes in all)
Weight = Any  # a matrix [rows, columns] or a stack of them [experts, rows, columns], in its file type, prepared for a backend
Vector = Any  # a small float32 array of a backend


class WeightStore(Protocol):
    """The part of a backend that takes weights."""

    copies_weights: bool  # `weight` reads the whole tensor; otherwise it may keep the mapped file

    def weight(self, tensor: GgufTensor, progress: Callable[[int], None] | None = None) -> Weight: ...

    def vector(self, values: NDArray[np.float32]) -> Vector: ...


class NoStore:
    """Keeps nothing: for loads that only look at the tensors."""

    copies_weights = False

    def weight(self, tensor: GgufTensor, progress: Callable[[int], None] | None = None) -> Weight:
        return None

    def vector(self, values: NDArray[np.float32]) -> Vector:
        return None


class WeightLoader:
    """One load of one file into one backend. Counts bytes for `progress`.

    With `read_in` the data is read from the disk during the load. Otherwise a backend that uses the mapped file leaves the
    reading to the first step.
    """

    def __init__(self, source: WeightSource, store: WeightStore, progress: Progress | None = None, read_in: bool = True) -> None:
        self.source = source
        self._store = store
        self._progress = progress
        self._read_in = read_in
        self._done_bytes = 0
        self._total_bytes = sum(tensor.nbytes for tensor in source.file.tensors.values())

    def matrix(self, name: str, *shape: int) -> Any:
        """A weight [rows, columns] or [experts, rows, columns]."""
        return self.prepare(self.source.take(name, shape))

    def vector(self, name: str, shape: Shape) -> Any:
        """A small float array of `shape`."""
        return self._small(self.source.take(name, shape), shape)

    def flat_vector(self, name: str, shape: Shape, alternative: Shape) -> Any:
        """A small float array that files store in one of two shapes, given in the first."""
        return self._small(self.source.take(name, [shape, alternative]), shape)

    def vectors(self, name: str, sizes: Sequence[int]) -> list[Any]:
        """Small float arrays of these sizes, concatenated in one tensor."""
        whole = self.numbers(name, (sum(sizes),))
        return [self._store.vector(part) for part in np.split(whole, np.cumsum(sizes)[:-1])]

    def numbers(self, name: str, shape: Shape) -> NDArray[np.float32]:
        """A small float array that stays in Python."""
        tensor = self.source.take(name, shape)
        self._count(tensor)
        return tensor.dequantize().reshape(shape)

    def prepare(self, tensor: GgufTensor) -> Any:
        """A weight from a tensor, or from a part of one, that was taken already."""
        if self._store.copies_weights:
            weight = self._store.weight(tensor, self._report)
            self._done_bytes += tensor.nbytes
            return weight
        self._count(tensor)
        return self._store.weight(tensor)

    def finish(self) -> None:
        """Reports all bytes as done, including tensors that are not used."""
        if self._progress:
            self._progress(self._total_bytes, self._total_bytes)

    def refuse(self, name: str, reason: str) -> ModelFileError:
        return ModelFileError(f"{self.source.file.path}: the tensor {name} {reason}")

    def _small(self, tensor: GgufTensor, shape: Shape) -> Any:
        self._count(tensor)
        return self._store.vector(tensor.dequantize().reshape(shape))

    def _count(self, tensor: GgufTensor) -> None:
        for done in tensor.read_in() if self._read_in else (tensor.nbytes,):
            self._report(done)
        self._done_bytes += tensor.nbytes

    def _report(self, done_bytes: int) -> None:
        """`done_bytes`: of the tensor under way."""
        if self._progress:
            self._progress(self._done_bytes + done_bytes, self._total_bytes)


def row_slice(tensor: GgufTensor, start: int, stop: int) -> GgufTensor:
    """Rows [start, stop) of a matrix, or of every matrix of a stack (which then is strided along its first axis). A view."""
    return _part(tensor, tensor.data[..., start:stop, :], f"{start}:{stop}")


def row_gather(tensor: GgufTensor, rows: NDArray[np.intp], part: str) -> GgufTensor:
    """The given rows of a matrix, in that order; `part` says in the name what they are. A copy, in the file's type."""
    return _part(tensor, tensor.data[rows], part)


def _part(tensor: GgufTensor, data: NDArray[np.uint8], part: str) -> GgufTensor:
    return GgufTensor(f"{tensor.name}[{part}]", (*data.shape[:-1], tensor.shape[-1]), tensor.type, data)
