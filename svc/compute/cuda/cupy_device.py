"""CupyDevice: a real GPU, through CuPy. It implements the contract of device.py and nothing more, without CuPy's arrays.

CuPy is imported when a device is opened, so the package installs, and serves on the CPU, without it. Calls come from one thread at
a time, the one that called `use` last. CuPy keeps compiled kernels on disk (`CUPY_CACHE_DIR`), keyed by the text and options given
here; it always compiles with denormals flushed to zero.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from svc.compute.cuda.device import Defines, DeviceArray, DeviceFaultError, DeviceMemory, DeviceStateError, Dim, module_text
from svc.compute.cuda.launch_limits import OLDEST_ARCH, STATIC_SHARED_BYTES, check_launch, full_dim, shared_limit_bytes
from svc.compute.cuda.signature import Signature, parse_signatures
from svc.compute.cuda.sources import load_source
from svc.errors import BackendUnavailableError

TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3  # cudaMemcpyKind


def open_cupy_device(index: int = 0) -> "CupyDevice":
    """GPU number `index`. BackendUnavailableError says in one sentence what is missing and how to get it."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        raise BackendUnavailableError(
            f"the cuda device needs CuPy ({error}): pip install 'headrace[cuda]', or cupy-cuda12x for a driver of CUDA 12"
        ) from None
    runtime = cupy.cuda.runtime
    _check_driver(runtime.driverGetVersion(), runtime.runtimeGetVersion())
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise BackendUnavailableError(f"the NVIDIA driver finds no GPU: {error}") from None
    if not 0 <= index < count:
        raise BackendUnavailableError(f"there is no cuda:{index}: the driver shows {count} GPU(s), counted from 0")
    arch = int(cupy.cuda.Device(index).compute_capability)
    name = runtime.getDeviceProperties(index)["name"].decode()
    if arch < OLDEST_ARCH:
        raise BackendUnavailableError(f"cuda:{index} ({name}, sm_{arch}) is too old: sm_{OLDEST_ARCH} (Turing) or newer is needed")
    try:
        cupy.cuda.nvrtc.getVersion()
    except (ImportError, RuntimeError, OSError) as error:
        raise BackendUnavailableError(
            f"CuPy finds no CUDA compiler ({error}): pip install 'headrace[cuda]', or cupy-cuda12x[ctk] for a driver of CUDA 12"
        ) from None
    return CupyDevice(cupy, index, name, arch)


def _check_driver(driver: int, built_for: int) -> None:
    """Versions in CUDA's numbers: 13020 is 13.2. A driver runs code built for its own major version or an older one."""
    if not driver:
        raise BackendUnavailableError("the cuda device needs the NVIDIA driver, which is not loaded on this machine")
    if driver // 1000 < built_for // 1000:
        have, want = driver // 1000, built_for // 1000
        raise BackendUnavailableError(
            f"the installed CuPy is built for CUDA {want} and the driver is of CUDA {have}.{driver % 1000 // 10}:"
            f" replace cupy-cuda{want}x by cupy-cuda{have}x, or update the driver"
        )


class CupyStream:
    def __init__(self, raw: Any) -> None:
        self.raw = raw


class CupyEvent:
    def __init__(self, device: "CupyDevice", raw: Any) -> None:
        self._device, self._raw = device, raw

    def record(self, stream: CupyStream | None = None) -> None:
        self._device.refuse_while_capturing("recording an event")
        with self._device.faults():
            self._raw.record((stream or self._device.main).raw)

    def wait(self, stream: CupyStream | None = None) -> None:
        self._device.refuse_while_capturing("waiting for an event")
        with self._device.faults():
            (stream or self._device.main).raw.wait_event(self._raw)

    def done(self) -> bool:
        with self._device.faults():
            return bool(self._raw.done)

    def synchronize(self) -> None:
        self._device.refuse_while_capturing("waiting for an event")
        with self._device.faults():
            self._raw.synchronize()


class CupyGraph:
    """`kept`: the arrays of the captured work. The graph holds their addresses, and CuPy would not keep them alive."""

    def __init__(self, device: "CupyDevice", raw: Any, kept: list[object]) -> None:
        self._device, self._raw, self._kept = device, raw, kept

    def launch(self, stream: CupyStream | None = None) -> None:
        self._device.refuse_while_capturing("launching a graph")
        with self._device.faults():
            self._raw.launch((stream or self._device.main).raw)


class CupyKernel:
    def __init__(self, raw: Any, signature: Signature, shared_limit: int) -> None:
        self.raw, self.signature = raw, signature
        self.static_shared_bytes = int(raw.shared_size_bytes)
        if shared_limit > STATIC_SHARED_BYTES:  # opting in is free: a launch gets as much as it asks for
            raw.max_dynamic_shared_size_bytes = shared_limit - self.static_shared_bytes


