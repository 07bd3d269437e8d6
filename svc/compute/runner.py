"""ModelRunner: one model, one backend's operations and one memory plan make a Backend.

A step is the list in backend.py's docstring, top to bottom. Nothing is read back from the device before the tokens, and at most
MAX_LOGIT_ROWS rows of logits exist at a time. With asynchronous operations `submit` only queues them, and `result` reads the
tokens.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.compute.backend import PENDING, Sample, Sampled, Slab, StepBatch, StepRefusedError, StepResult
from svc.compute.blocks import Blocks
from svc.compute.forward import forward
from svc.compute.ops import Ops
from svc.compute.pending import has_pending_history, resolve
from svc.compute.step_inputs import StepInputs, build_step_inputs, pairs
from svc.memory.plan import MemoryPlan
from svc.memory.tiers import MoveKind
from svc.model.arch.model import Model
from svc.model.layers.delta import DeltaWeights

MAX_LOGIT_ROWS = 64  # rows of logits in memory at once; a row of a large vocabulary is a megabyte


Draws = tuple[list[int], Callable[[], list[Sampled]]]
"""Indices of samples, and a function that returns their tokens."""

NOTHING = Sampled(-1)  # for a row whose chunk was skipped


class SubmittedStep:
    """A step whose operations have been queued."""

    def __init__(self, batch: StepBatch, collect: Callable[[], StepResult]) -> None:
        self.samples = batch.samples
        self._collect: Callable[[], StepResult] | None = collect
        self._result: StepResult | None = None

    @property
    def finished(self) -> bool:
        return self._result is not None

    def result(self) -> StepResult:
        """Raises the error of an asynchronous device."""
        if self._result is None:
            assert self._collect is not None
            self._result, self._collect = self._collect(), None  # the closure holds buffers of the device
        return self._result


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
        self._latest: SubmittedStep | None = None  # None if it failed
        self._idle_since = clock()

    def run(self, batch: StepBatch) -> StepResult:
        """Runs one step; asserts that its numbers are within the plan."""
        return self.submit(batch).result()

    def submit(self, batch: StepBatch) -> SubmittedStep:
        """Queues one step; asserts that its numbers are within the plan. Done on return if the operations are synchronous."""
        before, self._latest = self._latest, None
        check_batch(batch, self.plan, self.max_step_tokens, self.model.config.vocab_size)
        if batch.ahead and before is None:
            raise StepRefusedError("the step that this one was planned on top of has failed")
        started, wanted, left = self._clock(), batch, list(range(len(batch.samples)))
        if batch.ahead and before is not None and (not self._ops.asynchronous or has_pending_history(batch)):
            batch, left = resolve(batch, before.samples, before.result().samples)
        step = SubmittedStep(wanted, self._queue(batch, started, left, len(wanted.samples)))
        if not self._ops.asynchronous:
            step.result()
        self._latest = step
        return step

    def _queue(self, batch: StepBatch, started: float, left: Sequence[int], num_samples: int) -> Callable[[], StepResult]:
        """Queues all operations; returns a function that waits for them. `left`: indices of the samples kept, of `num_samples`."""
        self._prepare_memory(batch)
        scores: tuple[float, ...] = ()
        draws: list[Draws] = []
        drafted = drafted_chunks(batch)
        if batch.chunks:
            inputs = build_step_inputs(batch, self.model.rope)
            self._ops.submit(self._forward, self._hidden, inputs)
            scores = self._score(batch, inputs)
            draws += self._sample_drafted(batch, inputs, drafted) if drafted else []
        draws += self._sample(batch, drafted)
        wait = self._ops.mark()
        captured = tuple(save.snapshot_id for save in batch.saves) + tuple(capture.snapshot_id for capture in batch.captures)

        def collect() -> StepResult:
            try:
                wait()  # nobody may learn of the snapshots before they are written
                samples = [NOTHING] * num_samples
                for indices, drawn in draws:
                    for index, sampled in zip(indices, drawn(), strict=True):
                        samples[left[index]] = with_forced(sampled, batch.samples[index])
            except BaseException:
                self._latest = None
                raise
            now = self._clock()
            begun, self._idle_since = max(started, self._idle_since), now  # it may have waited for the previous step
            moves_over = self._ops.moves_over(all_of_them=batch.await_moves) if self.plan.host_tier else 0
            return StepResult(tuple(samples), captured, now - begun, scores, moves_over)

        return collect

    def _forward(self, hidden: Any, inputs: StepInputs) -> None:
        forward(self._ops, self.model, hidden, inputs, self._caches)

    @property
    def read_anywhere(self) -> bool:
        """Whether `read_blocks` may be called on any thread, beside a running step: slabs are plain memory, nothing moves."""
        return not self._ops.asynchronous and not self.plan.host_tier

    def read_blocks(self, slab: Slab, places: Sequence[int]) -> Blocks:
        """Copies of whole pages or states as bytes, as all steps and moves submitted so far leave them."""
        self._end_moves()
        return self._ops.read_blocks(self._caches, slab, places)

    def write_blocks(self, slab: Slab, places: Sequence[int], blocks: Blocks) -> None:
        """Writes whole pages or states of the device, after all steps submitted so far and before all others."""
        self._end_moves()  # one of them may still read those places
        self._ops.write_blocks(self._caches, slab, places, blocks)

    def _end_moves(self) -> None:
        if self.plan.host_tier:
            self._ops.moves_over(all_of_them=True)

    def close(self) -> None:
        """Frees the device memory and closes the ops, which the runner owns."""
        self._latest = None
        del self._caches, self._hidden, self._vectors, self._logits
        self._ops.close()

    def _prepare_memory(self, batch: StepBatch) -> None:
        """Moves, copies, settles, saves, then the rows that start: one step can save a row and fill it again for another
        sequence."""
        ops, caches = self._ops, self._caches
        if self.plan.host_tier:
            ops.move(caches, batch)
        if batch.copies:
            ops.copy_pages(caches, pairs([(copy.source, copy.target) for copy in batch.copies]))
        if batch.settles:
            settles = np.array([(settle.row, settle.start, settle.end) for settle in batch.settles], np.int32)
            grouped_heads = any(isinstance(mixer, DeltaWeights) and mixer.grouped_heads for mixer, _ in self.model.layers)
            ops.settle_rows(caches, settles, grouped_heads=grouped_heads)
        if batch.saves:
            ops.save_rows(caches, pairs([(save.row, save.snapshot_id) for save in batch.saves]))
        if batch.zero_rows:
            ops.zero_rows(caches, np.array(batch.zero_rows, np.int32))
        if batch.restores:
            ops.restore_rows(caches, pairs([(restore.row, restore.snapshot_id) for restore in batch.restores]))

    def _score(self, batch: StepBatch, inputs: StepInputs) -> tuple[float, ...]:
        """Logits after each token that precedes a scored one, then one log probability per score."""
        tokens = [_token_before(score.chunk, score.position, batch, inputs) for score in batch.scores]
        results: dict[int, float] = {}
        for logits, rows, indices in self._in_blocks(tokens, partial(self._hidden_rows, inputs)):
            targets = [batch.scores[index].target for index in indices]
            results |= zip(indices, self._ops.logprobs(logits, rows, targets), strict=True)
        return tuple(results[index] for index in range(len(batch.scores)))

    def _hidden_rows(self, inputs: StepInputs, out: Any, tokens: NDArray[np.int32]) -> None:
        norm, epsilon = self.model.output_norm, self.model.config.epsilon
        self._ops.hidden_rows(out, self._hidden[: inputs.num_tokens], norm, epsilon, tokens)

    def _sample(self, batch: StepBatch, drafted: Mapping[int, int]) -> list[Draws]:
        """Logits of each sampled live row, then one draw per sample; not for rows with drafts."""
        places = {index: wanted.row for index, wanted in enumerate(batch.samples) if wanted.row not in drafted}
        return self._draw(batch, places, lambda out, part: self._ops.live_hidden(out, part, self._caches))

    def _sample_drafted(self, batch: StepBatch, inputs: StepInputs, drafted: Mapping[int, int]) -> list[Draws]:
        """The same for chunks of drafts, whose live rows stay behind: after the token before each sample's position."""
        places = {
            index: _token_before(drafted[wanted.row], wanted.position, batch, inputs)
            for index, wanted in enumerate(batch.samples)
            if wanted.row in drafted
        }
        return self._draw(batch, places, partial(self._hidden_rows, inputs))

    def _draw(self, batch: StepBatch, places: dict[int, int], gather: Callable[[Any, NDArray[np.int32]], None]) -> list[Draws]:
        """`places`: index of a sample -> what `gather` fetches for it."""
        draws, wanted = [], list(places)
        for logits, rows, blocked in self._in_blocks(list(places.values()), gather):
            indices = [wanted[index] for index in blocked]
            draws.append((indices, self._ops.sample(logits, rows, [batch.samples[index] for index in indices])))
        return draws

    def _in_blocks(
        self, places: Sequence[int], gather: Callable[[Any, NDArray[np.int32]], None]
    ) -> Iterator[tuple[Any, list[int], list[int]]]:
        """Yields (logits [n, V], row of each entry, index of each entry in `places`); equal places share a row.

        `gather` fetches the hidden rows of places.
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


def drafted_chunks(batch: StepBatch) -> dict[int, int]:
    """Row -> index of its chunk of drafts."""
    return {chunk.row: index for index, chunk in enumerate(batch.chunks) if chunk.drafted}


def _token_before(chunk: int, position: int, batch: StepBatch, inputs: StepInputs) -> int:
    """Index in the step of the chunk's last token before a position."""
    return int(inputs.cu_seqlens[chunk]) + position - 1 - batch.chunks[chunk].start


