"""The device layer: all that the CUDA backend asks of a GPU, in one small contract with two implementations.

`CupyDevice` (cupy_device.py) is a real GPU. `EmulatedDevice` (tests/cuda_emulator) runs the same kernels on the CPU, so that code
written against this file is tested without a GPU. Launchers, graphs and the backend see nothing else.

Order of work. Every call that takes a `stream` (None: `Device.main`) is queued on it and may not have happened on return;
`to_host`, `copy_in` and `from_host` are complete for the host on return. Only events order streams among each other. Arrays and
pinned memory must not be dropped, or reused on another stream or by the host, before the work on them is done.

Our mistakes (a wrong type, an oversized launch, an allocation while capturing) are TypeError, ValueError or DeviceStateError. A
fault of a running kernel is DeviceFaultError.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from svc.compute.cuda.signature import Signature

Dim = tuple[int, ...]  # one to three sizes, x first
Defines = Mapping[str, int | str]


def module_text(source: str, defines: Defines) -> str:
    """For `Device.on_compile`: "gemv QUANT=Q4_K"."""
    return " ".join([source, *(f"{name}={value}" for name, value in defines.items())])


class DeviceFaultError(RuntimeError):
    """A kernel failed: an illegal address, a deadlock, a time-out. On a real GPU the device is lost to this process."""


class DeviceStateError(RuntimeError):
    """The state of the device forbids the call: allocating or reading back while a graph is captured."""


class DeviceArray:
    """A C-contiguous array in device memory. Deliberately not a numpy array: `Device.to_host` reads it, and nothing converts it by
    accident.

    `owner` keeps the memory alive; views share it. bfloat16 is `uint16` here and quantized blocks are `uint8`.
    """

    __slots__ = ("__weakref__", "dtype", "owner", "pointer", "shape")

    def __init__(self, pointer: int, shape: Sequence[int], dtype: DTypeLike, owner: object) -> None:
        self.pointer = pointer
        self.shape = tuple(int(size) for size in shape)
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.owner = owner

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def view(self, shape: Sequence[int], dtype: DTypeLike | None = None, *, offset_bytes: int = 0) -> "DeviceArray":
        """The same memory with another shape or type. ValueError if it exceeds this array or is not aligned to its elements."""
        array = DeviceArray(self.pointer + offset_bytes, shape, self.dtype if dtype is None else dtype, self.owner)
        if offset_bytes < 0 or offset_bytes + array.nbytes > self.nbytes:
            raise ValueError(f"a view {array.shape} {array.dtype} at byte {offset_bytes} does not lie inside {self!r}")
        if array.pointer % array.dtype.itemsize:
            raise ValueError(f"a view at byte {offset_bytes} of {self!r} is not aligned to {array.dtype}")
        return array

    def rows(self, start: int, stop: int) -> "DeviceArray":
        """[start, stop) of the first axis."""
        if not 0 <= start <= stop <= self.shape[0]:
            raise ValueError(f"rows {start} to {stop} do not lie inside {self!r}")
        row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        return DeviceArray(self.pointer + start * row_bytes, (stop - start, *self.shape[1:]), self.dtype, self.owner)

    def __getitem__(self, part: slice) -> "DeviceArray":
        """Rows `array[a:b]` of the first axis. No step and no single elements: those would be reads."""
        if not isinstance(part, slice) or part.step is not None:
            raise TypeError("a device array gives slices of its first axis only")
        return self.rows(*part.indices(self.shape[0])[:2])

    def __array__(self, *args: object, **kwargs: object) -> NDArray[Any]:
        raise TypeError("a device array was used as a host array; read it with Device.to_host")

    def __iter__(self) -> Any:
        raise TypeError("a device array cannot be iterated over on the host")

    def __bool__(self) -> bool:
        raise TypeError("the truth of a device array is not known on the host")

    def __repr__(self) -> str:
        return f"<DeviceArray {self.dtype} {list(self.shape)}>"


class Kernel(Protocol):
    """One entry of a module. `static_shared_bytes`: its shared memory of fixed size (0 if not known)."""

    @property
    def signature(self) -> Signature: ...

    @property
    def static_shared_bytes(self) -> int: ...


class Module(Protocol):
    """One compiled source."""

    def kernel(self, name: str) -> Kernel:
        """KeyError if the source declares no such `extern "C" __global__` function."""


class Stream(Protocol):
    """A queue of device work."""


class Event(Protocol):
    """A mark in a stream."""

    def record(self, stream: Stream | None = None) -> None:
        """Marks all work queued on the stream so far."""

    def wait(self, stream: Stream | None = None) -> None:
        """Later work on the stream waits for the mark; the host does not."""

    def done(self) -> bool:
        """Whether the marked work has finished. Never blocks. True before the first record."""

    def synchronize(self) -> None:
        """The host waits for the mark."""


class Graph(Protocol):
    """Captured work. Arrays, pointers and scalars are those of the capture; only the contents of arrays may change."""

    def launch(self, stream: Stream | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    free_bytes: int
    total_bytes: int


class Device(Protocol):
    """One GPU. Used from one thread at a time.

    `on_compile(source and defines)` is called before a module is compiled or found in the cache of compiled ones. `module` passes
    on its exceptions. None: no callback.
    """

    on_compile: Callable[[str], None] | None

    def use(self) -> None:
        """Makes this the GPU of the calling thread. Called once if another thread than the opening one goes on."""

    @property
    def name(self) -> str:
        """The driver's name for it."""

    @property
    def arch(self) -> int:
        """Compute capability in one number: 75, 80, ... 120."""

    @property
    def main(self) -> Stream:
        """The default stream. Not the null stream, so that it can be captured."""

    def memory(self) -> DeviceMemory: ...

    # -- memory -----------------------------------------------------------------------------------------------------------------
    def empty(self, shape: Sequence[int], dtype: DTypeLike) -> DeviceArray:
        """Uninitialised, aligned to 256 bytes."""

    def zeros(self, shape: Sequence[int], dtype: DTypeLike) -> DeviceArray: ...

    def from_host(self, values: NDArray[Any]) -> DeviceArray:
        """A new array with these values."""

    def pinned(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """Page-locked host memory, uninitialised: the only host memory for the `_async` copies. Different streams may use parts of
        it. MemoryError if the machine does not provide it."""

    def copy_in(self, target: DeviceArray, values: NDArray[Any], stream: Stream | None = None) -> None:
        """Host to device, same shape and dtype. `values` may be changed as soon as the call returns."""

    def copy_in_async(self, target: DeviceArray, pinned: NDArray[Any], stream: Stream | None = None) -> None:
        """The stream reads `pinned` later: do not change it before an event says that it has."""

    def to_host(self, array: DeviceArray, stream: Stream | None = None) -> NDArray[Any]:
        """Waits for the stream, then copies."""

    def to_host_async(self, pinned: NDArray[Any], array: DeviceArray, stream: Stream | None = None) -> None:
        """`pinned` holds the values once an event recorded after this call is done."""

    def copy(self, target: DeviceArray, source: DeviceArray, stream: Stream | None = None) -> None:
        """Device to device, the same number of bytes, no overlap."""

    def zero(self, target: DeviceArray, stream: Stream | None = None) -> None:
        """All bytes to zero."""

    # -- kernels ----------------------------------------------------------------------------------------------------------------
    def module(self, source: str, defines: Defines | None = None) -> Module:
        """`cuda_src/<source>.cu`, compiled once with -D for each of `defines` and kept for the life of the device."""

    def launch(
        self,
        kernel: Kernel,
        grid: Dim,
        block: Dim,
        args: Sequence[Any],
        shared_bytes: int = 0,
        stream: Stream | None = None,
    ) -> None:
        """Runs grid x block threads. `args` are checked against the declaration (signature.py): a DeviceArray or None per pointer,
        numbers otherwise. TypeError or ValueError name the kernel and the parameter. `shared_bytes` is checked against the
        architecture's limit."""

    # -- order ------------------------------------------------------------------------------------------------------------------
    def stream(self) -> Stream: ...

    def event(self) -> Event: ...

    def synchronize(self, stream: Stream | None = None) -> None:
        """The host waits for one stream, or for all if None."""

    def capture(self, record: Callable[[], object], stream: Stream | None = None) -> Graph:
        """Calls `record`, and records the work it queues on the stream instead of running it.

        Allowed inside: launch, copy, zero and the `_async` copies on that stream. Anything else is a DeviceStateError.
        """
