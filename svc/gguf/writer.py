"""Writes small GGUF files, for tests and tools that need layouts which are not published."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, quants
from numpy.typing import NDArray

_NUMBER_TYPES = {
    "uint8": GGUFValueType.UINT8,
    "int8": GGUFValueType.INT8,
    "uint16": GGUFValueType.UINT16,
    "int16": GGUFValueType.INT16,
    "uint32": GGUFValueType.UINT32,
    "int32": GGUFValueType.INT32,
    "uint64": GGUFValueType.UINT64,
    "int64": GGUFValueType.INT64,
    "float32": GGUFValueType.FLOAT32,
    "float64": GGUFValueType.FLOAT64,
    "bool": GGUFValueType.BOOL,
}


def write_gguf(
    path: str | Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[NDArray[Any], str]],
    *,
    split_tensors: int = 0,
) -> None:
    """Write `metadata` and `tensors` to a new GGUF v3 file at `path`, in the order given.

    metadata: values are str, bool, int, float, a list or numpy array of one of these; a Python int becomes the smallest
    of uint32, int32, uint64, int64 that holds it, a float becomes float32, a numpy scalar keeps its type. It must have
    "general.architecture"; "general.alignment" is respected.
    tensors: name -> (values in numpy order, type name). Values are float32 and get quantized by `gguf.quants`, which
    writes F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, TQ1_0, TQ2_0 and MXFP4; for any other type pass packed rows as
    uint8 `(..., bytes per row)`.
    split_tensors: if given, the file becomes parts NAME-00001-of-0000N.gguf of that many tensors each (the last may have
    fewer); there must be more tensors than that.
    """
    writer = GGUFWriter(path, metadata["general.architecture"], split_max_tensors=split_tensors)
    for key, value in metadata.items():
        if key == "general.alignment":
            writer.add_custom_alignment(value)
        elif key != "general.architecture":  # the writer wrote it first
            _add(writer, key, value)
    for name, (values, type_name) in tensors.items():
        kind = GGMLQuantizationType[type_name]
        packed = values if values.dtype == np.uint8 else quants.quantize(np.ascontiguousarray(values, np.float32), kind)
        writer.add_tensor(name, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list | tuple | np.ndarray):
        items = value.tolist() if isinstance(value, np.ndarray) else list(value)
        element_type = _NUMBER_TYPES[value.dtype.name] if isinstance(value, np.ndarray) else _common_type(items)
        writer.add_key_value(key, items, GGUFValueType.ARRAY, sub_type=element_type)
    else:
        writer.add_key_value(key, value, _type_of(value))


def _common_type(items: list[Any]) -> GGUFValueType:
    """The type that holds all items of a list."""
    if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        return _integer_type(min(items, default=0), max(items, default=0))
    return _type_of(items[0])


def _type_of(value: Any) -> GGUFValueType:
    if isinstance(value, str):
        return GGUFValueType.STRING
    if isinstance(value, np.generic):
        return _NUMBER_TYPES[value.dtype.name]
    if isinstance(value, bool):
        return GGUFValueType.BOOL
    if isinstance(value, float):
        return GGUFValueType.FLOAT32
    return _integer_type(value, value)


def _integer_type(lowest: int, highest: int) -> GGUFValueType:
    if lowest >= 0:
        return GGUFValueType.UINT32 if highest < 1 << 32 else GGUFValueType.UINT64
    return GGUFValueType.INT32 if lowest >= -(1 << 31) and highest < 1 << 31 else GGUFValueType.INT64
