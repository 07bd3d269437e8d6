"""`--device cuda`: how it is chosen, what its memory is planned for, and one sentence where it cannot be."""

import subprocess
import sys
from dataclasses import replace
from typing import Any, cast

import aiohttp
import pytest
import structlog
from structlog.testing import LogCapture

from svc import app, model_loading
from svc.check import check_server
from svc.compute.cuda import cupy_device
from svc.compute.cuda.device import Device
from svc.compute.cuda.ops import CudaOps
from svc.compute.model_file import open_model
from svc.compute.ops import StepSizes
from svc.config import Config
from svc.errors import BackendUnavailableError, ConfigError, MemoryBudgetError, ModelFileError
from svc.memory.plan import MemoryPlan
from tests.compute.rig import GGUF
from tests.cuda_emulator.build import have_compiler
from tests.cuda_emulator.device import EmulatedDevice

MODEL = GGUF / "tiny-qwen3next-Q4_K_M.gguf"
MIB = 2**20


@pytest.fixture
def captured() -> LogCapture:
    return LogCapture()


@pytest.fixture
def logger(captured: LogCapture) -> Any:
    return structlog.wrap_logger(structlog.PrintLogger(), processors=[captured], wrapper_class=structlog.stdlib.BoundLogger)


def no_progress(done: int, total: int) -> None:
    pass


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A machine with 64 MiB free, and GPUs of 96 MiB: the numbers of those that were opened."""
    opened: list[int] = []

    def open_device(index: int = 0) -> EmulatedDevice:
        opened.append(index)
        return EmulatedDevice(total_bytes=96 * MIB)

    monkeypatch.setattr(cupy_device, "open_cupy_device", open_device)
    monkeypatch.setattr(model_loading, "find_spec", lambda name: name)  # CuPy is installed
    monkeypatch.setattr(model_loading, "available_memory_bytes", lambda: 64 * MIB)
    return opened


def test_without_a_gpu_one_sentence() -> None:
    """`headrace serve --device cuda` where it cannot work says why in one line, with exit code 2."""
    try:
        cupy_device.open_cupy_device()
    except BackendUnavailableError:
        command = [sys.executable, "-m", "svc.cli", "serve", str(MODEL), "--device", "cuda", "--port", "0", "--log-level", "error"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 2
        assert result.stderr.startswith("headrace: ")
        assert result.stderr.count("\n") == 1
    else:
        pytest.skip("this machine has a GPU")


@pytest.mark.parametrize(("device", "index"), [("cuda", 0), ("cuda:0", 0), ("cuda:3", 3), ("auto", 0)])
def test_which_gpu(device: str, index: int, emulated: list[int], logger: Any, captured: LogCapture) -> None:
    """The first unless a number says otherwise; `auto` takes it without being told to."""
    assert model_loading.choose_ops(Config(device=device), logger).name == "cuda"
    assert emulated == [index]
    assert captured.entries == []


@pytest.mark.parametrize("exact", [False, True])
def test_exact(exact: bool, emulated: list[int], logger: Any) -> None:
    """The setting reaches the device: with it no memory is planned for chunks of the delta rule and splits of attention."""
    config, _ = open_model(MODEL)
    sizes = StepSizes(config, config.memory_layout(16, "f16"), 4, 64, 64)
    found, other = (model_loading.choose_ops(Config(device="cuda", exact=value), logger) for value in (exact, not exact))
    planned, otherwise = (ops.bytes_for_steps(sizes) for ops in (found, other))  # type: ignore[attr-defined]
    assert (planned < otherwise) == exact


def test_auto_goes_on_without(monkeypatch: pytest.MonkeyPatch, logger: Any, captured: LogCapture) -> None:
    """CuPy without a GPU: another device computes, and the log says why."""

    def refuse(index: int = 0) -> None:
        raise BackendUnavailableError("the driver finds no GPU")

    monkeypatch.setattr(cupy_device, "open_cupy_device", refuse)
    monkeypatch.setattr(model_loading, "find_spec", lambda name: name)
    assert model_loading.choose_ops(Config(), logger).name != "cuda"
    assert "finds no GPU" in captured.entries[0]["reason"]
    with pytest.raises(BackendUnavailableError):
        model_loading.choose_ops(Config(device="cuda"), logger)


@pytest.mark.parametrize("device", ["cuda:", "cuda:-1", "gpu", "cuda:x", ""])
def test_other_names_are_refused(device: str) -> None:
    from svc.config import load_config

    with pytest.raises(ConfigError, match="cuda:N"):
        load_config(environ={}, flags={"device": device})


@pytest.mark.skipif(not have_compiler(), reason="the CUDA emulator needs g++")
def test_load(emulated: list[int], logger: Any) -> None:
    """Automatic budgets fill the GPU's memory and no more: weights, caches and scratch memory fit, and it computes."""
    loaded = model_loading.load(Config(model=str(MODEL), device="cuda", max_step_tokens=64), logger, no_progress)
    device = loaded.runner._ops.device  # type: ignore[attr-defined]
    assert loaded.runner.name == "cuda"
    assert 0 < device.memory().free_bytes < 8 * MIB
    before = device.memory()
    assert loaded.runner.run(app.one_token()).samples[0].token >= 0
    loaded.runner.run(app.many_tokens(loaded.runner.plan, loaded.runner.max_step_tokens))
    assert device.memory() == before
    loaded.runner.close()