def _ends(plan: MemoryPlan) -> dict[MoveKind, tuple[int, int]]:
    """Numbers of source and target places for each kind of move."""
    return {
        MoveKind.PAGE_OUT: (plan.num_pages, plan.num_host_pages),
        MoveKind.PAGE_IN: (plan.num_host_pages, plan.num_pages),
        MoveKind.SNAPSHOT_OUT: (plan.num_snapshots, plan.num_host_snapshots),
        MoveKind.ROW_IN: (plan.num_host_snapshots, plan.num_rows),
    }


def with_forced(sampled: Sampled, wanted: Sample) -> Sampled:
    """With the tokens that must follow it."""
    if wanted.forced is None or sampled.token < 0 or sampled.token in wanted.stops:
        return sampled
    tokens = wanted.forced(sampled.token)
    return replace(sampled, forced=tuple(tokens)) if tokens else sampled


def check_batch(batch: StepBatch, plan: MemoryPlan, max_step_tokens: int, vocab_size: int) -> None:
    """Asserts the preconditions of a step. A wrong number would write into another request's memory."""
    assert batch.num_tokens <= max_step_tokens, f"{batch.num_tokens} tokens in a step of at most {max_step_tokens}"
    for between in batch.moves:
        sources, targets = _ends(plan)[between.kind]
        assert 0 <= between.source < sources, between
        assert 0 <= between.target < targets, between
    for copy in batch.copies:
        assert 0 <= copy.source < plan.num_pages, copy
        assert 0 <= copy.target < plan.num_pages, copy
    for move in (*batch.saves, *batch.restores):
        assert 0 <= move.row < plan.num_rows, move
        assert 0 <= move.snapshot_id < plan.num_snapshots, move
    assert all(0 <= row < plan.num_rows for row in batch.zero_rows), batch.zero_rows
    assert len({settle.row for settle in batch.settles}) == len(batch.settles), "a row is settled twice in a step"
    for settle in batch.settles:
        assert 0 <= settle.row < plan.num_rows, settle
        assert 0 <= settle.start < settle.end <= settle.start + plan.journal_tokens, settle
    assert len({chunk.row for chunk in batch.chunks}) == len(batch.chunks), "two chunks of one row in a step"
    for chunk in batch.chunks:
        assert 0 <= chunk.row < plan.num_rows, chunk
        assert len(chunk.tokens) > 0, chunk
        assert chunk.start >= 0, chunk
        assert chunk.tokens.min() >= 0 or (batch.ahead and chunk.tokens.tolist() == [PENDING]), chunk
        assert chunk.tokens.max() < vocab_size, chunk
        assert not chunk.drafted or 0 < chunk.drafted < len(chunk.tokens) <= plan.journal_tokens, chunk
        needed = chunk.pages[: -(-chunk.end // plan.layout.page_tokens)]
        assert len(needed) * plan.layout.page_tokens >= chunk.end or not plan.layout.page_elements, chunk
        assert len(needed) == 0 or (needed.min() >= 0 and needed.max() < plan.num_pages), chunk
    written = [save.snapshot_id for save in batch.saves] + [capture.snapshot_id for capture in batch.captures]
    assert len(set(written)) == len(written), "a snapshot written twice in a step"
    for capture in batch.captures:
        chunk = batch.chunks[capture.chunk]
        assert chunk.start < capture.position <= chunk.end - chunk.drafted, (capture, chunk)
        assert chunk.tokens[0] != PENDING, (capture, chunk)
        assert 0 <= capture.snapshot_id < plan.num_snapshots, capture
    for score in batch.scores:
        chunk = batch.chunks[score.chunk]
        assert chunk.start < score.position <= chunk.end, (score, chunk)
        assert chunk.tokens[0] != PENDING, (score, chunk)
        assert 0 <= score.target < vocab_size, score
    for wanted in batch.samples:
        assert 0 <= wanted.row < plan.num_rows, wanted
        assert wanted.history is None or len(wanted.history.tokens) == wanted.position, wanted
