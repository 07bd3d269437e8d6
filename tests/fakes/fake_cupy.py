"""As much of CuPy as CupyDevice calls, with host memory for the device's. Kernels do not run: calls are noted.

It follows CuPy 14.2 by its documentation; what the real one does with these calls only a GPU can tell.
"""

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np


class CUDARuntimeError(RuntimeError):
    pass


class CUDADriverError(RuntimeError):
    pass


class Memory:
    def __init__(self, size: int) -> None:
        if size > 1 << 30:
            raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
        self._bytes = ctypes.create_string_buffer(size)
        self.ptr = ctypes.addressof(self._bytes)


class Stream:
    def __init__(self, *, non_blocking: bool) -> None:
        assert non_blocking
        self.ptr = id(self)
        self.log: list[Any] = []
        self.capturing = False

    def __enter__(self) -> None:
        Stream.current = self  # type: ignore[attr-defined]

    def __exit__(self, *error: object) -> None:
        Stream.current = None  # type: ignore[attr-defined]

    def synchronize(self) -> None:
        assert not self.capturing
        self.log.append("synchronize")

    def wait_event(self, event: "Event") -> None:
        self.log.append(("wait", event))

    def begin_capture(self) -> None:
        self.capturing = True

    def end_capture(self) -> "Graph":
        assert self.capturing
        self.capturing = False
        return Graph()


class Graph:
    def upload(self, stream: Stream) -> None:
        stream.log.append("upload")

    def launch(self, stream: Stream) -> None:
        stream.log.append(("graph", self))


class Event:
    def __init__(self, *, disable_timing: bool) -> None:
        self.done = False

    def record(self, stream: Stream) -> None:
        stream.log.append(("record", self))

    def synchronize(self) -> None:
        self.done = True


class RawKernel:
    shared_size_bytes = 1024

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: list[Any] = []
        self.max_dynamic_shared_size_bytes = 48 << 10

    def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int = 0) -> None:
        assert all(isinstance(arg, np.generic) for arg in args), "CuPy would guess the width of a Python number"
        self.calls.append((grid, block, args, shared_mem, Stream.current))  # type: ignore[attr-defined]


class RawModule:
    def __init__(self, code: str, options: tuple[str, ...]) -> None:
        self.code, self.options = code, options

    def compile(self) -> None:
        pass

    def get_function(self, name: str) -> RawKernel:
        return RawKernel(name)


def fake_cupy(*, driver: int = 13000, runtime: int = 13020, num_gpus: int = 1, arch: str = "90", nvrtc: bool = True) -> Any:
    """The module `cupy` of a machine like this."""

    def get_device_count() -> int:
        if not num_gpus:
            raise CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")
        return num_gpus

    def nvrtc_version() -> tuple[int, int]:
        if not nvrtc:
            raise RuntimeError("CuPy failed to load libnvrtc.so.13")
        return 13, 0

    def copy(to: int, source: int, size: int, kind: int, stream: int) -> None:
        ctypes.memmove(to, source, size)

    functions = {
        "driverGetVersion": lambda: driver,
        "runtimeGetVersion": lambda: runtime,
        "getDeviceCount": get_device_count,
        "getDeviceProperties": lambda index: {"name": b"Fake H200"},
        "memGetInfo": lambda: (1 << 29, 1 << 30),
        "memcpyAsync": copy,
        "memsetAsync": lambda pointer, value, size, stream: ctypes.memset(pointer, value, size),
        "deviceSynchronize": lambda: None,
    }
    cuda = SimpleNamespace(
        runtime=SimpleNamespace(CUDARuntimeError=CUDARuntimeError, **functions),
        driver=SimpleNamespace(CUDADriverError=CUDADriverError),
        nvrtc=SimpleNamespace(getVersion=nvrtc_version),
        Device=lambda index: SimpleNamespace(compute_capability=arch, use=lambda: None),
        Memory=Memory,
        PinnedMemory=ctypes.create_string_buffer,
        PinnedMemoryPointer=lambda memory, offset: memory,
        Stream=Stream,
        Event=Event,
    )
    return SimpleNamespace(cuda=cuda, RawModule=RawModule)
