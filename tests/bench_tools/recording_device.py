"""A Device without memory that runs nothing: it writes down which kernels would have been launched."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from svc.compute.cuda.device import DeviceArray, DeviceMemory


class _Module:
    def __init__(self, source: str) -> None:
        self._source = source

    def kernel(self, name: str) -> tuple[str, str]:
        return self._source, name


class RecordingDevice:
    """`launches`: (source, kernel) in order. Arrays have made-up addresses that never meet."""

    name, arch, main = "recording", 90, None

    def __init__(self) -> None:
        self.launches: list[tuple[str, str]] = []
        self._next = 1 << 20

    def memory(self) -> DeviceMemory:
        return DeviceMemory(0, 0)

    def empty(self, shape: Sequence[int], dtype: Any) -> DeviceArray:
        array = DeviceArray(self._next, shape, dtype, None)
        self._next += -(-array.nbytes // 256) * 256
        return array

    def zeros(self, shape: Sequence[int], dtype: Any) -> DeviceArray:
        return self.empty(shape, dtype)

    def from_host(self, values: Any) -> DeviceArray:
        return self.empty(values.shape, values.dtype)

    def pinned(self, shape: Sequence[int], dtype: Any) -> Any:
        return np.zeros(shape, dtype)

    def copy_in(self, target: DeviceArray, values: Any, stream: None = None) -> None: ...

    def copy_in_async(self, target: DeviceArray, pinned: Any, stream: None = None) -> None: ...

    def synchronize(self, stream: None = None) -> None: ...

    def event(self) -> SimpleNamespace:
        return SimpleNamespace(record=lambda stream=None: None, synchronize=lambda: None)

    def module(self, source: str, defines: Any = None) -> _Module:
        return _Module(source)

    def launch(self, kernel: Any, grid: Any, block: Any, args: Any, shared_bytes: int = 0, stream: None = None) -> None:
        assert all(size > 0 for size in (*grid, *block)), kernel
        self.launches.append(kernel)
