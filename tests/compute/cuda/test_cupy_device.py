"""CupyDevice against a CuPy that notes what it is asked, as no machine of the tests need have a GPU."""

import importlib
import inspect
import sys
from typing import Any

import numpy as np
import pytest

from svc.compute.cuda.cupy_device import CupyDevice, open_cupy_device
from svc.compute.cuda.device import Device, DeviceFaultError, DeviceStateError
from svc.errors import BackendUnavailableError
from tests.cuda_emulator.device import EmulatedDevice
from tests.fakes import fake_cupy as fake


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> CupyDevice:
    monkeypatch.setitem(sys.modules, "cupy", fake.fake_cupy())
    return open_cupy_device()


@pytest.mark.parametrize("implementation", [CupyDevice, EmulatedDevice])
def test_contract(implementation: type) -> None:
    """Every method of the contract, with the same parameters in the same order."""
    for name, method in inspect.getmembers(Device, inspect.isfunction):
        if not name.startswith("_"):
            wanted = [(p.name, p.default) for p in inspect.signature(method).parameters.values()]
            found = [(p.name, p.default) for p in inspect.signature(getattr(implementation, name)).parameters.values()]
            assert found == wanted, name


# ---- missing parts


@pytest.mark.parametrize(
    ("machine", "index", "words"),
    [
        ({"driver": 0}, 0, "needs the NVIDIA driver"),
        ({"driver": 12080}, 0, "built for CUDA 13 and the driver is of CUDA 12.8: replace cupy-cuda13x by cupy-cuda12x"),
        ({"num_gpus": 0}, 0, "finds no GPU: cudaErrorNoDevice"),
        ({"num_gpus": 2}, 2, r"no cuda:2: the driver shows 2 GPU\(s\)"),
        ({"arch": "61"}, 0, r"cuda:0 \(Fake H200, sm_61\) is too old: sm_75"),
        ({"nvrtc": False}, 0, "finds no CUDA compiler"),
    ],
)
def test_unavailable(monkeypatch: pytest.MonkeyPatch, machine: dict[str, Any], index: int, words: str) -> None:
    """One sentence that names the missing part."""
    monkeypatch.setitem(sys.modules, "cupy", fake.fake_cupy(**machine))
    with pytest.raises(BackendUnavailableError, match=words):
        open_cupy_device(index)


def test_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(BackendUnavailableError, match=r"needs CuPy .*pip install 'headrace\[cuda\]'"):
        open_cupy_device()


@pytest.mark.parametrize(("driver", "runtime"), [(13000, 13020), (13020, 12090), (12040, 12090)])
def test_drivers_that_do(monkeypatch: pytest.MonkeyPatch, driver: int, runtime: int) -> None:
    """The same major version or a newer driver."""
    monkeypatch.setitem(sys.modules, "cupy", fake.fake_cupy(driver=driver, runtime=runtime))
    assert open_cupy_device().arch == 90


def test_real_cupy_without_a_driver() -> None:
    """Where CuPy itself is installed and there is no GPU, it is asked the right way."""
    pytest.importorskip("cupy")
    try:
        assert importlib.import_module("cupy").cuda.runtime.getDeviceCount() > 0
    except RuntimeError:
        with pytest.raises(BackendUnavailableError):
            open_cupy_device()
    else:
        assert open_cupy_device().arch >= 75


# ---- what it passes on


def test_values_there_and_back(device: CupyDevice) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    array = device.from_host(values)
    np.testing.assert_array_equal(device.to_host(array.rows(1, 3)), values[1:])
    pinned = device.pinned((3, 4), np.float32)
    device.to_host_async(pinned, array)
    np.testing.assert_array_equal(pinned, values)
    device.zero(array)
    assert not device.to_host(array).any()


def test_launch(device: CupyDevice) -> None:
    """Numbers have the declared width, addresses 64 bits; the stream given is current."""
    x, weight, out = (device.empty(shape, np.float32) for shape in ((2, 8), (8,), (2, 8)))
    kernel, stream = device.module("rms_norm").kernel("rms_norm"), device.stream()
    device.launch(kernel, (2,), (32,), (x, None, weight, out, None, 8, 0, 8, 1e-6), 2048, stream)
    ((grid, block, args, shared, current),) = kernel.raw.calls
    assert (grid, block, shared, current) == ((2, 1, 1), (32, 1, 1), 2048, stream.raw)
    assert [arg.dtype.name for arg in args] == ["uint64"] * 5 + ["int64", "int64", "int32", "float32"]
    assert [int(arg) for arg in args[:5]] == [x.pointer, 0, weight.pointer, out.pointer, 0]


def test_shared_memory_counts_the_fixed_part(device: CupyDevice) -> None:
    kernel = device.module("rms_norm").kernel("rms_norm")
    assert kernel.raw.max_dynamic_shared_size_bytes == (227 << 10) - 1024
    args = (
        device.empty((1, 8), np.float32),
        None,
        device.empty((8,), np.float32),
        device.empty((1, 8), np.float32),
        None,
        8,
        0,
        8,
        1e-6,
    )
    device.launch(kernel, (1,), (32,), args, (227 << 10) - 1024)
    with pytest.raises(ValueError, match="shared memory"):
        device.launch(kernel, (1,), (32,), args, (227 << 10) - 1023)


def test_source_is_whole(device: CupyDevice) -> None:
    """CuPy's cache sees the headers, and -D."""
    raw = device.module("rms_norm", {"N": 3})._raw
    assert "block_sum" in raw.code
    assert '#include "' not in raw.code
    assert {"-std=c++17", "-DN=3"} <= set(raw.options)
    assert device.module("rms_norm", {"N": 3})._raw is raw


def test_capture(device: CupyDevice) -> None:
    """A graph keeps its arrays; calls that a capture forbids are refused and leave the stream as it was."""
    array, event, other = device.empty((4,), np.float32), device.event(), device.stream()
    graph = device.capture(lambda: device.zero(array))
    assert array in graph._kept
    graph.launch()
    assert device.main.raw.log[-1] == ("graph", graph._raw)
    forbidden = [
        lambda: device.empty((1,), np.float32),
        lambda: device.to_host(array),
        lambda: device.copy_in(array, np.zeros(4, np.float32)),
        lambda: device.zero(array, other),
        lambda: event.record(),
        device.synchronize,
        graph.launch,
    ]
    for call in forbidden:
        with pytest.raises(DeviceStateError):
            device.capture(call)
        assert not device.main.raw.capturing


def test_faults(device: CupyDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of CUDA have the contract's name; too little memory says how much there is."""

    def illegal() -> None:
        raise fake.CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")

    monkeypatch.setattr(device._runtime, "deviceSynchronize", illegal)
    with pytest.raises(DeviceFaultError, match="cudaErrorIllegalAddress"):
        device.synchronize()
    with pytest.raises(MemoryError, match=f"{8 << 30} bytes needed on the GPU, {1 << 29} are free"):
        device.empty((2 << 30,), np.float32)


def test_memory_that_cannot_be_pinned(device: CupyDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is broken by asking for too much: it is no fault of the device."""

    def refuse(nbytes: int) -> None:
        raise fake.CUDARuntimeError("cudaErrorMemoryAllocation")

    monkeypatch.setattr(device._cuda, "PinnedMemory", refuse)
    with pytest.raises(MemoryError, match="48 bytes of pinned memory needed: cudaErrorMemoryAllocation"):
        device.pinned((3, 4), np.float32)
