"""The emulated device keeps the contract, and is strict where a GPU would let a mistake pass."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from svc.compute.cuda.device import DeviceArray, DeviceFaultError, DeviceStateError
from tests.cuda_emulator.build import CompileError, have_compiler
from tests.cuda_emulator.device import EmulatedDevice, EmulatedStream

needs_compiler = pytest.mark.skipif(not have_compiler(), reason="the CUDA emulator needs g++")
PLANTED = Path(__file__).parent / "planted"
ONES = np.ones(64, np.float32)


def planted(**options: Any) -> EmulatedDevice:
    return EmulatedDevice(sources=PLANTED, **options)


def add(device: EmulatedDevice, y: DeviceArray, x: DeviceArray, value: float, stream: EmulatedStream | None = None) -> None:
    device.launch(device.module("device").kernel("add"), (1,), (64,), (y, x, value, y.size), stream=stream)


# ---- memory


def test_fresh_memory_is_nan_and_aligned() -> None:
    device = EmulatedDevice()
    for size in (1, 63, 64, 1025):
        array = device.empty((size,), np.float32)
        assert array.pointer % 256 == 0
        assert np.isnan(device.to_host(array)).all()


def test_memory_is_counted() -> None:
    """What is dropped is free again; what is not there is refused, and the message says how much is."""
    device = EmulatedDevice(total_bytes=1000)
    array = device.empty((100,), np.float32)
    view = array.rows(0, 1)
    assert device.memory().free_bytes == 600
    with pytest.raises(MemoryError, match="604 bytes wanted, 600"):
        device.empty((151,), np.float32)
    del array
    gc.collect()
    assert device.memory().free_bytes == 600, "a view holds the memory"
    del view
    gc.collect()
    assert device.memory().free_bytes == 1000


def test_copies() -> None:
    device = EmulatedDevice()
    values = np.arange(12, dtype=np.float16).reshape(3, 4)
    array, other = device.from_host(values[:, ::-1]), device.zeros((3, 4), np.float16)
    np.testing.assert_array_equal(device.to_host(array), values[:, ::-1])
    assert not device.to_host(other).any()
    device.copy(other.rows(1, 3), array.rows(0, 2))
    np.testing.assert_array_equal(device.to_host(other)[1:], values[:2, ::-1])
    with pytest.raises(ValueError, match="overlap"):
        device.copy(array.rows(1, 3), array.rows(0, 2))
    for wrong in (values.astype(np.float32), values[:2]):
        with pytest.raises(ValueError, match="does not fit"):
            device.copy_in(array, wrong)


def test_only_pinned_memory_is_copied_asynchronously() -> None:
    device = EmulatedDevice()
    array, pinned = device.empty((4,), np.float32), device.pinned((8,), np.float32)
    pinned[:] = range(8)
    device.copy_in_async(array, pinned[2:6])
    np.testing.assert_array_equal(device.to_host(array), [2, 3, 4, 5])
    for wrong in (np.zeros(4, np.float32), pinned[::2]):
        with pytest.raises(ValueError, match=r"Device\.pinned"):
            device.copy_in_async(array, wrong)
        with pytest.raises(ValueError, match=r"Device\.pinned"):
            device.to_host_async(wrong, array)


# ---- launches


@needs_compiler
def test_launch_is_checked() -> None:
    """Wrong types, too many threads by bounds that only the compiler can compute, too much shared memory; nothing has run."""
    device = planted(arch=75)
    y, kernel = device.zeros((64,), np.float32), device.module("device").kernel
    with pytest.raises(TypeError, match="add: float value does not take a int"):
        device.launch(kernel("add"), (1,), (64,), (y, y, 1, 64))
    with pytest.raises(ValueError, match="bounded: 65 threads a block, 64 allowed"):
        device.launch(kernel("bounded"), (1,), (65,), (device.zeros((65,), np.int32),))
    with pytest.raises(ValueError, match="sm_75 has 65536"):
        device.launch(kernel("add"), (1,), (64,), (y, y, 1.0, 64), 65537)
    with pytest.raises(KeyError):
        kernel("unknown")
    assert not device.to_host(y).any()
    assert device.num_launches == 0


@needs_compiler
def test_shared_memory_starts_as_nan() -> None:
    device = planted()
    y = device.zeros((8,), np.float32)
    device.launch(device.module("device").kernel("fixed_shared"), (1,), (8,), (y,))
    assert np.isnan(device.to_host(y)).all()


@needs_compiler
def test_orders() -> None:
    """Forward and reverse are what they say, by threads and by blocks; random is neither, and repeats itself by seed."""
    turns = {}
    runs: dict[str, dict[str, Any]] = {
        "forward": {},
        "reverse": {"order": "reverse"},
        "random": {"order": "random"},
        "again": {"order": "random"},
        "seed 2": {"order": "random", "seed": 2},
    }
    for name, options in runs.items():
        device = planted(**options)
        counter, array = device.zeros((1,), np.int32), device.empty((5 * 64,), np.int32)
        device.launch(device.module("device").kernel("number"), (5,), (64,), (array, counter))
        turns[name] = device.to_host(array)
        assert sorted(turns[name]) == list(range(320))
    np.testing.assert_array_equal(turns["forward"], np.arange(320))
    np.testing.assert_array_equal(turns["reverse"], np.arange(320)[::-1])
    np.testing.assert_array_equal(turns["random"], turns["again"])
    assert len({turn.tobytes() for turn in turns.values()}) == 4


@needs_compiler
def test_defines_make_modules(tmp_path: Path) -> None:
    """One module a set of -D, kept; what g++ says comes with the line of the source."""
    (tmp_path / "k.cu").write_text('extern "C" __global__ void k(int* y) { *y = N; }\n')
    device = EmulatedDevice(sources=tmp_path)
    y = device.zeros((1,), np.int32)
    for n in (3, 4):
        device.launch(device.module("k", {"N": n}).kernel("k"), (1,), (1,), (y,))
        assert device.to_host(y) == n
    assert device.module("k", {"N": 3}) is device.module("k", {"N": 3})
    with pytest.raises(CompileError, match=r"k\.cu:1:.*error: .N. was not declared"):
        device.module("k")


# ---- order of work


@needs_compiler
def test_lazy_streams_find_a_missing_wait() -> None:
    """Two streams without an event: the second reads what the first has not written. With one, all is well."""
    for wait in (False, True):
        device = planted(lazy=True)
        side, event = device.stream(), device.event()
        x, y, z = device.from_host(ONES), device.empty((64,), np.float32), device.empty((64,), np.float32)
        add(device, y, x, 1.0, side)
        event.record(side)
        if wait:
            event.wait()
        add(device, z, y, 1.0)
        np.testing.assert_array_equal(device.to_host(z), np.full(64, 3.0 if wait else np.nan))


@needs_compiler
def test_lazy_copies_find_reused_and_unfinished_staging() -> None:
    """Pinned memory is read when the stream gets there, and holds nothing before its event is done."""
    device = planted(lazy=True)
    pinned, x, event = device.pinned((64,), np.float32), device.empty((64,), np.float32), device.event()
    pinned[:] = 1
    device.copy_in_async(x, pinned)
    pinned[:] = 2  # too early
    assert device.to_host(x)[0] == 2
    device.to_host_async(pinned, x)
    event.record()
    assert not event.done()
    assert np.isnan(pinned).all()
    event.synchronize()
    assert event.done()
    assert (pinned == 2).all()


def test_copy_in_takes_its_values_at_once() -> None:
    """Plain host memory may be changed as soon as the call is over."""
    device = EmulatedDevice(lazy=True)
    values, x = ONES.copy(), device.empty((64,), np.float32)
    device.copy_in(x, values)
    values[:] = 7
    np.testing.assert_array_equal(device.to_host(x), ONES)


@needs_compiler
@pytest.mark.parametrize("lazy", [False, True])
def test_capture(lazy: bool) -> None:
    """Nothing runs while capturing; a launch repeats the work on what the arrays then hold, with the scalars of the capture."""
    device = planted(lazy=lazy)
    device.module("device")
    x, y, value = device.from_host(ONES), device.zeros((64,), np.float32), [2.0]
    graph = device.capture(lambda: add(device, y, x, value[0]))
    value[0] = 100.0
    assert not device.to_host(y).any()
    graph.launch()
    assert device.to_host(y)[0] == 3
    device.copy_in(x, 4 * ONES)
    graph.launch()
    assert device.to_host(y)[0] == 6


@needs_compiler
def test_capture_refuses() -> None:
    """What would fail on a GPU, or do something once instead of at every launch; the device works on afterwards."""
    device = planted()
    x, event, side = device.from_host(ONES), device.event(), device.stream()
    graph = device.capture(lambda: device.zero(x))
    calls: list[Callable[[], object]] = [
        lambda: device.empty((1,), np.float32),
        lambda: device.zeros((1,), np.float32),
        lambda: device.from_host(ONES),
        lambda: device.pinned((1,), np.float32),
        lambda: device.copy_in(x, ONES),
        lambda: device.to_host(x),
        lambda: device.module("device"),
        lambda: device.zero(x, side),
        lambda: event.record(),
        lambda: event.wait(),
        device.synchronize,
        graph.launch,
        lambda: device.capture(device.synchronize),
    ]
    for call in calls:
        with pytest.raises(DeviceStateError):
            device.capture(call)
    assert device.to_host(x)[0] == 1


@needs_compiler
def test_fault_in_a_lazy_stream_comes_when_waited_for() -> None:
    device = planted(lazy=True)
    short, x = device.empty((60,), np.float32), device.from_host(ONES)
    device.launch(device.module("device").kernel("add"), (1,), (64,), (short, x, 1.0, 64))
    with pytest.raises(DeviceFaultError, match=r"add: (wrote behind the end|illegal)"):
        device.synchronize()
    device.synchronize()
