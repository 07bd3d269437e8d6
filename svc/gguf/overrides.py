"""Metadata overrides of the operator: `--override-kv KEY=TYPE:VALUE`, llama.cpp's form."""

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from svc.errors import ConfigError
from svc.gguf.header import Scalar, Value, shown

FORM = re.compile(r"([^=]+)=([^:]*):(.*)", re.DOTALL)
INTEGER = re.compile(r"[+-]?\d{1,19}", re.ASCII)
TYPES = ("int", "float", "bool", "str")
# These keys decide how the file is parsed, which happens before any override.
LAYOUT_KEYS = ("general.alignment", "split.no", "split.count", "split.tensors.count")
REPLACES = {
    "an integer": ("an integer", "a float", "an array of integers", "an array of floats"),
    "a float": ("a float", "an array of floats"),
    "a bool": ("a bool", "an array of bools"),
    "a string": ("a string",),
}


def parse_overrides(texts: Iterable[str]) -> dict[str, Scalar]:
    """Keys and values of texts such as "qwen35.context_length=int:8192"; ConfigError quoting a malformed text.

    The last of several texts with the same key counts.
    """
    return dict(map(parse_override, texts))


def parse_override(text: str) -> tuple[str, Scalar]:
    match = FORM.fullmatch(text)
    if match is None:
        raise ConfigError(f"override_kv: {shown(text)!r} is not of the form KEY=TYPE:VALUE, as in qwen35.context_length=int:8192")
    key, kind, value = match.groups()
    if kind not in TYPES:
        raise ConfigError(f"override_kv: {shown(text)!r} has the unknown type {shown(kind)!r}; types are {', '.join(TYPES)}")
    if key in LAYOUT_KEYS:
        raise ConfigError(f"override_kv: {key} says how the file is laid out and cannot be overridden")
    parsed = _parse(kind, value)
    if parsed is None:
        expected = {"int": "a whole number of 64 bits", "float": "a finite number", "bool": "true or false"}[kind]
        raise ConfigError(f"override_kv: the value of {shown(key)} must be {expected}, not {shown(value)!r}")
    return key, parsed


def overridden(path: Path, metadata: Mapping[str, Value], overrides: Mapping[str, Scalar]) -> dict[str, Value]:
    """The metadata with the overrides applied. ConfigError if a key of the file at `path` has a value of another kind.

    A key that the file does not have is added. A single number replaces a whole array of such numbers.
    """
    for key, value in overrides.items():
        if key in metadata and _kind(metadata[key]) not in REPLACES[_kind(value)]:
            raise ConfigError(f"override_kv: {shown(key)} is {_kind(metadata[key])} in {path}, which {_kind(value)} cannot replace")
    return {**metadata, **overrides}


def _parse(kind: str, value: str) -> Scalar | None:
    if kind == "str":
        return value
    if kind == "bool":
        return {"true": True, "false": False}.get(value)
    if kind == "int":
        number = int(value) if INTEGER.fullmatch(value) else None
        return number if number is not None and -(1 << 63) <= number < 1 << 63 else None
    try:
        with np.errstate(over="ignore"):
            single = float(np.float32(float(value)))  # as a file would store it
    except ValueError:
        return None
    return single if math.isfinite(single) else None


def _kind(value: Value) -> str:
    if isinstance(value, np.ndarray):
        return {"b": "an array of bools", "f": "an array of floats"}.get(value.dtype.kind, "an array of integers")
    return {bool: "a bool", int: "an integer", float: "a float", str: "a string", list: "an array of strings"}[type(value)]
