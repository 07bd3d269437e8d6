"""The contract between `slots` and `compute`: a step is one value, a `StepBatch`, and gives back one `StepResult`.

A backend runs a batch in this fixed order:

0. move pages and states between device and host (`moves`), one after the other,
1. copy pages (`copies`),
2. save live rows into snapshots (`saves`) - for states that already stand in a row: end of an answer, a cancel,
3. start rows: set to zero (`zero_rows`) or copy from a snapshot (`restores`),
4. forward over all tokens of all `chunks` as one batch, writing `captures` (state right after a token, in mid-chunk too) and,
   for each chunk, the hidden row of its last token into its live row,
5. score (`scores`) given target tokens after tokens of the chunks,
6. sample (`samples`) from the hidden rows of live rows - whether the forward just wrote them or a restore brought them.

Numbers come from `memory/`; the backend owns every array. A page, row or snapshot number outside the plan is our bug (assert).

A step may be submitted before the one submitted just before it has ended (`StepBatch.ahead`), and then evaluate a token that this
one samples: PENDING stands for it. Steps take effect in the order of submission. When the pending token ends its answer (it is
among `Sample.stops`) or is not finite, the chunk is skipped: row, pages and hidden row stay as they are, and what is sampled from
that row means nothing. When the earlier step fails, the later one is refused or its effects are worth nothing.

Moves may take longer than the step they come with: `StepResult.moves_over` says how far they are. They are made in order, those
of one step behind those of the step before; they read what earlier steps have written; and neither this step nor a later one
writes a place that an unfinished move reads or writes before that move is over - which is the backend's affair. Whatever a move
brings to the device is read by no step planned before it was over: that is the affair of `memory/` and `slots`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from svc.compute.sampling.params import SamplingParams
from svc.memory.plan import MemoryPlan
from svc.memory.tiers import Move

PENDING = -1
"""In place of a token id: the token that the step submitted just before samples for the same row."""


class StepRefusedError(RuntimeError):
    """A step that was planned ahead of one that failed."""


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copy one whole KV page (all layers)."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class RowSnapshot:
    """A live row and a snapshot; the direction is said by the field of the batch that holds it."""

    row: int
    snapshot_id: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence: one token when decoding, many when prefilling."""

    row: int
    start: int  # absolute position of tokens[0]
    tokens: NDArray[np.int32]  # [n], n >= 1; PENDING alone, where n == 1 and nothing is captured or scored
    pages: NDArray[np.int32]  # block table: page of position p is pages[p // page_tokens]; covers [0, start + n)

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Capture:
    """Write the state right after position `position - 1` of a chunk (so after `position` tokens) into a snapshot."""

    chunk: int  # index into StepBatch.chunks
    position: int  # absolute; chunk.start < position <= chunk.end
    snapshot_id: int


@dataclass(frozen=True, slots=True)
class History:
    """The tokens before the one to be sampled: what penalties count."""

    tokens: NDArray[np.int32]  # [Sample.position], the prompt first; the last may be PENDING
    num_prompt: int


@dataclass(frozen=True, slots=True)
class Score:
    """Ask for the log probability of the token `target` given all tokens before `position`, the last of them in a chunk."""

    chunk: int  # index into StepBatch.chunks
    position: int  # absolute, of the target; chunk.start < position <= chunk.end
    target: int


NOT_FINITE, NO_TOKEN = -1, -2
"""In place of a sampled token: the logits were not finite, or the mask allows no token."""

TokenMask = Callable[[], NDArray[np.uint32]]
"""Bit i % 32 of word i // 32 says whether token i is allowed; [ceil(V / 32)]. Called on the compute thread, once the forward of the
step is on its way, so that the mask is made while the device works; it may be called again, with the same outcome."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Sample one token from the hidden row standing in `row`.

    Randomness is a pure function of (params.seed, choice, position): `position` is the absolute index the new token will have.
    """

    row: int
    position: int
    choice: int
    params: SamplingParams
    banned: tuple[int, ...] = ()  # token ids that must not be sampled here (ignore_eos, min_tokens)
    history: History | None = None  # given exactly where params.has_penalties
    stops: frozenset[int] = frozenset()  # ids that end the answer: a chunk with this token pending is skipped
    mask: TokenMask | None = None  # a grammar's: no other token may come, not even if bans leave none


@dataclass(frozen=True, slots=True)
class StepBatch:
    moves: Sequence[Move] = ()
    moves_before: int = 0  # how many moves all earlier batches had together
    await_moves: bool = False  # the step ends only when its moves and all before them are over
    copies: Sequence[PageCopy] = ()
    saves: Sequence[RowSnapshot] = ()
    zero_rows: Sequence[int] = ()
    restores: Sequence[RowSnapshot] = ()
    chunks: Sequence[Chunk] = ()
    captures: Sequence[Capture] = ()
    scores: Sequence[Score] = ()
    samples: Sequence[Sample] = ()
    ahead: bool = False  # planned before the step submitted just before had ended

    @property
    def num_tokens(self) -> int:
        return sum(len(chunk.tokens) for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sampled token. NOT_FINITE or NO_TOKEN instead: the request fails; what is not finite is never published.

    Log probabilities are those of the model's own distribution (temperature 1, before any filter).
    """

    token: int
    logprob: float = 0.0
    top: tuple[tuple[int, float], ...] = ()  # params.num_logprobs best (id, logprob), best first; ties: lower id first


@dataclass(frozen=True, slots=True)
class StepResult:
    samples: tuple[Sampled, ...]  # aligned with StepBatch.samples
    captured: tuple[int, ...]  # snapshots written, by saves and captures; may be published now
    duration_s: float
    scores: tuple[float, ...] = ()  # aligned with StepBatch.scores: log probabilities; NaN where logits were not finite
    moves_over: int = 0  # the first so many moves of all batches are done


class Submitted(Protocol):
    """A step on its way."""

    @property
    def finished(self) -> bool:
        """Whether `result` has nothing to wait for. Rooms that compute on the calling thread say so at once."""

    def result(self) -> StepResult:
        """Waits for the step -> its result, the same each time; raises what made it fail."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A step that ended before `submit` returned."""

    known: StepResult
    finished: bool = True

    def result(self) -> StepResult:
        return self.known


class Backend(Protocol):
    """One loaded model on one device. Called from the compute thread only."""

    name: str  # "reference", "cpu" or "cuda"
    plan: MemoryPlan
    max_step_tokens: int  # most tokens one batch may carry

    def submit(self, batch: StepBatch) -> Submitted:
        """Begins a step. At most one other may be unfinished, and what that one reads and writes is not touched by this call.

        Raises what made the step fail, or StepRefusedError.
        """

    def run(self, batch: StepBatch) -> StepResult:
        """Submits a step and waits for it."""

    def close(self) -> None: ...
