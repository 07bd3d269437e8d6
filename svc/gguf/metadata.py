"""Typed access to a model file's metadata, with messages that name the file and the key."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from svc.errors import ModelFileError
from svc.gguf.header import Value

Default = TypeVar("Default")
REQUIRED: Final[Any] = object()
"""As a getter's default: a missing key is a ModelFileError."""


class TypedMetadata:
    """Getters over `metadata` of the file at `path`.

    Each takes a key and a default; without a default a missing key is a ModelFileError. A value of the wrong type is always a
    ModelFileError, never the default.
    """

    def __init__(self, path: Path, metadata: Mapping[str, Value]) -> None:
        self.path = path
        self.metadata = metadata

    def get_int(self, key: str, default: int | Default = REQUIRED) -> int | Default:
        if key not in self.metadata:
            return self._default(key, default)
        value = self.metadata[key]
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise self._wrong_type(key, "an integer")

    def get_float(self, key: str, default: float | Default = REQUIRED) -> float | Default:
        """Integers count as numbers here."""
        if key not in self.metadata:
            return self._default(key, default)
        value = self.metadata[key]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        raise self._wrong_type(key, "a number")

    def get_bool(self, key: str, default: bool | Default = REQUIRED) -> bool | Default:
        if key not in self.metadata:
            return self._default(key, default)
        value = self.metadata[key]
        if isinstance(value, bool):
            return value
        raise self._wrong_type(key, "true or false")

    def get_str(self, key: str, default: str | Default = REQUIRED) -> str | Default:
        if key not in self.metadata:
            return self._default(key, default)
        value = self.metadata[key]
        if isinstance(value, str):
            return value
        raise self._wrong_type(key, "a string")

    def get_ints(self, key: str, default: list[int] | Default = REQUIRED, *, length: int | None = None) -> list[int] | Default:
        """An array of integers. With `length`, it must have that many entries; a single integer means that many equal ones."""
        if key not in self.metadata:
            return self._default(key, default)
        value = self.metadata[key]
        if length is not None and isinstance(value, int) and not isinstance(value, bool):
            return [value] * length
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
            raise self._wrong_type(key, "an array of integers")
        self._check_length(key, len(value), length)
        integers: list[int] = value.tolist()
        return integers

    def get_bools(self, key: str, default: list[bool] | Default = REQUIRED, *, length: int | None = None) -> list[bool] | Default:
        """An array of true and false. With `length`, it must have that many entries; a single value means that many equal ones."""
        if key not in self.metadata:
            return self._default(key, default)
        value = self.metadata[key]
        if length is not None and isinstance(value, bool):
            return [value] * length
        if not isinstance(value, np.ndarray) or value.dtype.kind != "b":
            raise self._wrong_type(key, "an array of true and false")
        self._check_length(key, len(value), length)
        flags: list[bool] = value.tolist()
        return flags

    def get_strs(self, key: str, default: list[str] | Default = REQUIRED) -> list[str] | Default:
        """An array of strings: the file object's own list, not a copy."""
        if key not in self.metadata:
            return self._default(key, default)
        value = self.metadata[key]
        if isinstance(value, list):
            return value
        raise self._wrong_type(key, "an array of strings")

    def _default(self, key: str, default: Default) -> Default:
        if default is REQUIRED:
            raise ModelFileError(f"{self.path}: the metadata key {key} is missing")
        return default

    def _wrong_type(self, key: str, expected: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: the metadata key {key} is {_kind(self.metadata[key])}, not {expected}")

    def _check_length(self, key: str, found: int, expected: int | None) -> None:
        if expected is not None and found != expected:
            raise ModelFileError(f"{self.path}: the metadata key {key} has {found} entries instead of {expected}")


def _kind(value: Value) -> str:
    if isinstance(value, bool):
        return "a truth value"
    if isinstance(value, np.ndarray):
        return "an array of numbers"
    return {int: "an integer", float: "a number with a fraction", str: "a string", list: "an array of strings"}[type(value)]
