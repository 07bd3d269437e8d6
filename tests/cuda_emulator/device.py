"""EmulatedDevice: the contract of svc/compute/cuda/device.py on the CPU, stricter than a GPU wherever that finds a mistake.

- Fresh memory and fresh shared memory are NaN; an allocation ends at a page that faults.
- `order` runs the threads of a block, and the blocks, forward, in reverse or at random. A kernel must not care.
- `build="checked"` watches every load and store (checks.cpp).
- `lazy=True`: a stream does nothing until somebody waits for it, and then only what that needs. A missing synchronisation reads
  NaN; an asynchronous copy reads its pinned memory as late as a GPU might.
"""

import ctypes
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from svc.compute.cuda.device import Defines, DeviceArray, DeviceFaultError, DeviceMemory, DeviceStateError, Dim, module_text
from svc.compute.cuda.launch_limits import STATIC_SHARED_BYTES, check_launch, full_dim
from svc.compute.cuda.signature import Signature, parse_signatures
from svc.compute.cuda.sources import load_source
from tests.cuda_emulator.build import Build, build_module
from tests.cuda_emulator.image import KernelImage, Order, Run, Stats
from tests.cuda_emulator.memory import GuardedMemory

Operation = Callable[[], object]


@dataclass(eq=False)
class EmulatedStream:
    """`queue[i]` is operation number `finished + i`."""

    name: str
    queue: list[Operation] = field(default_factory=list)
    finished: int = 0

    @property
    def queued(self) -> int:
        return self.finished + len(self.queue)

    def run_until(self, count: int) -> None:
        """Runs operations until `count` of them have finished, ever. A failed one is gone, as on a GPU."""
        while self.finished < count:
            operation = self.queue.pop(0)
            self.finished += 1
            operation()


class EmulatedEvent:
    def __init__(self, device: "EmulatedDevice") -> None:
        self._device = device
        self._mark: tuple[EmulatedStream, int] | None = None

    def record(self, stream: EmulatedStream | None = None) -> None:
        stream = stream or self._device.main
        self._device.refuse_while_capturing("recording an event")
        self._mark = (stream, stream.queued)

    def wait(self, stream: EmulatedStream | None = None) -> None:
        self._device.refuse_while_capturing("waiting for an event")
        if self._mark is not None:
            marked, count = self._mark
            self._device.enqueue(stream, lambda: marked.run_until(count))

    def done(self) -> bool:
        return self._mark is None or self._mark[0].finished >= self._mark[1]

    def synchronize(self) -> None:
        self._device.refuse_while_capturing("waiting for an event")
        if self._mark is not None:
            self._mark[0].run_until(self._mark[1])


class EmulatedGraph:
    def __init__(self, device: "EmulatedDevice", operations: list[Operation]) -> None:
        self._device, self.operations = device, operations

    def launch(self, stream: EmulatedStream | None = None) -> None:
        self._device.refuse_while_capturing("launching a graph")
        for operation in self.operations:
            self._device.enqueue(stream, operation)


@dataclass(frozen=True)
class EmulatedKernel:
    signature: Signature
    image: KernelImage

    @property
    def static_shared_bytes(self) -> int:
        return 0  # known of the whole module only; the compile test looks at each kernel


class EmulatedModule:
    def __init__(self, image: KernelImage, signatures: dict[str, Signature]) -> None:
        self.image, self.signatures = image, signatures

    def kernel(self, name: str) -> EmulatedKernel:
        return EmulatedKernel(self.signatures[name], self.image)


