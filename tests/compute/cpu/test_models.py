"""Whole models on the cpu device: transformers' logits and answers, and the same bits however the steps were made."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from svc.compute.backend import Capture, Chunk, RowSnapshot, Sample, StepBatch
from svc.compute.cpu import CpuOps
from svc.compute.model_file import open_model
from svc.compute.runner import ModelRunner
from svc.compute.sampling.params import SamplingParams
from svc.memory.plan import MemoryPlan
from svc.model.arch import load_model
from tests.compute.cpu.conftest import MakeOps
from tests.compute.eight_bit import as_q8_0, divergence
from tests.compute.rig import GGUF, golden, prompt
from tests.tolerances import KL_8_BIT, LOGITS_GOLDEN

# file -> (golden archive, token ids)
MODELS = {
    "tiny-qwen35-hd128-bf16": ("tiny-qwen35-hd128.hf", "qwen35"),
    "tiny-qwen35moe-Q4_K_M": ("tiny-qwen35moe.hfdequant-Q4_K_M", "qwen35"),
    "tiny-qwen3next-Q4_K_M": ("tiny-qwen3next.hfdequant-Q4_K_M", "qwen2"),
    "tiny-qwen3-Q8_0": ("tiny-qwen3.hfdequant-Q8_0", "qwen2"),
}
PAGES = 24  # of 16 tokens, per row
ROWS, SNAPSHOTS = 3, 16
GREEDY = SamplingParams(temperature=0)
Tokens = NDArray[np.int32]


class CpuModel:
    """Owner of one loaded model, on this backend or another. Row r has pages r, r + ROWS, ... in falling order."""

    def __init__(self, file: str | Path, ops: Any, kv_type: str = "f32") -> None:
        config, source = open_model(GGUF / f"{file}.gguf" if isinstance(file, str) else file)
        plan = MemoryPlan(config.memory_layout(16, kv_type), ROWS * PAGES, ROWS, SNAPSHOTS)
        self.ops = ops
        self.model = load_model(source, config, ops)
        self.runner = ModelRunner(self.model, ops, plan, max_step_tokens=512)

    def chunk(self, row: int, start: int, tokens: Sequence[int] | Tokens) -> Chunk:
        return Chunk(row, start, np.array(tokens, np.int32), np.arange(PAGES, dtype=np.int32)[::-1] * ROWS + row)

    def row_logits(self, rows: Sequence[int]) -> NDArray[np.float32]:
        config = self.model.config
        vectors, out = self.ops.empty((len(rows), config.hidden_size)), self.ops.empty((len(rows), config.vocab_size))
        self.ops.live_hidden(vectors, np.array(rows, np.int32), self.runner._caches)
        self.ops.logits(out, self.model.output, vectors)
        return self.ops.to_numpy(out)

    def last_logits(self, tokens: Tokens, count: int) -> NDArray[np.float32]:
        """Logits of the last `count` tokens of a text prefilled in one chunk: from the hidden rows of captures in mid-chunk."""
        captures = [Capture(0, len(tokens) - count + 1 + i, i) for i in range(count)]
        self.runner.run(StepBatch(zero_rows=[0], chunks=[self.chunk(0, 0, tokens)], captures=captures))
        parts = []
        for capture in captures:
            self.runner.run(StepBatch(restores=[RowSnapshot(1, capture.snapshot_id)]))
            parts.append(self.row_logits([1]))
        return np.concatenate(parts)

    def greedy(self, tokens: Tokens, count: int) -> list[int]:
        answer: list[int] = []
        step = StepBatch(zero_rows=[0], chunks=[self.chunk(0, 0, tokens)], samples=[Sample(0, len(tokens), 0, GREEDY)])
        for position in range(len(tokens), len(tokens) + count):
            answer.append(self.runner.run(step).samples[0].token)
            step = StepBatch(chunks=[self.chunk(0, position, answer[-1:])], samples=[Sample(0, position + 1, 0, GREEDY)])
        return answer


@pytest.fixture(scope="module")
def best() -> CpuOps:
    return CpuOps(2, poison=True)


@pytest.mark.parametrize("name", ["s0", "s1", "s2", "s3"])
@pytest.mark.parametrize("file", MODELS)
def test_golden_logits(best: CpuOps, file: str, name: str) -> None:
    """The last logits of each prompt (16 at most) within the tolerance of two float32 engines, f32 pages."""
    archive, family = MODELS[file]
    expected = golden(archive)[f"{name}.logits"][-SNAPSHOTS:]
    logits = CpuModel(file, best).last_logits(prompt(name, family), len(expected))
    np.testing.assert_allclose(logits, expected, rtol=0, atol=LOGITS_GOLDEN)


@pytest.mark.parametrize("name", ["s0", "s1", "s2", "s3"])
def test_golden_answers(best: CpuOps, name: str) -> None:
    """64 of 64 greedy tokens, decoded one by one on top of a prefill."""
    expected = golden("tiny-qwen35-hd128.hf")[f"{name}.greedy"]
    assert CpuModel("tiny-qwen35-hd128-bf16", best).greedy(prompt(name), len(expected)) == expected.tolist()


def test_8_bit_activations(tmp_path: Path) -> None:
    """Q8_0 weights meet activations in blocks of 8 bits: the mean KL divergence from the float32 original stays what both
    roundings cost, and it is not that of float activations."""
    path = tmp_path / "model.gguf"
    as_q8_0(GGUF / "tiny-qwen35-hd128-bf16.gguf", path)
    expected = golden("tiny-qwen35-hd128.hf")
    rounded, exact = (CpuModel(path, CpuOps(2, activations=kind, poison=True)) for kind in ("int8", "float"))
    divergences = []
    for name in ("s0", "s1", "s2", "s3"):
        wanted = expected[f"{name}.logits"][-SNAPSHOTS:]
        found = rounded.last_logits(prompt(name), len(wanted))
        assert not np.array_equal(found, exact.last_logits(prompt(name), len(wanted)))
        divergences += divergence(wanted, found).tolist()
    assert np.mean(divergences) < KL_8_BIT


@pytest.mark.parametrize("file", ["tiny-qwen35-hd128-bf16", "tiny-qwen3next-Q4_K_M"])
def test_same_logits_however_the_steps_are_made(make_ops: MakeOps, level: str, file: str) -> None:
    """Two texts in one batch and in chunks, one of them resumed from a snapshot in another row, on 3 threads and any level: the
    bits that each gives alone, in one chunk, on one thread."""
    family = MODELS[file][1]
    first, second = prompt("s2", family)[:40], prompt("s3", family)[:23]
    control = CpuModel(file, make_ops(1, "base"), "f16")
    control.runner.run(StepBatch(zero_rows=[0], chunks=[control.chunk(0, 0, first)]))
    control.runner.run(StepBatch(zero_rows=[2], chunks=[control.chunk(2, 0, second)]))
    expected = control.row_logits([0, 2])

    model = CpuModel(file, make_ops(3, level), "f16")
    chunk, run = model.chunk, model.runner.run
    run(StepBatch(zero_rows=[0], chunks=[chunk(0, 0, first[:19])], captures=[Capture(0, 7, 3)]))
    resumed = Chunk(1, 7, first[7:20], chunk(0, 0, [0]).pages)  # the pages of row 0 hold the seven tokens before
    run(StepBatch(zero_rows=[2], restores=[RowSnapshot(1, 3)], chunks=[chunk(2, 0, second[:9]), resumed]))
    run(StepBatch(chunks=[Chunk(1, 20, first[20:21], resumed.pages), chunk(2, 9, second[9:])]))
    run(StepBatch(chunks=[Chunk(1, 21, first[21:], resumed.pages)]))
    logits = model.row_logits([1, 2])
    assert np.isfinite(expected).all()
    assert logits.tobytes() == expected.tobytes(), f"{np.abs(logits - expected).max()}"
