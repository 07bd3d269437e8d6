"""The front part of a GGUF file, byte by byte: metadata and the tensor directory.

    "GGUF" | version u32 | number of tensors u64 | number of keys u64
    keys:     name, type u32, value
    tensors:  name, number of dimensions u32, dimensions u64 (fastest first), type u32, offset u64
    padding to general.alignment, then the tensors' data; offsets count from here

Everything is little-endian; a string is its length (u64) and its UTF-8 bytes; an array is its element type (u32), its
length (u64) and its elements.

We have a parser of our own because the standard reader makes an array object for every string (half a minute for a vocabulary of
250k) and trusts every length it reads. This one reads nothing past the end of the file and allocates nothing for a count before
its bytes are there, so a truncated or hostile file costs one clear sentence.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.errors import ModelFileError

Scalar = int | float | bool | str
Value = Scalar | list[str] | NDArray[Any]

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
STRING, ARRAY, BOOL = 8, 9, 7
NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    BOOL: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
MAX_DIMENSIONS = 4
# Far above real values. In a file of 100 GB a wrong length can be huge and still be inside the file.
MAX_STRING_BYTES = 1 << 26
MAX_STRINGS = 1 << 24
DEFAULT_ALIGNMENT = 32
LEAST_KEY_BYTES = 8 + 4 + 1  # length of the name, type, a value of one byte
LEAST_TENSOR_BYTES = 8 + 4 + 4 + 8  # length of the name, number of dimensions, type, offset


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A line of the tensor directory. `shape` is in numpy order (rows first), `offset` counts from the data section."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """The header: everything before the data section, which starts at byte `data_start`."""

    version: int
    metadata: dict[str, Value]
    entries: list[TensorEntry]
    data_start: int


def shown(name: str) -> str:
    """A name from the file for a message: unprintable characters escaped, cut after 80 characters."""
    text = name if name.isprintable() else ascii(name)[1:-1]
    return text if len(text) <= 80 else text[:80] + "..."


def read_header(path: Path, data: mmap.mmap) -> Header:
    """Parse the header of the mapped file; ModelFileError naming the file and the key or tensor at fault."""
    cursor = _Cursor(path, data)
    version = _read_version(cursor)
    num_tensors, num_keys = cursor.count(LEAST_TENSOR_BYTES), cursor.count(LEAST_KEY_BYTES)
    metadata = _read_metadata(cursor, num_keys)
    entries = _read_entries(cursor, num_tensors)
    alignment = _alignment(path, metadata)
    return Header(version, metadata, entries, data_start=-(-cursor.position // alignment) * alignment)


class _Cursor:
    """A position in the mapped file that never passes its end. `inside` names the current part in messages."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.position = 0
        self.inside = "its header"

    def fail(self, problem: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {problem}")

    def truncated(self) -> ModelFileError:
        return self.fail(f"the file is truncated or damaged: it ends inside {self.inside}")

    def too_long(self) -> ModelFileError:
        return self.fail(f"{self.inside} contains a string of more than {MAX_STRING_BYTES} bytes; the file is damaged")

    def count(self, least_bytes: int) -> int:
        """A count of items with at least `least_bytes` each; refused if the rest of the file is too small for them."""
        number = self.u64()
        if number * least_bytes > self.size - self.position:
            raise self.truncated()
        return number

    def advance(self, num_bytes: int) -> int:
        """Step over `num_bytes` and return where they start."""
        start = self.position
        if num_bytes > self.size - start:
            raise self.truncated()
        self.position = start + num_bytes
        return start

    def u32(self) -> int:
        number: int = U32.unpack_from(self.data, self.advance(4))[0]
        return number

    def u64(self) -> int:
        number: int = U64.unpack_from(self.data, self.advance(8))[0]
        return number

    def raw_string(self) -> bytes:
        num_bytes = self.u64()
        start = self.advance(num_bytes)
        if num_bytes > MAX_STRING_BYTES:
            raise self.too_long()
        return self.data[start : start + num_bytes]

    def name(self) -> str:
        raw = self.raw_string()
        if not raw:
            raise self.fail(f"{self.inside} has no name; the file is damaged")
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.fail(f"the name of {self.inside} is not valid UTF-8; the file is damaged") from None

    def strings(self, count: int) -> list[str]:
        """The loop in which a large vocabulary spends its time, therefore without the methods above."""
        data, size, position, unpack = self.data, self.size, self.position, U64.unpack_from
        found: list[str] = []
        if count > MAX_STRINGS:
            raise self.fail(f"{self.inside} announces {count} strings; the file is damaged")
        try:
            while len(found) < count:
                start = position + 8
                if start > size:
                    raise self.truncated()
                position = start + unpack(data, position)[0]
                if position > size:
                    raise self.truncated()
                if position - start > MAX_STRING_BYTES:
                    raise self.too_long()
                found.append(data[start:position].decode())
        except UnicodeDecodeError:
            raise self.fail(f"entry {len(found)} of {self.inside} is not valid UTF-8; the file is damaged") from None
        self.position = position
        return found

    def numbers(self, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        """`count` numbers as a read-only view into the file."""
        start = self.advance(count * dtype.itemsize)
        if dtype.kind == "b":  # any byte but zero is true
            flags: NDArray[np.bool_] = np.frombuffer(self.data, np.uint8, count, start) != 0
            return flags
        return np.frombuffer(self.data, dtype, count, start)


def _read_version(cursor: _Cursor) -> int:
    if cursor.data[:4] != b"GGUF":
        raise cursor.fail("this is not a GGUF file (it does not begin with the letters GGUF)")
    cursor.advance(4)
    version = cursor.u32()
    if version & 0xFFFF == 0 and version != 0:
        raise cursor.fail("this is a big-endian GGUF file; only little-endian files can be read")
    if version not in (2, 3):
        raise cursor.fail(f"GGUF version {version} cannot be read; versions 2 and 3 can")
    return version


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for index in range(count):
        cursor.inside = f"metadata key number {index + 1} of {count}"
        key = cursor.name()
        cursor.inside = f"the metadata key {shown(key)}"
        if key in metadata:
            raise cursor.fail(f"the metadata key {shown(key)} occurs twice")
        metadata[key] = _read_value(cursor, cursor.u32())
    return metadata


def _read_value(cursor: _Cursor, type_id: int) -> Value:
    if type_id == STRING:
        # A description in some other encoding should not keep a model from being served.
        return cursor.raw_string().decode(errors="replace")
    if type_id == ARRAY:
        return _read_array(cursor)
    scalar: Scalar = cursor.numbers(_number_type(cursor, type_id), 1)[0].item()
    return scalar


def _read_array(cursor: _Cursor) -> Value:
    element_type = cursor.u32()
    if element_type == ARRAY:
        raise cursor.fail(f"{cursor.inside} is an array of arrays, which is not supported")
    if element_type == STRING:
        return cursor.strings(cursor.count(U64.size))
    dtype = _number_type(cursor, element_type)
    return cursor.numbers(dtype, cursor.count(dtype.itemsize))


def _number_type(cursor: _Cursor, type_id: int) -> np.dtype[Any]:
    if type_id not in NUMBERS:
        raise cursor.fail(f"{cursor.inside} has the unknown value type {type_id}; the file is damaged")
    return NUMBERS[type_id]


def _read_entries(cursor: _Cursor, count: int) -> list[TensorEntry]:
    entries: list[TensorEntry] = []
    for index in range(count):
        cursor.inside = f"the directory entry of tensor number {index + 1} of {count}"
        name = cursor.name()
        cursor.inside = f"the directory entry of the tensor {shown(name)}"
        num_dimensions = cursor.u32()
        if num_dimensions > MAX_DIMENSIONS:
            raise cursor.fail(f"the tensor {shown(name)} has {num_dimensions} dimensions; at most {MAX_DIMENSIONS} are possible")
        fastest_first = [cursor.u64() for _ in range(num_dimensions)]
        if 0 in fastest_first:
            raise cursor.fail(f"the tensor {shown(name)} has a dimension of zero")
        shape = tuple(reversed(fastest_first)) or (1,)
        entries.append(TensorEntry(name, shape, type_id=cursor.u32(), offset=cursor.u64()))
    return entries


def _alignment(path: Path, metadata: dict[str, Value]) -> int:
    """Bytes that tensors are aligned to: a power of two, of at least eight as the format demands."""
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 8 or alignment & (alignment - 1):
        raise ModelFileError(f"{path}: the metadata key general.alignment is not a power of two of at least 8")
    return alignment
