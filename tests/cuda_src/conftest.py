"""`device`: a test that takes it runs in all thread orders of the emulator, in its checked build, and on a GPU if there is one."""

from functools import partial
from typing import Any

import pytest

from svc.compute.cuda.cupy_device import open_cupy_device
from svc.compute.cuda.device import Device
from tests.cuda_emulator.build import have_compiler
from tests.cuda_emulator.device import EmulatedDevice
from tests.kernels.cuda import have_gpu

DEVICES: dict[str, Any] = {
    "forward": EmulatedDevice,
    "reverse": partial(EmulatedDevice, order="reverse"),
    "random": partial(EmulatedDevice, order="random"),
    # No cp.async, no tensor cores for bfloat16: other branches of the sources.
    "sm_75": partial(EmulatedDevice, arch=75),
    "lazy": partial(EmulatedDevice, lazy=True),
    "checked": partial(EmulatedDevice, build="checked"),
    "checked reverse": partial(EmulatedDevice, build="checked", order="reverse"),
}
if have_gpu():
    DEVICES["cuda"] = open_cupy_device


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Device:
    if request.param != "cuda" and not have_compiler():
        pytest.skip("the CUDA emulator needs g++")
    made: Device = DEVICES[request.param]()
    return made
