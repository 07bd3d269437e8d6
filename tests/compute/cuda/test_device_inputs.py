"""Steps of the CUDA backend: metadata in fixed buffers, rounds of chunks, and the end of a step."""

from dataclasses import replace

import numpy as np
import pytest

from svc.compute.backend import Capture, Score, StepBatch
from svc.compute.cuda.device_inputs import StepLimits
from svc.compute.cuda.ops import CudaOps
from tests.compute.cpu.test_models import CpuModel
from tests.compute.rig import prompt
from tests.cuda_emulator.build import have_compiler
from tests.cuda_emulator.device import EmulatedDevice
from tests.kernels import test_delta_mixer
from tests.kernels.backends import CUDA
from tests.kernels.op_rig import BATCHES
from tests.tolerances import GRAPH_PADDING, KERNEL, KERNEL_CUDA

pytestmark = pytest.mark.skipif(not have_compiler(), reason="the CUDA emulator needs g++")
LIMITS = StepLimits(
    tokens=128,
    sequences=8,
    captures=32,
    chunks=64,
    all_chunks=64,
    table_width=16,
    page_tokens=16,
    rotary_dims=0,
    split_floats=0,
    query_rows=0,
)


@pytest.mark.parametrize("chunks", [1, 2, 64])
def test_more_chunks_than_scratch_memory(chunks: int) -> None:
    """The chunked delta rule in one round or many: sequences and captures go on where the round before stopped."""
    case = test_delta_mixer.Case(CUDA, test_delta_mixer.SHAPES[2], BATCHES[-1], "F32")
    ops = case.rig.ops
    assert isinstance(ops, CudaOps)
    ops._inputs.reserve(replace(LIMITS, chunks=chunks))
    case.run()
    case.check(KERNEL_CUDA)
    step = ops._step[1]
    assert step is not None
    sizes = [each.shape[0] for each, _ in step.delta.rounds]
    assert max(sizes) <= chunks
    assert sum(sizes) > 2


def test_captured_snapshots_are_written_when_the_step_is_over() -> None:
    """On a device that does nothing until the host waits: a step without samples has waited for the snapshots it captured."""
    device = EmulatedDevice(lazy=True)
    model = CpuModel("tiny-qwen3next-Q4_K_M", CudaOps(device))
    step = StepBatch(
        zero_rows=[0], chunks=[model.chunk(0, 0, prompt("s1", "qwen2"))], captures=[Capture(0, 3, 2), Capture(0, 7, 5)]
    )
    result = model.runner.run(step)
    assert result.captured == (2, 5)
    assert not device.main.queue
    snapshots = device.to_host(model.runner._caches.snapshots)
    assert np.isfinite(snapshots[[2, 5]]).all()
    assert np.isnan(np.delete(snapshots, [2, 5], axis=0)).all()


@pytest.mark.parametrize("file", ["tiny-qwen3next-Q4_K_M", "tiny-qwen35-hd128-bf16"])
@pytest.mark.parametrize("lazy", [False, True], ids=["eager", "lazy"])
def test_graphs_give_what_launches_give(file: str, lazy: bool) -> None:
    """Three sequences decoded step by step, then two of them: recorded steps, padded to four, give within rounding what launched
    ones give, and write no page that these do not write."""
    results = {}
    for graphs in (True, False):
        model = CpuModel(file, CudaOps(EmulatedDevice(lazy=lazy), graphs=graphs))
        results[graphs] = decoded(model)
        ops = model.ops
        assert len(ops._graphs) == (2 if graphs else 0)
    for found, expected in zip(results[True][0], results[False][0], strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=GRAPH_PADDING * np.abs(expected).max())
    np.testing.assert_array_equal(np.isnan(results[True][1]), np.isnan(results[False][1]))


def decoded(model: CpuModel) -> tuple[list[np.ndarray], np.ndarray]:
    """Logits of each row after each step, and the whole KV slab."""
    run, logits = model.runner.run, []
    texts = [prompt("s2", "qwen2")[:length] for length in (5, 3, 17)]
    run(StepBatch(zero_rows=[0, 1, 2], chunks=[model.chunk(row, 0, text) for row, text in enumerate(texts)]))
    for step in range(6):
        rows = [0, 1, 2] if step < 3 else [2, 0]
        pieces = [model.chunk(row, len(texts[row]) + (step if row != 1 else min(step, 3)), [7 + step + row]) for row in rows]
        run(StepBatch(chunks=pieces))
        logits.append(model.row_logits(rows))
    return logits, model.ops.device.to_host(model.runner._caches.kv)


def test_scores_come_back_as_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row of logits is read back for the log probability of a given token, and the numbers are the host's."""
    device, text = EmulatedDevice(lazy=True), prompt("s1", "qwen2")
    model = CpuModel("tiny-qwen3next-Q4_K_M", CudaOps(device))
    monkeypatch.setattr(device, "to_host", None)
    wanted = [Score(0, position, int(token)) for position, token in enumerate(text) if position]
    result = model.runner.run(StepBatch(zero_rows=[0], chunks=[model.chunk(0, 0, text)], scores=[*wanted, Score(0, len(text), 9)]))
    monkeypatch.undo()
    last = model.row_logits([0])[0].astype(np.float64)
    assert len(result.scores) == len(text)
    assert np.isfinite(result.scores).all()
    assert result.scores[-1] == pytest.approx(last[9] - np.logaddexp.reduce(last), rel=KERNEL)
