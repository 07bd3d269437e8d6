"""ModelRunner: one model, one room of operations, one memory plan, together a Backend.

A run is the list in backend.py's docstring, top to bottom. Nothing is read back from the device before the tokens, and at most
MAX_LOGIT_ROWS rows of logits exist at a time.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.compute.arch import load_model, read_config
from svc.compute.arch.model import Model
from svc.compute.backend import Sampled, Score, StepBatch, StepResult
from svc.compute.model_config import ModelConfig
from svc.compute.ops import Ops
from svc.compute.step_inputs import StepInputs, build_step_inputs, pairs
from svc.compute.weights.gguf_file import GgufFile
from svc.compute.weights.tensors import WeightSource
from svc.memory.plan import MemoryPlan

__all__ = ["ModelRunner", "load_model", "open_model"]

MAX_LOGIT_ROWS = 64  # rows of logits held at once: a row of a large vocabulary is a megabyte


def open_model(file: GgufFile | Path | str) -> tuple[ModelConfig, WeightSource]:
    """Reads what a model file says about itself; no weight is touched. ModelFileError if it cannot be served.

    Then: `plan_memory(config.memory_layout(...), ...)`, `load_model(source, config, ops)`, `ModelRunner(model, ops, plan, ...)`.
    """
    opened = file if isinstance(file, GgufFile) else GgufFile.open(Path(file))
    return read_config(opened), WeightSource(opened)


class ModelRunner:
    """Owner of the caches and step buffers."""

    def __init__(
        self, model: Model, ops: Ops, plan: MemoryPlan, max_step_tokens: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """`max_step_tokens`: most tokens one batch may carry. `clock`: seconds, for StepResult.duration_s."""
        self.name = ops.name
        self.plan = plan
        self.max_step_tokens = max_step_tokens
        self.model = model
        self._ops = ops
        self._clock = clock
        ops.reserve(model.config, plan, max_step_tokens, MAX_LOGIT_ROWS)
        self._caches = ops.caches(plan)
        self._hidden = ops.empty((max_step_tokens, model.config.hidden_size))
        self._vectors = ops.empty((MAX_LOGIT_ROWS, model.config.hidden_size))
        self._logits = ops.empty((MAX_LOGIT_ROWS, model.config.vocab_size))

    def run(self, batch: StepBatch) -> StepResult:
        """Runs one step; asserts that its numbers are within the plan."""
        check_batch(batch, self.plan, self.max_step_tokens, self.model.config.vocab_size)
        started = self._clock()
        self._prepare_memory(batch)
        scores: tuple[float, ...] = ()
        if batch.pieces:
            inputs = build_step_inputs(batch, self.model.rope)
            self._ops.submit(self._forward, self._hidden, inputs)
            scores = self._score(batch, inputs)
        sampled = self._sample(batch)
        self._ops.finish()  # before anybody is told that cells are written
        captured = tuple(save.cell for save in batch.saves) + tuple(capture.cell for capture in batch.captures)
        return StepResult(sampled, captured, self._clock() - started, scores)

    def _forward(self, hidden: Any, inputs: StepInputs) -> None:
        self.model.forward(self._ops, hidden, inputs, self._caches)

    def close(self) -> None:
        """Lets go of the device memory and closes the ops: the runner is their owner."""
        del self._caches, self._hidden, self._vectors, self._logits
        self._ops.close()

    def _prepare_memory(self, batch: StepBatch) -> None:
        """Copies, then saves, then the rows that start: a seat can be saved, given away and filled again in one step."""
        ops, caches = self._ops, self._caches
        if batch.copies:
            ops.copy_pages(caches, pairs([(copy.source, copy.target) for copy in batch.copies]))
        if batch.saves:
            ops.save_rows(caches, pairs([(save.row, save.cell) for save in batch.saves]))
        if batch.zero_rows:
            ops.zero_rows(caches, np.array(batch.zero_rows, np.int32))
        if batch.restores:
            ops.restore_rows(caches, pairs([(restore.row, restore.cell) for restore in batch.restores]))

    def _score(self, batch: StepBatch, inputs: StepInputs) -> tuple[float, ...]:
        """Logits after each token that a score follows, then one log probability per score."""
        tokens = [_token_before(score, batch, inputs) for score in batch.scores]
        norm, epsilon = self.model.output_norm, self.model.config.epsilon
        hidden = self._hidden[: inputs.num_tokens]
        by_token = self._in_blocks(tokens, lambda out, part: self._ops.hidden_rows(out, hidden, norm, epsilon, part))
        results: dict[int, float] = {}
        for logits, rows, indices in by_token:
            targets = [batch.scores[index].target for index in indices]
            results |= zip(indices, self._ops.logprobs(logits, rows, targets), strict=True)
        return tuple(results[index] for index in range(len(batch.scores)))

    def _sample(self, batch: StepBatch) -> tuple[Sampled, ...]:
        """Logits of each live row asked for, then one draw per sample."""
        places = [wanted.row for wanted in batch.samples]
        by_row = self._in_blocks(places, lambda out, part: self._ops.live_hidden(out, part, self._caches))
        results: dict[int, Sampled] = {}
        for logits, rows, indices in by_row:
            results |= zip(indices, self._ops.sample(logits, rows, [batch.samples[index] for index in indices]), strict=True)
        return tuple(results[index] for index in range(len(batch.samples)))

    def _in_blocks(
        self, places: Sequence[int], gather: Callable[[Any, NDArray[np.int32]], None]
    ) -> Iterator[tuple[Any, list[int], list[int]]]:
        """(logits [n, V], rows of them, indices into `places` that want these rows); each different place has one row.

        `gather` fetches places' hidden rows.
        """
        wanted_by: dict[int, list[int]] = {}
        for index, place in enumerate(places):
            wanted_by.setdefault(place, []).append(index)
        different = list(wanted_by)
        for start in range(0, len(different), MAX_LOGIT_ROWS):
            part = different[start : start + MAX_LOGIT_ROWS]
            vectors, out = self._vectors[: len(part)], self._logits[: len(part)]
            gather(vectors, np.array(part, np.int32))
            self._ops.logits(out, self.model.output, vectors)
            rows = [row for row, place in enumerate(part) for _ in wanted_by[place]]
            yield out, rows, [index for place in part for index in wanted_by[place]]


def _token_before(score: Score, batch: StepBatch, inputs: StepInputs) -> int:
    """Index in the step of the last token before the score's position."""
    return int(inputs.cu_seqlens[score.piece]) + score.position - 1 - batch.pieces[score.piece].start


