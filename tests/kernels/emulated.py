"""The room cuda-emulated: the CUDA room on a device that runs its kernels on the CPU."""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.compute.cuda.device import DeviceArray
from svc.compute.cuda.ops import CudaOps
from tests.cuda_emulator.device import EmulatedDevice

FLOATS = ("F32", "F16", "BF16")


@cache
def device() -> EmulatedDevice:
    """One for all tests of a process: kernels are loaded once."""
    return EmulatedDevice()


def ops() -> CudaOps:
    return CudaOps(device())


def read(array: DeviceArray) -> NDArray[Any]:
    return device().to_host(array)


def write(array: DeviceArray, values: NDArray[Any]) -> None:
    device().copy_in(array, np.ascontiguousarray(values, array.dtype))


def activations(x: NDArray[np.float64], weight_type: str) -> NDArray[np.float64]:
    """What a product with a weight of this type makes of its other side, [..., K]: blocks of 32 signed bytes for quantized ones."""
    if weight_type in FLOATS:
        return x
    groups = x.astype(np.float32).reshape(*x.shape[:-1], -1, 32)
    scale = np.abs(groups).max(-1, keepdims=True) / np.float32(127)
    steps = np.rint(np.divide(groups, scale, out=np.zeros_like(groups), where=scale > 0))
    return (steps.astype(float) * scale.astype(float)).reshape(x.shape)
