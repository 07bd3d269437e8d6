"""A model file in a ModelRunner over the reference, with enough pages for the golden prompts, and all rows of its logits."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.compute.backend import Capture, Chunk, PageCopy, RowSnapshot, Sample, StepBatch, StepResult
from svc.compute.model_file import open_model
from svc.compute.reference import ReferenceOps
from svc.compute.reference.math import rms_norm
from svc.compute.runner import ModelRunner
from svc.compute.sampling.params import SamplingParams
from svc.memory.plan import MemoryPlan
from svc.model.arch import load_model

DATA = Path(__file__).parent.parent / "data"
GGUF, GOLDEN = DATA / "gguf", DATA / "golden"
PAGE_TOKENS = 16
PAGES_PER_ROW = 24  # 384 tokens: the longest prompt and its greedy answer
GREEDY = SamplingParams(temperature=0)


def prompt(name: str, family: str = "qwen35") -> NDArray[np.int32]:
    """Token ids of golden prompt "s0".."s3"."""
    lines = (GOLDEN / f"seqs-{family}.txt").read_text().splitlines()
    return np.array(lines[int(name[1:])].split(), np.int32)


def golden(name: str) -> dict[str, NDArray[Any]]:
    with np.load(GOLDEN / f"{name}.npz") as archive:
        return {key: archive[key] for key in archive.files}


class SpyOps(ReferenceOps):
    """The reference, which also keeps the residual stream after each operation and the final norm of every token."""

    cache_bytes = 1 << 30

    def __init__(self) -> None:
        super().__init__(self.cache_bytes)
        self.trace: list[tuple[str, NDArray[np.float32]]] = []
        self.final: NDArray[np.float32] = np.zeros((0, 0), np.float32)

    def embed(self, hidden: Any, *args: Any) -> None:  # type: ignore[override]
        self.trace = []
        self._traced("embed", super().embed, hidden, *args)

    def delta_mixer(self, hidden: Any, *args: Any) -> None:  # type: ignore[override]
        self._traced("mixer", super().delta_mixer, hidden, *args)

    def attention_mixer(self, hidden: Any, *args: Any) -> None:  # type: ignore[override]
        self._traced("mixer", super().attention_mixer, hidden, *args)

    def dense_ffn(self, hidden: Any, *args: Any) -> None:  # type: ignore[override]
        self._traced("ffn", super().dense_ffn, hidden, *args)

    def moe_ffn(self, hidden: Any, *args: Any) -> None:  # type: ignore[override]
        self._traced("ffn", super().moe_ffn, hidden, *args)

    def final_hidden(self, hidden: Any, norm: Any, epsilon: float, *args: Any) -> None:  # type: ignore[override]
        self.final = rms_norm(hidden, norm, epsilon)
        super().final_hidden(hidden, norm, epsilon, *args)

    def _traced(self, name: str, op: Callable[..., None], hidden: Any, *args: Any) -> None:
        op(hidden, *args)
        self.trace.append((name, hidden.copy()))


class Rig:
    """Owner of one loaded model. Row r owns PAGES_PER_ROW pages, in falling order: a page number is no position."""

    def __init__(self, path: Path, *, rows: int = 3, snapshots: int = 4, kv_type: str = "f32") -> None:
        self.ops = SpyOps()
        self.config, source = open_model(path)
        self.model = load_model(source, self.config, self.ops)
        self.plan = MemoryPlan(self.config.memory_layout(PAGE_TOKENS, kv_type), rows * PAGES_PER_ROW, rows, snapshots)
        self.runner = ModelRunner(self.model, self.ops, self.plan, max_step_tokens=512)

    @property
    def caches(self) -> Any:
        return self.runner._caches

    def pages(self, row: int) -> NDArray[np.int32]:
        return np.arange(PAGES_PER_ROW, dtype=np.int32)[::-1] + row * PAGES_PER_ROW

    def chunk(self, row: int, start: int, tokens: Sequence[int] | NDArray[np.int32]) -> Chunk:
        return Chunk(row, start, np.array(tokens, np.int32), self.pages(row))

    def logits(self, batch: StepBatch) -> NDArray[np.float32]:
        """Runs a batch -> logits of all its tokens, [T, V]."""
        self.runner.run(batch)
        return np.asarray(self.model.output.dot(self.ops.final))

    def prefill(self, tokens: NDArray[np.int32], *, row: int = 0, cuts: Sequence[int] = ()) -> NDArray[np.float32]:
        """A text from its start, in chunks that end at `cuts` and at its end -> logits of all tokens [n, V]."""
        bounds = [0, *cuts, len(tokens)]
        parts = []
        for start, end in pairwise(bounds):
            zero_rows = [row] if start == 0 else []
            parts.append(self.logits(StepBatch(zero_rows=zero_rows, chunks=[self.chunk(row, start, tokens[start:end])])))
        return np.concatenate(parts)

    def greedy(self, tokens: NDArray[np.int32], count: int, *, row: int = 0) -> list[int]:
        """`count` tokens after the text, one step each."""
        answer: list[int] = []
        chunk, zero_rows = self.chunk(row, 0, tokens), [row]
        for position in range(len(tokens), len(tokens) + count):
            result = self.runner.run(StepBatch(zero_rows=zero_rows, chunks=[chunk], samples=[Sample(row, position, 0, GREEDY)]))
            answer.append(result.samples[0].token)
            chunk, zero_rows = self.chunk(row, position, answer[-1:]), []
        return answer


__all__ = ["Capture", "Chunk", "PageCopy", "Rig", "RowSnapshot", "Sample", "SpyOps", "StepBatch", "StepResult", "golden", "prompt"]