def check_batch(batch: StepBatch, plan: MemoryPlan, max_step_tokens: int, vocab_size: int) -> None:
    """Asserts what `slots` and `memory` owe a backend: a wrong number here would write into another request's memory."""
    assert batch.num_tokens <= max_step_tokens, f"{batch.num_tokens} tokens in a step of at most {max_step_tokens}"
    for copy in batch.copies:
        assert 0 <= copy.source < plan.num_pages, copy
        assert 0 <= copy.target < plan.num_pages, copy
    for move in (*batch.saves, *batch.restores):
        assert 0 <= move.row < plan.num_rows, move
        assert 0 <= move.cell < plan.num_cells, move
    assert all(0 <= row < plan.num_rows for row in batch.zero_rows), batch.zero_rows
    assert len({piece.row for piece in batch.pieces}) == len(batch.pieces), "two pieces of one row in a step"
    for piece in batch.pieces:
        assert 0 <= piece.row < plan.num_rows, piece
        assert len(piece.tokens) > 0, piece
        assert piece.start >= 0, piece
        assert piece.tokens.min() >= 0, piece
        assert piece.tokens.max() < vocab_size, piece
        needed = piece.pages[: -(-piece.end // plan.layout.page_tokens)]
        assert len(needed) * plan.layout.page_tokens >= piece.end or not plan.layout.page_elements, piece
        assert len(needed) == 0 or (needed.min() >= 0 and needed.max() < plan.num_pages), piece
    written = [save.cell for save in batch.saves] + [capture.cell for capture in batch.captures]
    assert len(set(written)) == len(written), "a cell written twice in a step"
    for capture in batch.captures:
        piece = batch.pieces[capture.piece]
        assert piece.start < capture.position <= piece.end, (capture, piece)
        assert 0 <= capture.cell < plan.num_cells, capture
    for score in batch.scores:
        piece = batch.pieces[score.piece]
        assert piece.start < score.position <= piece.end, (score, piece)
        assert 0 <= score.target < vocab_size, score
    for wanted in batch.samples:
        assert 0 <= wanted.row < plan.num_rows, wanted
        assert wanted.history is None or len(wanted.history.tokens) == wanted.position, wanted
