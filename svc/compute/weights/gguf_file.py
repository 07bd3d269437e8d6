"""A GGUF model file, mapped into memory: metadata as Python values, tensors as views of the file's bytes."""

import mmap
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from svc.compute.quant import QUANT_TYPES, QUANT_TYPES_BY_ID, QuantType
from svc.compute.weights.header import Header, TensorEntry, Value, read_header, shown
from svc.compute.weights.metadata import TypedMetadata
from svc.errors import ModelFileError


@dataclass(frozen=True, slots=True, eq=False)
class GgufTensor:
    """One tensor of a mapped file; nothing of it is in memory before it is touched.

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

    def float_view(self) -> NDArray[np.float32] | NDArray[np.float16]:
        """A read-only view of `shape` into the file, for F32 and F16 tensors only."""
        assert self.type in ("F32", "F16"), f"{self.name} is {self.type}, not F32 or F16"
        return self.data.view(np.float32) if self.type == "F32" else self.data.view(np.float16)

    def dequantize(self) -> NDArray[np.float32]:
        """All values as a new float32 array of `shape`. For some rows only: `quant.dequantize(data[rows])`."""
        return self.quant.dequantize(self.data)


class GgufFile(TypedMetadata):
    """An open model file.

    The file is mapped read-only and never copied whole. The map lives as long as this object or any array taken from
    it, so there is nothing to close. The file must not be cut short meanwhile: the system answers a read behind the new
    end with SIGBUS. (Replacing it by renaming another over it is safe.)

    `metadata` values are int, float, bool, str, a list of str, or a read-only numpy array of numbers.
    """

    def __init__(self, path: Path, header: Header, tensors: dict[str, GgufTensor], file_bytes: int) -> None:
        super().__init__(path, header.metadata)
        self.version = header.version
        self.tensors: Mapping[str, GgufTensor] = tensors
        self.file_bytes = file_bytes
        self.architecture = self.get_str("general.architecture")

    def __repr__(self) -> str:
        return f"<GgufFile {self.path} {self.architecture}, {len(self.tensors)} tensors, {self.file_bytes} bytes>"

    @classmethod
    def open(cls, path: str | Path) -> "GgufFile":
        """Map and parse the file. ModelFileError, one sentence naming the file and the culprit, if it cannot be used.

        A file without tensors (vocabulary only) is fine here.
        """
        path = Path(path)
        data = _map(path)
        header = read_header(path, data)
        _refuse_split(path, header.metadata)
        tensors: dict[str, GgufTensor] = {}
        for entry in header.entries:
            if entry.name in tensors:
                raise ModelFileError(f"{path}: the tensor {shown(entry.name)} occurs twice")
            tensors[entry.name] = _view(path, data, header, entry)
        return cls(path, header, tensors, file_bytes=len(data))


def _map(path: Path) -> mmap.mmap:
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ModelFileError(f"{path}: this is a directory, not a GGUF file")
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for a writer
            raise ModelFileError(f"{path}: this is not a regular file")
        if status.st_size == 0:
            raise ModelFileError(f"{path}: the file is empty")
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelFileError(f"{path}: there is no such file") from None
    except PermissionError:
        raise ModelFileError(f"{path}: no permission to read the file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path, or a file emptied just now
        raise ModelFileError(f"{path}: the file cannot be opened: {getattr(error, 'strerror', None) or error}") from None


def _refuse_split(path: Path, metadata: Mapping[str, Value]) -> None:
    count = metadata.get("split.count", 0)
    if isinstance(count, int) and count > 1:
        raise ModelFileError(f"{path}: this is one part of a model split into {count} files; merge them into one file first")


def _view(path: Path, data: mmap.mmap, header: Header, entry: TensorEntry) -> GgufTensor:
    name = shown(entry.name)
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
    start = header.data_start + entry.offset
    shape = (*entry.shape[:-1], kind.row_bytes(entry.shape[-1]))
    missing = start + prod(shape) - len(data)
    if missing > 0:
        raise ModelFileError(
            f"{path}: the file is truncated or damaged: the tensor {name} ends {missing} bytes behind the end of the file"
        )
    rows = np.frombuffer(data, np.uint8, prod(shape), start).reshape(shape)
    return GgufTensor(entry.name, entry.shape, kind.name, rows)


def _type_name(type_id: int) -> str:
    from gguf import GGMLQuantizationType  # names the types we do not decode; too slow to import for that alone

    known = {int(kind): kind.name for kind in GGMLQuantizationType}
    return f"{known[type_id]}" if type_id in known else f"number {type_id}"
