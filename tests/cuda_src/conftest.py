"""`device`: every test that takes it runs in all thread orders of the emulator, in its checked build, and on a real GPU where
there is one."""

from functools import partial
from typing import Any

import pytest

from svc.compute.cuda.device import Device
from tests.cuda_emulator.build import have_compiler
from tests.cuda_emulator.device import EmulatedDevice

DEVICES: dict[str, Any] = {
    "forward": EmulatedDevice,
    "reverse": partial(EmulatedDevice, order="reverse"),
    "random": partial(EmulatedDevice, order="random"),
    # No tensor cores for bfloat16, no cp.async, other branches of the sources.
    "sm_75": partial(EmulatedDevice, arch=75),
    "lazy": partial(EmulatedDevice, lazy=True),
    "checked": partial(EmulatedDevice, build="checked"),
    "checked reverse": partial(EmulatedDevice, build="checked", order="reverse"),
}


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Device:
    if not have_compiler():
        pytest.skip("the CUDA emulator needs g++")
    made: Device = DEVICES[request.param]()
    return made
