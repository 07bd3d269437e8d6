"""The CUDA backend on a device that runs its kernels on the CPU, and on a GPU where there is one."""

from collections.abc import Callable
from functools import cached_property
from importlib.util import find_spec
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from svc.compute.cuda.cupy_device import open_cupy_device
from svc.compute.cuda.device import Device, DeviceArray
from svc.compute.cuda.ops import CudaOps
from svc.errors import BackendUnavailableError
from tests.cuda_emulator.device import EmulatedDevice

FLOATS = ("F32", "F16", "BF16")


class OnDevice:
    """One device for all tests of a process, opened by the first: kernels are loaded once."""

    def __init__(self, open_device: Callable[[], Device]) -> None:
        self._open = open_device

    @cached_property
    def device(self) -> Device:
        return self._open()

    def ops(self) -> CudaOps:
        return CudaOps(self.device)

    def read(self, array: DeviceArray) -> NDArray[Any]:
        return self.device.to_host(array)

    def write(self, array: DeviceArray, values: NDArray[Any]) -> None:
        self.device.copy_in(array, np.ascontiguousarray(values, array.dtype))


EMULATED = OnDevice(cast(Callable[[], Device], EmulatedDevice))
GPU = OnDevice(cast(Callable[[], Device], open_cupy_device))


def have_gpu() -> bool:
    if not find_spec("cupy"):
        return False
    try:
        return GPU.device.arch > 0
    except BackendUnavailableError:
        return False


def activations(x: NDArray[np.float64], weight_type: str) -> NDArray[np.float64]:
    """What a product with a weight of this type makes of its other side, [..., K]: blocks of 32 signed bytes for quantized ones."""
    if weight_type in FLOATS:
        return x
    groups = x.astype(np.float32).reshape(*x.shape[:-1], -1, 32)
    scale = np.abs(groups).max(-1, keepdims=True) / np.float32(127)
    steps = np.rint(np.divide(groups, scale, out=np.zeros_like(groups), where=scale > 0))
    return (steps.astype(float) * scale.astype(float)).reshape(x.shape)
