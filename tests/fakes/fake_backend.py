"""A backend without arrays that remembers which token each page row, live row and snapshot really holds.

Its "model" is a hash of the whole token prefix, so a wrong page, row, snapshot or position shows as an assertion at once, and every
answer can be computed without it (`expected_answer`).
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from svc.compute.backend import NO_TOKEN, PENDING, Chunk, Completed, Sample, Sampled, Slab, StepBatch, StepRefusedError, StepResult
from svc.compute.blocks import Blocks
from svc.compute.sampling.params import SamplingParams
from svc.memory.plan import MemoryPlan
from svc.memory.tiers import Move
from tests.fakes.token_slabs import TokenSlabs, place_on_device

VOCABULARY = 997
SKIPPED = -7  # what a sample of a skipped row gives: nothing that anybody may look at
POISONED = 1_000_000  # added to a token whose evaluation went wrong: what descends from it is not finite


def next_token(prefix: Sequence[int], params: SamplingParams, choice: int) -> int:
    """The token this model answers after `prefix`: greedy ignores seed and choice, as a real one does."""
    text = ",".join(map(str, prefix))
    if params.temperature > 0:
        text += f"|{params.seed}|{choice}|{len(prefix)}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest()) % VOCABULARY


def expected_answer(prompt: Sequence[int], length: int, params: SamplingParams | None = None, choice: int = 0) -> list[int]:
    """What an answer of `length` tokens must be, computed from the prompt alone."""
    tokens = list(prompt)
    for _ in range(length):
        tokens.append(next_token(tokens, params or SamplingParams(temperature=0), choice))
    return tokens[len(prompt) :]


def _followed(drawn: Sampled, wanted: Sample) -> Sampled:
    """With the tokens that a grammar says must follow."""
    goes_on = wanted.forced is not None and drawn.token >= 0 and drawn.token not in wanted.stops
    return replace(drawn, forced=tuple(wanted.forced(drawn.token))) if goes_on and wanted.forced else drawn


SLAB_NAMES = {
    Slab.PAGES: "pages",
    Slab.SNAPSHOTS: "snapshots",
    Slab.HOST_PAGES: "host_pages",
    Slab.HOST_SNAPSHOTS: "host_snapshots",
}
_contents: list[Any] = []  # what blocks stand for: the tokens do not fit into them. Of all fakes, so that one reads another's files


def _as_block(contents: Any, size: int) -> Blocks:
    _contents.append(list(contents) if isinstance(contents, list) else contents)
    block = np.zeros(size, np.uint8)
    block[:8] = np.array([len(_contents) - 1]).view(np.uint8)
    return block


class FakeBackend:
    """Implements compute.backend.Backend. `step_s` is what each step claims to have taken.

    `moves_lag`: moves are made so many steps later than asked for, unless somebody has to wait for them: as late as a contract
    allows, so that whoever reads too early reads something else.
    """

    name = "fake"

    def __init__(self, plan: MemoryPlan, max_step_tokens: int = 64, step_s: float = 0.01, moves_lag: int = 0) -> None:
        self.plan = plan
        self.max_step_tokens = max_step_tokens
        self.step_s = step_s
        self._slabs = TokenSlabs(plan, self._before_write)  # a row of a page holds its token
        self.moves_lag = moves_lag
        self.read_anywhere = False
        self._moves: list[tuple[int, Move]] = []  # not made yet, with the number of the step that asked for them
        self._moves_over = 0
        self.batches: list[StepBatch] = []
        self.poisoned_rows: set[int] = set()  # rows whose next sample is not finite
        self._poison: tuple[int, ...] | None = None
        self.fail_next: Exception | None = None
        self.fail_when: Callable[[StepBatch], bool] = lambda batch: False
        self.num_skipped = 0
        self._failed = False
        self._states: dict[int, tuple[int, ...]] = {}  # of the step's chunks, drafts included
        self._drafted: set[int] = set()  # rows with drafts in the step
        self._coming: dict[int, int | None] = {}  # row -> the token the last step sampled; None where that ended the answer

    def run(self, batch: StepBatch) -> StepResult:
        return self.submit(batch).result()

    def submit(self, batch: StepBatch) -> Completed:
        """The step is done at once."""
        if batch.ahead and self._failed:
            raise StepRefusedError("planned ahead of a step that failed")
        self._failed = True
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            self._moves.clear()
            raise error
        if self.fail_when(batch):
            self._moves.clear()
            raise RuntimeError("device lost")
        wanted = batch.samples
        batch = self._resolved(batch)
        drawn = dict(zip([(sample.row, sample.position) for sample in batch.samples], self._run(batch), strict=True))
        tokens = {sample.row: (drawn[sample.row, sample.position].token, sample.stops) for sample in batch.samples}
        self._coming = {row: None if token < 0 or token in stops else token for row, (token, stops) in tokens.items()}
        drafted = {chunk.row for chunk in batch.chunks if chunk.drafted}
        self._coming = {row: token for row, token in self._coming.items() if row not in drafted}  # nobody knows which comes
        self._failed = False
        captured = [save.snapshot_id for save in batch.saves] + [capture.snapshot_id for capture in batch.captures]
        assert len(set(captured)) == len(captured)
        found = [(drawn.get((sample.row, sample.position)), sample) for sample in wanted]
        samples = tuple(Sampled(SKIPPED) if token is None else _followed(token, sample) for token, sample in found)
        return Completed(StepResult(samples, tuple(captured), self.step_s, moves_over=self._moves_over))

    def _resolved(self, batch: StepBatch) -> StepBatch:
        """The batch with the tokens that were pending; chunks and samples of rows whose answer has ended are gone."""
        chunks: list[Chunk] = []
        skipped: set[int] = set()
        for chunk in batch.chunks:
            if PENDING in chunk.tokens:
                assert batch.ahead
                assert len(chunk.tokens) == 1
                token = self._coming[chunk.row]
                if token is None:
                    skipped.add(chunk.row)
                    continue
                chunk = chunk._replace(tokens=np.array([token], np.int32))
            chunks.append(chunk)
        self.num_skipped += len(skipped)
        dropped = {index for index, chunk in enumerate(batch.chunks) if chunk.row in skipped}
        assert not any(capture.chunk in dropped for capture in batch.captures)
        captures = [replace(c, chunk=c.chunk - sum(index < c.chunk for index in dropped)) for c in batch.captures]
        samples = [self._with_history(sample) for sample in batch.samples if sample.row not in skipped]
        return replace(batch, chunks=chunks, captures=captures, samples=samples)

    def _with_history(self, sample: Sample) -> Sample:
        if sample.history is None or sample.history.tokens[-1] != PENDING:
            return sample
        tokens = sample.history.tokens.copy()
        tokens[-1] = self._coming[sample.row]
        return sample._replace(history=replace(sample.history, tokens=tokens))

    def _run(self, batch: StepBatch) -> list[Sampled]:
        self.batches.append(batch)
        self._states.clear()
        self._drafted = {chunk.row for chunk in batch.chunks if chunk.drafted}
        assert batch.num_tokens <= self.max_step_tokens, f"{batch.num_tokens} tokens in one step"
        self._move(batch)
        for settle in batch.settles:
            self._slabs.settle(settle.row, settle.start, settle.end)
        self._slabs.prepare(
            [(copy.source, copy.target) for copy in batch.copies],
            [(save.row, save.snapshot_id) for save in batch.saves],
            batch.zero_rows,
            [(restore.row, restore.snapshot_id) for restore in batch.restores],
        )
        self._forward(batch)
        self._make_moves(0 if batch.await_moves else self.moves_lag)
        return [self._sample(sample) for sample in batch.samples]

    def read_blocks(self, slab: Slab, places: Sequence[int]) -> Blocks:
        self._make_moves(0)
        source = getattr(self._slabs, SLAB_NAMES[slab])
        return np.stack([_as_block(source[place], self._block_bytes(slab)) for place in places])

    def write_blocks(self, slab: Slab, places: Sequence[int], blocks: Blocks) -> None:
        self._make_moves(0)
        target = getattr(self._slabs, SLAB_NAMES[slab])
        for place, block in zip(places, blocks, strict=True):
            contents = _contents[int(block[:8].view(np.int64)[0])]
            target[place] = list(contents) if isinstance(contents, list) else contents

    def _block_bytes(self, slab: Slab) -> int:
        layout = self.plan.layout
        return layout.page_bytes if slab in (Slab.PAGES, Slab.HOST_PAGES) else layout.state_bytes

    def close(self) -> None:
        pass

    def _move(self, batch: StepBatch) -> None:
        """Queues the step's moves."""
        if not self._moves:
            self._moves_over = batch.moves_before
        self._moves += [(len(self.batches), move) for move in batch.moves]

    def _before_write(self, slab: str, place: int) -> None:
        """No step may write a place that a move still uses: then all are made first."""
        if any(place_on_device(move) == (slab, place) for _, move in self._moves):
            self._make_moves(0)

    def _make_moves(self, lag: int) -> None:
        while self._moves and self._moves[0][0] + lag <= len(self.batches):
            _, move = self._moves.pop(0)
            self._moves_over += 1
            self._slabs.move(move)

    def poison(self, prefix: Sequence[int]) -> None:
        """The next step that evaluates the last token of `prefix` goes wrong: everything computed from that state is not finite."""
        self._poison = tuple(prefix)

    def _forward(self, batch: StepBatch) -> None:
        rows = [chunk.row for chunk in batch.chunks]
        assert len(set(rows)) == len(rows), "a row twice in one step"
        written: set[tuple[int, int]] = set()
        slabs, size = self._slabs, self.plan.layout.page_tokens
        for index, chunk in enumerate(batch.chunks):
            state = slabs.rows[chunk.row]
            assert state is not None, f"row {chunk.row} was never started"
            assert len(chunk.tokens) > chunk.drafted
            assert not chunk.drafted or len(chunk.tokens) <= self.plan.journal_tokens
            known = tuple(slabs.read(chunk.pages, chunk.start))
            if not self.plan.layout.hybrid:
                state = tuple(-1 if token is None else token for token in known)  # no recurrent state: the pages are all
            assert len(state) == chunk.start, f"row {chunk.row} stands elsewhere than {chunk.start}"
            assert known == state, f"the pages of row {chunk.row} hold other tokens than its state"
            for offset, token in enumerate(chunk.tokens.tolist()):
                position = chunk.start + offset
                place = (int(chunk.pages[position // size]), position % size)
                assert place not in written, f"two sequences write page {place}"
                written.add(place)
                if (*state, token) == self._poison:
                    self._poison = None
                    token += POISONED
                slabs.write(chunk.pages, position, token)
                if chunk.drafted:
                    slabs.journal[chunk.row][position % self.plan.journal_tokens] = position, token
                state = (*state, token)
                for capture in batch.captures:
                    if capture.chunk == index and capture.position == position + 1:
                        assert capture.position <= chunk.end - chunk.drafted, "a capture behind a draft"
                        slabs.set_snapshot(capture.snapshot_id, state)
            self._states[chunk.row] = state
            if not chunk.drafted:
                slabs.set_row(chunk.row, state)
        for chunk in batch.chunks:  # nobody's rows were overwritten by a neighbour
            assert slabs.read(chunk.pages, chunk.end) == list(self._states[chunk.row])

    def _sample(self, sample: Sample) -> Sampled:
        state = self._states.get(sample.row, self._slabs.rows[sample.row])
        assert state is not None, f"row {sample.row} was never started"
        if sample.row in self._drafted:
            state = state[: sample.position]
        assert len(state) == sample.position or not self.plan.layout.hybrid
        if sample.history is not None:
            assert tuple(sample.history.tokens.tolist()) == state, "a history of other tokens"
        if sample.row in self.poisoned_rows:
            self.poisoned_rows.discard(sample.row)
            return Sampled(-1)
        if max(state) >= POISONED:
            return Sampled(-1)
        token = next_token(state, sample.params, sample.choice)
        if sample.mask is not None:
            allowed = np.flatnonzero(np.unpackbits(sample.mask().view(np.uint8), count=VOCABULARY, bitorder="little"))
            token = int(allowed[token % len(allowed)]) if len(allowed) else NO_TOKEN
        if not sample.params.learns:
            assert sample.learned == ()
            return Sampled(token, -1.0, ())
        (total,) = sample.learned or (0.0,)
        token = (token + int(total)) % VOCABULARY
        return Sampled(token, -1.0, (), (total + token,))
