"""The plan of device memory against the memory really allocated: all before the first step, none in a step."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from svc.compute.backend import Capture, Chunk, History, PageCopy, RowSnapshot, Sample, Score, StepBatch
from svc.compute.cuda.ops import CudaOps
from svc.compute.model_file import open_model
from svc.compute.ops import StepSizes
from svc.compute.runner import MAX_LOGIT_ROWS, ModelRunner
from svc.compute.sampling.params import SamplingParams
from svc.memory.plan import MemoryPlan
from svc.model.arch import load_model
from svc.model.arch.model import Model
from tests.compute.rig import GGUF
from tests.cuda_emulator.build import have_compiler
from tests.cuda_emulator.device import EmulatedDevice

PAGES = 6  # of 16 tokens, per row
ALLOCATING = ("empty", "zeros", "from_host", "pinned")
FILES = ["tiny-qwen3next-Q4_K_M", "tiny-qwen35moe-Q4_K_M", "tiny-qwen35-hd128-bf16", "tiny-qwen3-Q8_0"]
SIZES = [(1, 16), (3, 40), (9, 128)]  # rows, tokens of a step
PENALIZED = SamplingParams(temperature=1.0, seed=1, repetition_penalty=1.2, num_logprobs=4, logit_bias=((5, 1.0),))


class Server:
    """A runner on a device of its own, with the plan made before, as a start makes it. Without `weights` it can run nothing."""

    def __init__(self, file: str, rows: int, tokens: int, *, exact: bool = False, weights: bool = True) -> None:
        self.device = EmulatedDevice()
        self.rows, self.tokens = rows, tokens
        ops = CudaOps(self.device, exact=exact)
        config, source = open_model(GGUF / f"{file}.gguf")
        self.plan = MemoryPlan(config.memory_layout(16, "f16"), 2 * PAGES * rows, rows, 5 * rows)
        self.planned = ops.bytes_for_steps(StepSizes(config, self.plan.layout, rows, tokens, MAX_LOGIT_ROWS))
        model = load_model(source, config, ops) if weights else cast(Model, SimpleNamespace(config=config))
        before = self.free
        self.runner = ModelRunner(model, ops, self.plan, tokens)
        self.taken = before - self.free - self.plan.total_bytes

    @property
    def free(self) -> int:
        return self.device.memory().free_bytes

    def chunk(self, row: int, start: int, count: int) -> Chunk:
        pages = np.arange(PAGES, dtype=np.int32)[::-1] * self.rows + row
        return Chunk(row, start, np.arange(7, 7 + count, dtype=np.int32), pages)

    def samples(self, positions: Sequence[int], params: SamplingParams = PENALIZED) -> list[Sample]:
        history = [History(np.arange(position, dtype=np.int32), 1) if params.needs_history else None for position in positions]
        return [Sample(row, at, 0, params, history=past) for row, (at, past) in enumerate(zip(positions, history, strict=True))]

    def steps(self) -> list[StepBatch]:
        """One of every kind: the longest chunk, captured in many places, beside others; rows decoding together; moves alone."""
        rows, (first, second) = range(self.rows), (self.tokens - self.rows + 1, 1)
        long = min(first, PAGES * 16 - 4)
        chunks = [self.chunk(row, 0, second if row else long) for row in rows]
        ends = [len(chunk.tokens) for chunk in chunks]
        captures = [Capture(0, 1 + 3 * i, i) for i in range(min(self.plan.num_snapshots, long // 3))]
        scores = [Score(0, position, 3) for position in range(1, long)]
        decodes = [StepBatch(chunks=[self.chunk(row, ends[row] + i, 1) for row in rows]) for i in range(3)]
        return [
            StepBatch(zero_rows=list(rows), chunks=chunks, captures=captures, scores=scores, samples=self.samples(ends)),
            *decodes,
            StepBatch(
                copies=[PageCopy(0, PAGES * self.rows)],
                saves=[RowSnapshot(0, self.plan.num_snapshots - 1)],
                restores=[RowSnapshot(row, 0) for row in rows if captures],
                samples=self.samples([1] * self.rows, SamplingParams(temperature=0)),
            ),
        ]


@pytest.mark.parametrize("exact", [False, True], ids=["", "exact"])
@pytest.mark.parametrize(("rows", "tokens"), [*SIZES, (64, 2048)])
@pytest.mark.parametrize("file", FILES)
def test_planned_before_anything_is_loaded(file: str, rows: int, tokens: int, exact: bool) -> None:
    """Scratch memory, metadata, logits and the sampler's buffers take no more than the plan says, for any caches,
    and the plan does not waste much: it counts on contexts as long as the model is made for and on all memory being pages."""
    server = Server(file, rows, tokens, exact=exact, weights=False)
    assert server.taken <= server.planned <= 2 * server.taken + server.device.memory().total_bytes // 20
    server.runner.close()


def variants() -> list[Any]:
    quick = [(FILES[0], SIZES[1]), (FILES[2], SIZES[0])]
    slow = [(file, size) for file in FILES for size in SIZES if (file, size) not in quick]
    return [*quick, *(pytest.param(*case, marks=pytest.mark.slow) for case in slow)]


@pytest.mark.skipif(not have_compiler(), reason="the CUDA emulator needs g++")
@pytest.mark.parametrize("exact", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["", "exact"])
@pytest.mark.parametrize(("file", "size"), variants())
def test_steps_allocate_nothing(file: str, size: tuple[int, int], exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step asks the device for memory, neither on the device nor pinned: steps of every kind run where asking is an error."""
    server = Server(file, *size, exact=exact)
    for name in ALLOCATING:
        monkeypatch.setattr(server.device, name, None)
    for step in server.steps():
        result = server.runner.run(step)
        assert len(result.samples) == len(step.samples)
        assert np.isfinite(result.scores).all()
    monkeypatch.undo()
    server.runner.close()
