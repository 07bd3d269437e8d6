"""A GGUF model file, mapped into memory: metadata as Python values, tensors as views of the file's bytes."""

import math
import mmap
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from svc.errors import ModelFileError
from svc.gguf.header import Scalar, TensorEntry, Value, shown
from svc.gguf.metadata import TypedMetadata
from svc.gguf.overrides import overridden
from svc.gguf.parts import Part, entries, read_parts, stem
from svc.gguf.quant import QUANT_TYPES, QUANT_TYPES_BY_ID, QuantType

SHORT_ARRAY = 1024  # entries: a value for each layer, but not for each token
READ_BYTES = 4 << 20  # read between two calls of a progress function
TOUCH_BYTES = 4096  # at most a page of memory


@dataclass(frozen=True, slots=True, eq=False)
class GgufTensor:
    """One tensor of a mapped file; the system reads its data on first access.

    `shape` is in numpy order, (out, in) for a matrix: the reverse of ggml's `ne`. `type` is a name in QUANT_TYPES.
    `data` is a read-only view of its packed rows, uint8 `shape[:-1] + (bytes per row,)`.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    data: NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        """Size in the file, in bytes."""
        return self.data.nbytes

    @property
    def quant(self) -> QuantType:
        return QUANT_TYPES[self.type]

    def dequantize(self) -> NDArray[np.float32]:
        """All values as a new float32 array of `shape`. For some rows only: `quant.dequantize(data[rows])`."""
        return self.quant.dequantize(self.data)

    def read_in(self) -> Iterator[int]:
        """Makes the system read the data from the disk, in order, without copying it; yields the number of bytes done.

        Releases the GIL. Data that is in memory already takes a quarter of a second for ten gigabytes.
        """
        done = 0
        for piece in self.pieces(READ_BYTES):
            np.maximum(piece[::TOUCH_BYTES].max(), piece[-1])  # numpy releases the GIL for this many
            done += len(piece)
            yield done

    def pieces(self, most_bytes: int) -> Iterator[NDArray[np.uint8]]:
        """All bytes in order, as flat contiguous views of up to `most_bytes`; nothing is copied."""
        for part in [self.data] if self.data.flags.c_contiguous else self.data:  # a slice of each expert: each is contiguous
            flat = part.reshape(-1)
            for start in range(0, len(flat), most_bytes):
                yield flat[start : start + most_bytes]


class GgufFile(TypedMetadata):
    """An open model file, or all files of a split one.

    The files are mapped read-only and never copied whole. The maps live as long as this object or any array taken from
    it, so there is nothing to close. A file must not be truncated meanwhile: the system answers a read after the new
    end with SIGBUS. (Renaming another file over it is safe.)

    `path` is the file, or the first part of a split model; `paths` are all parts. `file_bytes` is their size together.
    `metadata` values are int, float, bool, str, a list of str, or a read-only numpy array of numbers.
    """

    def __init__(
        self,
        paths: tuple[Path, ...],
        version: int,
        metadata: Mapping[str, Value],
        tensors: dict[str, GgufTensor],
        maps: tuple[mmap.mmap, ...],
    ) -> None:
        super().__init__(paths[0], metadata)
        self.paths = paths
        self.version = version
        self.tensors: Mapping[str, GgufTensor] = tensors
        self.file_bytes = sum(map(len, maps))
        self._maps = maps
        self.architecture = self.get_str("general.architecture")

    def __repr__(self) -> str:
        return f"<GgufFile {self.path} {self.architecture}, {len(self.tensors)} tensors, {self.file_bytes} bytes>"

    def mapped_ranges(self) -> list[tuple[Path, int, int]]:
        """(path, address in memory, bytes) of each file's map."""
        arrays = [np.frombuffer(data, np.uint8) for data in self._maps]
        return [(path, array.ctypes.data, array.nbytes) for path, array in zip(self.paths, arrays, strict=True)]

    @property
    def num_parameters(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    def type_shares(self) -> dict[str, float]:
        """Each type's share of the tensors' bytes, largest first."""
        sizes: dict[str, int] = {}
        for tensor in self.tensors.values():
            sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.nbytes
        total = sum(sizes.values())
        return {kind: size / total for kind, size in sorted(sizes.items(), key=lambda item: -item[1])}

    @property
    def stem(self) -> str:
        """The model's name in the file name, without the number of a part."""
        return stem(self.path)

    @classmethod
    def open(cls, path: str | Path) -> "GgufFile":
        """Map and parse the file. ModelFileError, one sentence naming the file and the culprit, if it cannot be used.

        Any part of a split model opens all of it. A file without tensors (vocabulary only) is fine here.
        """
        parts = read_parts(Path(path))
        tensors = {entry.name: _view(part, entry) for part, entry in entries(parts)}
        header = parts[0].header
        paths = tuple(part.path for part in parts)
        return cls(paths, header.version, header.metadata, tensors, tuple(part.data for part in parts))

    def with_metadata(self, overrides: Mapping[str, Scalar]) -> "GgufFile":
        """The same file with other values for some keys; ConfigError for a value of a kind that its key cannot have."""
        metadata = overridden(self.path, self.metadata, overrides)
        return GgufFile(self.paths, self.version, metadata, dict(self.tensors), self._maps)

    def without_vocabulary(self) -> "GgufFile":
        """The same file for a server that runs: without the long arrays of its metadata, of which its tokenizer has its own.

        The memory of the header's pages goes back to the system, which reads them again if somebody looks.
        """
        short = {key: value for key, value in self.metadata.items() if isinstance(value, str) or not _is_long(value)}
        for (_, start, size), data in zip(self.mapped_ranges(), self._maps, strict=True):
            offsets = [tensor.data.ctypes.data - start for tensor in self.tensors.values()]
            header = min((offset for offset in offsets if 0 <= offset < size), default=0) // mmap.PAGESIZE * mmap.PAGESIZE
            if header and hasattr(mmap, "MADV_DONTNEED"):
                with suppress(OSError):
                    data.madvise(mmap.MADV_DONTNEED, 0, header)
        return GgufFile(self.paths, self.version, short, dict(self.tensors), self._maps)

    @contextmanager
    def being_read(self, whole: bool) -> Iterator[None]:
        """Tells the system that the file is about to be read: all of it in order (`whole`: it reads far ahead), or parts of it."""
        self._advise("MADV_SEQUENTIAL" if whole else "MADV_WILLNEED")
        try:
            yield
        finally:
            self._advise("MADV_NORMAL")

    def _advise(self, name: str) -> None:
        for data in self._maps if hasattr(mmap, name) else ():  # not every system has it
            with suppress(OSError):  # not every file system takes advice
                data.madvise(getattr(mmap, name))


def _is_long(value: Value) -> bool:
    return isinstance(value, Sized) and len(value) > SHORT_ARRAY


def _view(part: Part, entry: TensorEntry) -> GgufTensor:
    path, data, name = part.path, part.data, shown(entry.name)
    kind = QUANT_TYPES_BY_ID.get(entry.type_id)
    if kind is None:
        raise ModelFileError(f"{path}: the tensor {name} has the type {_type_name(entry.type_id)}, which is not supported")
    if entry.shape[-1] % kind.block_size:
        raise ModelFileError(
            f"{path}: the tensor {name} has rows of {entry.shape[-1]} values, "
            f"which {kind.name} with its blocks of {kind.block_size} cannot store"
        )
    if entry.offset % 8:
        raise ModelFileError(f"{path}: the tensor {name} begins at the unaligned offset {entry.offset}; the file is damaged")
    start = part.header.data_start + entry.offset
    shape = (*entry.shape[:-1], kind.row_bytes(entry.shape[-1]))
    missing = start + prod(shape) - len(data)
    if missing > 0:
        raise ModelFileError(
            f"{path}: the file is truncated or damaged: the tensor {name} ends {missing} bytes after the end of the file"
        )
    rows = np.frombuffer(data, np.uint8, prod(shape), start).reshape(shape)
    return GgufTensor(entry.name, entry.shape, kind.name, rows)


def _type_name(type_id: int) -> str:
    from gguf import GGMLQuantizationType  # has the names of types we do not decode; a slow import, for the error message only

    known = {int(kind): kind.name for kind in GGMLQuantizationType}
    return f"{known[type_id]}" if type_id in known else f"number {type_id}"
