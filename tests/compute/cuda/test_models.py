"""Whole models through the CUDA backend on the emulated device: transformers' logits and answers."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from svc.compute.backend import Capture, Sample, StepBatch
from svc.compute.cuda.device import Device
from svc.compute.cuda.ops import CudaOps
from svc.compute.cuda.weights import CudaWeight
from svc.compute.sampling.params import SamplingParams
from svc.gguf.gguf_file import GgufTensor
from tests.compute.cpu.test_models import MODELS, CpuModel
from tests.compute.eight_bit import as_q8_0, divergence
from tests.compute.rig import GGUF, golden, prompt
from tests.cuda_emulator.build import have_compiler
from tests.cuda_emulator.device import EmulatedDevice
from tests.kernels.cuda import GPU, have_gpu
from tests.tolerances import KL_8_BIT, LOGITS_GOLDEN

pytestmark = pytest.mark.skipif(not have_compiler(), reason="the CUDA emulator needs g++")
ROWS = 16  # last rows of logits that are compared


class FloatOps(CudaOps):
    """Weights go to the device as float32, which other kernels multiply with float activations: exact, as the goldens are."""

    def weight(self, tensor: GgufTensor, progress: Callable[[int], None] | None = None) -> CudaWeight:
        values = np.ascontiguousarray(tensor.dequantize(), np.float32).reshape(tensor.shape)
        return super().weight(GgufTensor(tensor.name, tensor.shape, "F32", values.view(np.uint8)))  # whose bytes are not the file's


@pytest.fixture(scope="module", params=["emulated", "lazy", *(["cuda"] if have_gpu() else [])])
def device(request: pytest.FixtureRequest) -> Device:
    """Lazy: the device does nothing until the host waits: a missing synchronisation would read NaN or what an
    earlier step left."""
    return GPU.device if request.param == "cuda" else cast(Device, EmulatedDevice(lazy=request.param == "lazy"))


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("tiny-qwen35-hd128-bf16", "s2"),  # 70 tokens: a whole chunk and the beginning of another, several pages
        ("tiny-qwen35moe-Q4_K_M", "s1"),
        ("tiny-qwen3next-Q4_K_M", "s1"),
        ("tiny-qwen3-Q8_0", "s1"),
        *(pytest.param(file, "s2", marks=pytest.mark.slow) for file in MODELS if file != "tiny-qwen35-hd128-bf16"),
    ],
)
def test_golden_logits(device: Device, file: str, name: str) -> None:
    """The last logits of a prompt within the tolerance of two float32 engines, f32 pages."""
    archive, family = MODELS[file]
    expected = golden(archive)[f"{name}.logits"][-ROWS:]
    logits = CpuModel(file, FloatOps(device)).last_logits(prompt(name, family), len(expected))
    np.testing.assert_allclose(logits, expected, rtol=0, atol=LOGITS_GOLDEN)


def test_golden_answer(device: Device) -> None:
    """Greedy tokens decoded one by one on top of a prefill."""
    expected = golden("tiny-qwen35-hd128.hf")["s1.greedy"][:6]
    model = CpuModel("tiny-qwen35-hd128-bf16", CudaOps(device))
    assert model.greedy(prompt("s1"), len(expected)) == expected.tolist()


DEVICES: dict[str, dict[str, Any]] = {
    "forward": {},
    "random order": {"order": "random"},
    "sm_75": {"arch": 75},
    "checked": {"build": "checked", "limit_s": 300.0},
}


@cache
def some_tokens(device: str) -> list[int]:
    """Three texts prefilled with captures in one step, decoded in two, the second a recorded one's first replay."""
    model = CpuModel("tiny-qwen3next-Q4_K_M", CudaOps(EmulatedDevice(**DEVICES[device])))
    texts = [prompt("s2", "qwen2")[:length] for length in (5, 3, 33)]
    ends = [Sample(row, len(text), 0, SamplingParams(temperature=0)) for row, text in enumerate(texts)]
    chunks = [model.chunk(row, 0, text) for row, text in enumerate(texts)]
    captures = [Capture(2, 9, 1), Capture(0, 5, 0)]
    found = list(model.runner.run(StepBatch(zero_rows=[0, 1, 2], chunks=chunks, captures=captures, samples=ends)).samples)
    for step in range(2):
        chunks = [model.chunk(row, len(text) + step, [7 + step]) for row, text in enumerate(texts)]
        wanted = [Sample(row, len(text) + step + 1, 0, SamplingParams(temperature=0)) for row, text in enumerate(texts)]
        found += model.runner.run(StepBatch(chunks=chunks, samples=wanted)).samples
    return [one.token for one in found]


@pytest.mark.parametrize("other", [name for name in DEVICES if name != "forward"])
def test_order_of_threads_and_architecture_do_not_matter(other: str) -> None:
    """Whole steps in any order of threads and on the oldest GPU's branches give the same tokens; the checked build finds no race,
    no access out of bounds and no read before a write."""
    assert some_tokens(other) == some_tokens("forward")


def test_8_bit_activations(device: Device, tmp_path: Path) -> None:
    """Q8_0 weights meet activations in blocks of 8 bits: the mean KL divergence from the float32 original stays what both
    roundings cost."""
    path = tmp_path / "model.gguf"
    as_q8_0(GGUF / "tiny-qwen35-hd128-bf16.gguf", path)
    model, expected = CpuModel(path, CudaOps(device)), golden("tiny-qwen35-hd128.hf")
    divergences = []
    for name in ("s0", "s1", "s2"):
        wanted = expected[f"{name}.logits"][-ROWS:]
        divergences += divergence(wanted, model.last_logits(prompt(name), len(wanted))).tolist()
    assert np.mean(divergences) < KL_8_BIT