class EmulatedDevice:
    """`sources`: a folder of kernels instead of cuda_src, whose headers are found all the same. `seed` is for the random order."""

    name = "emulated on the CPU"

    def __init__(
        self,
        *,
        build: Build = "fast",
        order: Order = "forward",
        seed: int = 1,
        lazy: bool = False,
        arch: int = 90,
        total_bytes: int = 1 << 30,
        limit_s: float = 60.0,
        sources: Path | None = None,
    ) -> None:
        self.build, self.arch, self.lazy = build, arch, lazy
        self.run = Run(order, seed, limit_s)
        self.main = EmulatedStream("main")
        self.num_launches = 0
        self.on_compile: Callable[[str], None] | None = None
        self.last_stats: Stats | None = None
        self._sources = sources
        self._total_bytes = total_bytes
        self._used_bytes = 0
        self._streams = [self.main]
        self._modules: dict[tuple[str, tuple[tuple[str, int | str], ...]], EmulatedModule] = {}
        self._capture: tuple[EmulatedStream, list[Operation]] | None = None
        self._pinned: list[tuple[int, int, weakref.ref[Any]]] = []
        # Pinned memory that a stream has yet to read, and the number of the operation that will.
        self._reading: list[tuple[NDArray[Any], EmulatedStream, int]] = []

    def use(self) -> None:
        """All threads have the one CPU."""

    # -- memory -----------------------------------------------------------------------------------------------------------------
    def memory(self) -> DeviceMemory:
        return DeviceMemory(self._total_bytes - self._used_bytes, self._total_bytes)

    def empty(self, shape: Sequence[int], dtype: DTypeLike) -> DeviceArray:
        self.refuse_while_capturing("allocating")
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if nbytes > self.memory().free_bytes:
            raise MemoryError(f"{nbytes} bytes wanted, {self.memory().free_bytes} of the emulated device are free")
        memory = GuardedMemory(nbytes)
        self._used_bytes += nbytes
        weakref.finalize(memory, self._release, nbytes).atexit = False
        return DeviceArray(memory.address, shape, dtype, memory)

    def zeros(self, shape: Sequence[int], dtype: DTypeLike) -> DeviceArray:
        array = self.empty(shape, dtype)
        self.zero(array)
        self.main.run_until(self.main.queued)
        return array

    def from_host(self, values: NDArray[Any]) -> DeviceArray:
        array = self.empty(values.shape, values.dtype)
        _write(array, np.ascontiguousarray(values))
        return array

    def pinned(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        self.refuse_while_capturing("allocating")
        memory = GuardedMemory(int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize)
        self._pinned = [entry for entry in self._pinned if entry[2]() is not None]
        self._pinned.append((memory.address, memory.address + memory.nbytes, weakref.ref(memory)))
        return memory.bytes().view(dtype).reshape(shape)

    def copy_in(self, target: DeviceArray, values: NDArray[Any], stream: EmulatedStream | None = None) -> None:
        self.refuse_while_capturing("copying from memory that is not pinned")
        _same(target, values)
        values = np.array(values, order="C")  # the caller may change its own
        self.enqueue(stream, lambda: _write(target, values))

    def copy_in_async(self, target: DeviceArray, pinned: NDArray[Any], stream: EmulatedStream | None = None) -> None:
        self._check_pinned(pinned)
        _same(target, pinned)
        self.enqueue(stream, lambda: _write(target, pinned))
        if self._capture is None:
            stream = stream or self.main
            self._reading = [entry for entry in self._reading if entry[1].finished < entry[2]]
            self._reading.append((pinned, stream, stream.queued))

    def to_host(self, array: DeviceArray, stream: EmulatedStream | None = None) -> NDArray[Any]:
        self.refuse_while_capturing("reading back")
        self.synchronize(stream or self.main)
        values: NDArray[Any] = np.empty(array.shape, array.dtype)
        ctypes.memmove(values.ctypes.data, array.pointer, array.nbytes)
        return values

    def to_host_async(self, pinned: NDArray[Any], array: DeviceArray, stream: EmulatedStream | None = None) -> None:
        self._check_pinned(pinned)
        _same(array, pinned)
        if self.lazy and self._capture is None and not self._is_being_read(pinned):
            ctypes.memset(pinned.ctypes.data, 0xFF, pinned.nbytes)  # whoever reads it too early sees NaN, not an older result
        self.enqueue(stream, lambda: ctypes.memmove(pinned.ctypes.data, array.pointer, array.nbytes))

    def copy(self, target: DeviceArray, source: DeviceArray, stream: EmulatedStream | None = None) -> None:
        if target.nbytes != source.nbytes:
            raise ValueError(f"{source!r} does not fit {target!r}")
        if abs(target.pointer - source.pointer) < target.nbytes:
            raise ValueError(f"{source!r} and {target!r} overlap")
        self.enqueue(stream, lambda: ctypes.memmove(target.pointer, source.pointer, source.nbytes))

    def zero(self, target: DeviceArray, stream: EmulatedStream | None = None) -> None:
        self.enqueue(stream, lambda: ctypes.memset(target.pointer, 0, target.nbytes))

    # -- kernels ----------------------------------------------------------------------------------------------------------------
    def module(self, source: str, defines: Defines | None = None) -> EmulatedModule:
        defines = dict(defines or {})
        key = (source, tuple(sorted(defines.items())))
        if key not in self._modules:
            self.refuse_while_capturing("compiling")
            if self.on_compile:
                self.on_compile(module_text(source, defines))
            loaded = load_source(source, self._sources)
            signatures = parse_signatures(loaded.text, defines)
            path = build_module(loaded, signatures.values(), defines, self.arch, self.build)
            self._modules[key] = EmulatedModule(KernelImage(path, self.build, signatures), signatures)
        return self._modules[key]

    def launch(
        self,
        kernel: EmulatedKernel,
        grid: Dim,
        block: Dim,
        args: Sequence[Any],
        shared_bytes: int = 0,
        stream: EmulatedStream | None = None,
    ) -> None:
        signature, image = kernel.signature, kernel.image
        values = signature.convert(args)
        grid, block = full_dim(grid), full_dim(block)
        check_launch(signature, self.arch, grid, block, shared_bytes)
        if math.prod(block) > (most := image.max_threads(signature.kernel)):
            raise ValueError(f"{signature.kernel}: {math.prod(block)} threads a block, {most} allowed")
        if self.build == "fast" and image.static_shared_bytes > STATIC_SHARED_BYTES * len(image.signatures):
            raise ValueError(f"{signature.kernel}: {image.static_shared_bytes} bytes of fixed shared memory")
        self.num_launches += 1
        self.enqueue(stream, lambda: self._execute(kernel, grid, block, values, shared_bytes))

    def _execute(
        self, kernel: EmulatedKernel, grid: tuple[int, int, int], block: tuple[int, int, int], args: list[Any], shared_bytes: int
    ) -> None:
        values, ranges, written = [], [], []
        for parameter, arg in zip(kernel.signature.parameters, args, strict=True):
            if not parameter.pointer:
                values.append(arg)
                continue
            values.append(np.uint64(0 if arg is None else arg.pointer))
            if arg is not None:
                ranges.append((arg.pointer, arg.pointer + arg.nbytes, not parameter.const))
                written.append((parameter, arg.owner))
        self.last_stats = kernel.image.launch(kernel.signature.kernel, grid, block, values, ranges, shared_bytes, self.run)
        for parameter, memory in written:
            if not memory.intact():
                raise DeviceFaultError(f"{kernel.signature.kernel}: wrote behind the end of {parameter}")

    # -- order ------------------------------------------------------------------------------------------------------------------
    def stream(self) -> EmulatedStream:
        self._streams.append(EmulatedStream(f"stream {len(self._streams)}"))
        return self._streams[-1]

    def event(self) -> EmulatedEvent:
        return EmulatedEvent(self)

    def synchronize(self, stream: EmulatedStream | None = None) -> None:
        self.refuse_while_capturing("synchronising")
        for one in [stream] if stream else self._streams:
            one.run_until(one.queued)

    def capture(self, record: Callable[[], object], stream: EmulatedStream | None = None) -> EmulatedGraph:
        self.refuse_while_capturing("capturing")
        self._capture = (stream or self.main, [])
        try:
            record()
            return EmulatedGraph(self, self._capture[1])
        finally:
            self._capture = None

    def enqueue(self, stream: EmulatedStream | None, operation: Operation) -> None:
        """For this device and its events: everything that happens in a stream comes through here."""
        stream = stream or self.main
        if self._capture is not None:
            if stream is not self._capture[0]:
                raise DeviceStateError("work on another stream than the one being captured")
            self._capture[1].append(operation)
            return
        stream.queue.append(operation)
        if not self.lazy:
            stream.run_until(stream.queued)

    def refuse_while_capturing(self, what: str) -> None:
        if self._capture is not None:
            raise DeviceStateError(f"{what} is not possible while a graph is captured")

    def _release(self, nbytes: int) -> None:
        self._used_bytes -= nbytes

    def _check_pinned(self, array: NDArray[Any]) -> None:
        start, end = array.ctypes.data, array.ctypes.data + array.nbytes
        if not array.flags.c_contiguous or not any(low <= start and end <= high and ref() for low, high, ref in self._pinned):
            raise ValueError("an asynchronous copy needs a contiguous array of Device.pinned")

    def _is_being_read(self, pinned: NDArray[Any]) -> bool:
        return any(stream.finished < number and np.may_share_memory(values, pinned) for values, stream, number in self._reading)


def _same(array: DeviceArray, values: NDArray[Any]) -> None:
    if array.shape != values.shape or array.dtype != values.dtype:
        raise ValueError(f"{values.dtype} {list(values.shape)} does not fit {array!r}")


def _write(target: DeviceArray, values: NDArray[Any]) -> None:
    ctypes.memmove(target.pointer, values.ctypes.data, values.nbytes)