def test_check_copies_no_weight(emulated: list[int], logger: Any) -> None:
    """`serve --check` plans for the GPU's memory and checks every tensor, but uploads none."""
    sentence = check_server(Config(model=str(MODEL), device="cuda", port=0, max_step_tokens=64), logger)
    assert sentence.startswith(f"{MODEL.stem} can be served")
    assert "by cuda with 8 slots" in sentence


@pytest.mark.skipif(not have_compiler(), reason="the CUDA emulator needs g++")
async def test_serve(emulated: list[int], logger: Any) -> None:
    """A whole server on it, loaded on one thread and computing on another: the same prompt again is reused, with the same bits."""
    config = Config(model=str(MODEL), device="cuda", ctx=256, max_step_tokens=64, max_slots=2)
    body = {"prompt": [300, 301, 302, 303, 304], "max_tokens": 3, "temperature": 0, "ignore_eos": True, "logprobs": 1}
    answers = []
    async with app.private_server(config, logger, no_progress) as (url, key), aiohttp.ClientSession() as session:
        for _ in range(2):
            headers = {"Authorization": f"Bearer {key}"}
            async with session.post(f"{url}/v1/completions", json={**body, "return_token_ids": True}, headers=headers) as response:
                answers.append(await response.json())
                assert response.status == 200, answers[-1]
    first, again = answers
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 5
    assert len(first["choices"][0]["token_ids"]) == 3
    assert again["choices"] == first["choices"]


@pytest.mark.parametrize("change", [{"head_dim": 40}, {"head_dim": 512}, {"key_dim": 24}, {"num_experts": 2000}])
def test_sizes_without_kernels(emulated: list[int], logger: Any, change: dict[str, int]) -> None:
    """Refused before loading, by name and number."""
    config, _ = open_model(MODEL)
    ops, layout = model_loading.choose_ops(Config(device="cuda"), logger), config.memory_layout(16, "f16")
    with pytest.raises(ModelFileError, match=str(*change.values())):
        ops.bytes_for_caches(StepSizes(replace(config, **change), layout, 1, 64, 64), 0)  # type: ignore[arg-type]


def test_too_small_a_gpu(monkeypatch: pytest.MonkeyPatch, logger: Any) -> None:
    """Known before anything is loaded; the message has the needed and the free memory."""
    monkeypatch.setattr(cupy_device, "open_cupy_device", lambda index: EmulatedDevice(total_bytes=8 * MIB))
    done: list[int] = []
    with pytest.raises(MemoryBudgetError, match=r"8 MiB free of 8, too little for 4 MiB of weights"):
        model_loading.load(Config(model=str(MODEL), device="cuda"), logger, lambda now, total: done.append(now))
    assert done == []


def test_budgets_that_do_not_fit(emulated: list[int], logger: Any) -> None:
    """Budgets in numbers are held against the GPU's memory, not the machine's."""
    with pytest.raises(MemoryBudgetError, match="are free"):
        model_loading.load(Config(model=str(MODEL), device="cuda", kv_bytes=2**40, snapshot_bytes=2**24), logger, no_progress)


def test_host_tier_that_the_machine_does_not_give(emulated: list[int], logger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than is free is refused before anything is loaded; what cannot be pinned after all, in one sentence too."""
    sizes: dict[str, Any] = {"kv_bytes": 2**22, "snapshot_bytes": 2**22, "host_kv_bytes": 2**22}
    with pytest.raises(MemoryBudgetError, match=r"host_snapshot_bytes can be at most .* together"):
        model_loading.load(Config(model=str(MODEL), device="cuda", **sizes, host_snapshot_bytes=2**60), logger, no_progress)

    def pinned(device: EmulatedDevice, shape: tuple[int, ...], dtype: object) -> None:
        raise MemoryError("nothing left to pin")

    device = EmulatedDevice()
    config, _ = open_model(MODEL)
    plan = MemoryPlan(config.memory_layout(16, "f16"), 8, 2, 4, num_host_pages=3, num_host_snapshots=2)
    monkeypatch.setattr(EmulatedDevice, "pinned", pinned)
    with pytest.raises(MemoryBudgetError, match=rf"with {plan.host_bytes} bytes of pinned memory beside it: nothing left to pin"):
        CudaOps(cast(Device, device)).caches(plan)


def test_automatic_host_tier(emulated: list[int], logger: Any) -> None:
    """Beside a GPU a share of the machine's memory; on other devices none."""
    opened = model_loading.open_configured(Config(model=str(MODEL), max_step_tokens=64))
    plan, _ = model_loading.plan_memory_for(
        Config(model=str(MODEL), max_step_tokens=64), opened, model_loading.choose_ops(Config(device="cuda"), logger)
    )
    assert 15 * MIB < plan.host_bytes <= 16 * MIB
    assert 0 < plan.num_host_pages / plan.num_pages == pytest.approx(plan.num_host_snapshots / plan.num_snapshots, rel=0.1)
    plan, _ = model_loading.plan_memory_for(
        Config(model=str(MODEL), max_slots=1), opened, model_loading.choose_ops(Config(device="reference"), logger)
    )
    assert not plan.host_tier