class CupyModule:
    def __init__(self, raw: Any, signatures: dict[str, Signature], shared_limit: int) -> None:
        self._raw, self._signatures, self._shared_limit = raw, signatures, shared_limit
        self._kernels: dict[str, CupyKernel] = {}

    def kernel(self, name: str) -> CupyKernel:
        if name not in self._kernels:
            self._kernels[name] = CupyKernel(self._raw.get_function(name), self._signatures[name], self._shared_limit)
        return self._kernels[name]


class CupyDevice:
    """Made by `open_cupy_device`."""

    def __init__(self, cupy: Any, index: int, name: str, arch: int) -> None:
        self.name, self.arch = name, arch
        self.on_compile: Callable[[str], None] | None = None
        self._cupy, self._cuda, self._runtime = cupy, cupy.cuda, cupy.cuda.runtime
        self._faults = (self._runtime.CUDARuntimeError, self._cuda.driver.CUDADriverError)
        self._index = index
        self.use()
        self.main = self.stream()
        self._modules: dict[tuple[str, tuple[tuple[str, int | str], ...]], CupyModule] = {}
        self._capturing: CupyStream | None = None
        self._kept: list[object] = []  # by the graph that is being captured

    def use(self) -> None:
        with self.faults():
            self._cuda.Device(self._index).use()

    # -- memory -----------------------------------------------------------------------------------------------------------------
    def memory(self) -> DeviceMemory:
        with self.faults():
            return DeviceMemory(*self._runtime.memGetInfo())

    def empty(self, shape: Sequence[int], dtype: DTypeLike) -> DeviceArray:
        self.refuse_while_capturing("allocating")
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        try:
            memory = self._cuda.Memory(max(nbytes, 1))  # not from a pool: freed with the array
        except self._runtime.CUDARuntimeError as error:
            raise MemoryError(f"{nbytes} bytes needed on the GPU, {self.memory().free_bytes} are free: {error}") from None
        return DeviceArray(int(memory.ptr), shape, dtype, memory)

    def zeros(self, shape: Sequence[int], dtype: DTypeLike) -> DeviceArray:
        array = self.empty(shape, dtype)
        self.zero(array)
        self.synchronize(self.main)
        return array

    def from_host(self, values: NDArray[Any]) -> DeviceArray:
        array = self.empty(values.shape, values.dtype)
        self.copy_in(array, values)
        self.synchronize(self.main)
        return array

    def pinned(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        self.refuse_while_capturing("allocating")
        size = int(np.prod(shape, dtype=np.int64))
        nbytes = max(size, 1) * np.dtype(dtype).itemsize
        try:
            memory = self._cuda.PinnedMemory(nbytes)
        except self._runtime.CUDARuntimeError as error:
            raise MemoryError(f"{nbytes} bytes of pinned memory needed: {error}") from None
        pointer = self._cuda.PinnedMemoryPointer(memory, 0)  # the array keeps the pointer alive, and the pointer the memory
        values: NDArray[Any] = np.frombuffer(pointer, dtype, size).reshape(shape)
        return values

    def copy_in(self, target: DeviceArray, values: NDArray[Any], stream: CupyStream | None = None) -> None:
        self.refuse_while_capturing("copying from memory that is not pinned")
        # The driver has read all of a pageable source when the call returns.
        self._copy(target.pointer, _host_pointer(target, np.ascontiguousarray(values)), target.nbytes, TO_DEVICE, stream)

    def copy_in_async(self, target: DeviceArray, pinned: NDArray[Any], stream: CupyStream | None = None) -> None:
        self._keep(target, pinned)
        self._copy(target.pointer, _host_pointer(target, pinned), target.nbytes, TO_DEVICE, stream)

    def to_host(self, array: DeviceArray, stream: CupyStream | None = None) -> NDArray[Any]:
        self.refuse_while_capturing("reading back")
        values: NDArray[Any] = np.empty(array.shape, array.dtype)
        self._copy(values.ctypes.data, array.pointer, array.nbytes, TO_HOST, stream)
        self.synchronize(stream or self.main)
        return values

    def to_host_async(self, pinned: NDArray[Any], array: DeviceArray, stream: CupyStream | None = None) -> None:
        self._keep(array, pinned)
        self._copy(_host_pointer(array, pinned), array.pointer, array.nbytes, TO_HOST, stream)

    def copy(self, target: DeviceArray, source: DeviceArray, stream: CupyStream | None = None) -> None:
        if target.nbytes != source.nbytes:
            raise ValueError(f"{source!r} does not fit {target!r}")
        self._keep(target, source)
        self._copy(target.pointer, source.pointer, source.nbytes, ON_DEVICE, stream)

    def zero(self, target: DeviceArray, stream: CupyStream | None = None) -> None:
        self._keep(target)
        with self.faults():
            self._runtime.memsetAsync(target.pointer, 0, target.nbytes, self._raw(stream).ptr)

    def _copy(self, to: int, source: int, nbytes: int, kind: int, stream: CupyStream | None) -> None:
        with self.faults():
            self._runtime.memcpyAsync(to, source, nbytes, kind, self._raw(stream).ptr)

    # -- kernels ----------------------------------------------------------------------------------------------------------------
    def module(self, source: str, defines: Defines | None = None) -> CupyModule:
        defines = dict(defines or {})
        key = (source, tuple(sorted(defines.items())))
        if key not in self._modules:
            self.refuse_while_capturing("compiling")
            if self.on_compile:
                self.on_compile(module_text(source, defines))
            loaded = load_source(source)
            options = ["-std=c++17", *(f"-D{name}={value}" for name, value in defines.items())]
            options += [f"-I{folder}" for folder in _header_folders()]
            raw = self._cupy.RawModule(code=loaded.text, options=tuple(options))
            raw.compile()  # now, so that an error comes with its log
            self._modules[key] = CupyModule(raw, parse_signatures(loaded.text, defines), shared_limit_bytes(self.arch))
        return self._modules[key]

    def launch(
        self,
        kernel: CupyKernel,
        grid: Dim,
        block: Dim,
        args: Sequence[Any],
        shared_bytes: int = 0,
        stream: CupyStream | None = None,
    ) -> None:
        values = kernel.signature.convert(args)
        grid, block = full_dim(grid), full_dim(block)
        check_launch(kernel.signature, self.arch, grid, block, shared_bytes, kernel.static_shared_bytes)
        self._keep(*values)
        # Addresses as 64 bits. The scalars have their declared type already, and CuPy passes it on.
        plain = tuple(
            np.uint64(0 if value is None else value.pointer) if parameter.pointer else value
            for parameter, value in zip(kernel.signature.parameters, values, strict=True)
        )
        with self.faults(), self._raw(stream):
            kernel.raw(grid, block, plain, shared_mem=shared_bytes)

    # -- order ------------------------------------------------------------------------------------------------------------------
    def stream(self) -> CupyStream:
        with self.faults():
            return CupyStream(self._cuda.Stream(non_blocking=True))  # never waits for the null stream

    def event(self) -> CupyEvent:
        with self.faults():
            return CupyEvent(self, self._cuda.Event(disable_timing=True))

    def synchronize(self, stream: CupyStream | None = None) -> None:
        self.refuse_while_capturing("synchronising")
        with self.faults():
            if stream:
                stream.raw.synchronize()
            else:
                self._runtime.deviceSynchronize()

    def capture(self, record: Callable[[], object], stream: CupyStream | None = None) -> CupyGraph:
        self.refuse_while_capturing("capturing")
        self._kept = []
        self._capturing, raw_stream = stream or self.main, (stream or self.main).raw
        try:
            with self.faults():
                raw_stream.begin_capture()
            try:
                record()
            except BaseException:
                with self.faults():
                    raw_stream.end_capture()  # otherwise the stream stays in this mode
                raise
            with self.faults():
                graph = raw_stream.end_capture()
                graph.upload(raw_stream)  # otherwise the first launch would pay for it
        finally:
            self._capturing = None
            kept, self._kept = self._kept, []
        return CupyGraph(self, graph, kept)

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Turns errors of CUDA into the contract's DeviceFaultError."""
        try:
            yield
        except self._faults as error:
            raise DeviceFaultError(str(error)) from error

    def refuse_while_capturing(self, what: str) -> None:
        if self._capturing is not None:
            raise DeviceStateError(f"{what} is not possible while a graph is captured")

    def _keep(self, *values: Any) -> None:
        if self._capturing is not None:
            self._kept += values

    def _raw(self, stream: CupyStream | None) -> Any:
        stream = stream or self.main
        if self._capturing not in (None, stream):
            raise DeviceStateError("work on another stream than the one being captured")
        return stream.raw


def _host_pointer(array: DeviceArray, values: NDArray[Any]) -> int:
    if array.shape != values.shape or array.dtype != values.dtype:
        raise ValueError(f"{values.dtype} {list(values.shape)} does not fit {array!r}")
    if not values.flags.c_contiguous:
        raise ValueError("a copy needs a contiguous host array")
    return int(values.ctypes.data)


def _header_folders() -> list[Path]:
    """cuda_fp16.h from the wheel nvidia-cuda-runtime; without the wheel, CuPy searches an installed toolkit itself."""
    package = importlib.util.find_spec("nvidia")
    folders = package.submodule_search_locations if package else None
    return sorted({header.parent for folder in folders or () for header in Path(folder).glob("*/include/cuda_fp16.h")})
