"""The backends that the tests in this folder run in. A new backend is one more line of BACKENDS."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.compute.cpu import CpuOps
from svc.compute.cpu.library import available_levels
from svc.compute.cuda.ops import CudaOps
from svc.compute.ops import Ops
from svc.compute.reference import ReferenceOps
from tests.cuda_emulator.build import have_compiler
from tests.kernels.cuda import EMULATED, GPU, OnDevice, activations, have_gpu
from tests.tolerances import KERNEL, KERNEL_CUDA


def _write(array: Any, values: NDArray[Any]) -> None:
    array[...] = values


def _as_they_are(values: NDArray[np.float64], weight_type: str) -> NDArray[np.float64]:
    return values


@dataclass(frozen=True)
class KernelBackend:
    """`state_order`: inner order of a recurrent state, "kv" (S[k][v]) or "vk". `read` and `write` move whole arrays of the backend.

    `tolerances`: absolute and relative, by GGUF type, for types whose products the backend rounds more coarsely than float32.
    """

    name: str
    make: Callable[[], Ops]
    state_order: str = "kv"
    read: Callable[[Any], NDArray[Any]] = np.asarray
    write: Callable[[Any, NDArray[Any]], None] = _write
    tolerances: Mapping[str, float] = field(default_factory=dict)
    float_tolerance: float = KERNEL
    # (values [..., K], weight type) -> the values as the backend rounds them before multiplying with such a weight.
    activations: Callable[[NDArray[np.float64], str], NDArray[np.float64]] = _as_they_are
    # An op costs a thousand times what it costs elsewhere: conftest.py leaves most variants to `make test-slow`.
    slow: bool = False

    def tolerance(self, weight_type: str) -> float:
        return self.tolerances.get(weight_type, self.float_tolerance)

    def __str__(self) -> str:
        return self.name


def _cuda(name: str, device: OnDevice, *, slow: bool) -> KernelBackend:
    parts = (device.ops, CudaOps.state_order, device.read, device.write)
    return KernelBackend(name, *parts, float_tolerance=KERNEL_CUDA, activations=activations, slow=slow)


CUDA = _cuda("cuda-emulated", EMULATED, slow=True)
BACKENDS = [
    KernelBackend("reference", ReferenceOps),
    *(
        KernelBackend(f"cpu-{level}", partial(CpuOps, 2, level=level, poison=True, least_shared_work=0))
        for level in available_levels()
    ),
    *([CUDA] if have_compiler() else []),
    *([_cuda("cuda", GPU, slow=False)] if have_gpu() else []),
]
