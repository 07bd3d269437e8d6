"""The contract between `slots` and `compute`: a step is one value, a `StepBatch`, and its outcome is one `StepResult`.

A backend runs a batch in this fixed order:

0. move pages and states between device and host (`moves`), one after the other,
1. copy pages (`copies`), and settle rows (`settles`): what is in their journals and was accepted goes into the live state,
2. save live rows into snapshots (`saves`), for states that are in a row already: the end of an answer, a cancelled request,
3. start rows: set to zero (`zero_rows`) or copy from a snapshot (`restores`),
4. forward over all tokens of all `chunks` as one batch; write `captures` (the state right after a token, in mid-chunk too) and
   the hidden row of each chunk's last token into its live row. A chunk of drafts leaves its live row as it is and writes what
   each token would change into the row's journal,
5. compute the log probability of given target tokens (`scores`) after tokens of the chunks,
6. sample (`samples`) from the hidden rows of live rows, written by this forward or by a restore; or, for a chunk of drafts, from
   that of the token before the sample's position.

`memory/` hands out the numbers; the backend owns every array. A page, row or snapshot number outside the plan is our bug (assert).

A step may be submitted before the previous one has ended (`StepBatch.ahead`). It may then evaluate a token that the previous step
samples, written as PENDING. Steps take effect in the order of submission. If the pending token ends its answer (it is among
`Sample.stops`) or its logits were not finite, the chunk is skipped: row, pages and hidden row stay as they are, and samples from
that row are meaningless. If the previous step fails, the later one is refused or its effects are meaningless.

Moves may take longer than the step that contains them: `StepResult.moves_over` counts the finished ones. They run in order, and
they see everything that earlier steps have written. No step may write a place that a pending move still uses; the backend
enforces it. No step may read a place that a pending move is filling; `memory/` and `slots` plan accordingly.
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from svc.compute.blocks import Blocks
from svc.compute.sampling.params import SamplingParams
from svc.memory.plan import MemoryPlan
from svc.memory.tiers import Move

PENDING = -1
"""In place of a token id: the token that the previous step samples for the same row."""


class StepRefusedError(RuntimeError):
    """The step was planned on top of one that failed."""


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copy one whole KV page (all layers)."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class RowSnapshot:
    """A live row and a snapshot; the field of the batch that holds the pair says the direction."""

    row: int
    snapshot_id: int


@dataclass(frozen=True, slots=True)
class Settle:
    """Take a live row from `start` to `end` tokens by replaying its journal, with the operations of the forward: the same bits.

    The journal holds those tokens; of later ones it forgets nothing until they are written again.
    """

    row: int
    start: int
    end: int  # start < end <= start + plan.journal_tokens


class Chunk(NamedTuple):
    """Consecutive tokens of one sequence: one token when decoding, many when prefilling or checking drafts."""

    row: int
    start: int  # absolute position of tokens[0]
    tokens: NDArray[np.int32]  # [n], n >= 1; PENDING alone, where n == 1 and nothing is captured or scored
    pages: NDArray[np.int32]  # block table: page of position p is pages[p // page_tokens]; covers [0, start + n)
    drafted: int = 0  # of the last tokens: they may be wrong. Then the live row stays at `start`, and the journal is written

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
    """The tokens before the sampled one, which penalties, DRY and bad words look at."""

    tokens: NDArray[np.int32]  # [Sample.position], the prompt first; the last may be PENDING
    num_prompt: int


@dataclass(frozen=True, slots=True)
class Score:
    """Ask for the log probability of the token `target`, given all tokens before `position`; the last of them is in a chunk."""

    chunk: int  # index into StepBatch.chunks
    position: int  # absolute, of the target; chunk.start < position <= chunk.end
    target: int


NOT_FINITE, NO_TOKEN = -1, -2
"""In place of a sampled token: the logits were not finite, or the mask allows no token."""

TokenMask = Callable[[], NDArray[np.uint32] | None]
"""Bit i % 32 of word i // 32 says whether token i is allowed; [ceil(V / 32)], or None: all are. Called on the compute thread, once
the forward of the step is on its way, so that the mask is made while the device works; it may be called again, with the same
outcome."""


ForcedTokens = Callable[[int], Sequence[int]]
"""The tokens that must follow the one that was sampled, as far as they are certain. Called on the compute thread."""


class Sample(NamedTuple):
    """Sample one token from the hidden row in live row `row`.

    Randomness is a pure function of (params.seed, choice, position): `position` is the absolute index the new token will have.
    """

    row: int
    position: int
    choice: int
    params: SamplingParams
    banned: tuple[int, ...] = ()  # token ids that must not be sampled here (ignore_eos, min_tokens)
    history: History | None = None  # given if and only if params.needs_history
    stops: frozenset[int] = frozenset()  # ids that end the answer: a chunk with this token pending is skipped
    mask: TokenMask | None = None  # a grammar's: no other token may come, not even if bans leave none
    learned: tuple[float, ...] = ()  # if params.learns: `Sampled.learned` of the token before, () for the first of an answer
    forced: ForcedTokens | None = None  # a grammar's, too


@dataclass(frozen=True, slots=True)
class StepBatch:
    moves: Sequence[Move] = ()
    moves_before: int = 0  # number of moves in all earlier batches
    await_moves: bool = False  # the step ends only after its moves and all earlier ones
    copies: Sequence[PageCopy] = ()
    settles: Sequence[Settle] = ()
    saves: Sequence[RowSnapshot] = ()
    zero_rows: Sequence[int] = ()
    restores: Sequence[RowSnapshot] = ()
    chunks: Sequence[Chunk] = ()
    captures: Sequence[Capture] = ()
    scores: Sequence[Score] = ()
    samples: Sequence[Sample] = ()
    ahead: bool = False  # planned before the previous step had ended

    @property
    def num_tokens(self) -> int:
        return sum(len(chunk.tokens) for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sampled token. NOT_FINITE or NO_TOKEN instead: the request fails; what is not finite is never published.

    Log probabilities are those of the model's own distribution (temperature 1, before any filter), or those of the draw if
    params.steps says so.
    """

    token: int
    logprob: float = 0.0
    top: tuple[tuple[int, float], ...] = ()  # params.num_logprobs best (id, logprob), best first; ties: lower id first
    learned: tuple[float, ...] = ()  # for the `Sample` of the next token
    forced: tuple[int, ...] = ()  # tokens that must follow, as `Sample.forced` says


@dataclass(frozen=True, slots=True)
class StepResult:
    samples: tuple[Sampled, ...]  # aligned with StepBatch.samples
    captured: tuple[int, ...]  # snapshots written by saves and captures; may be published now
    duration_s: float
    scores: tuple[float, ...] = ()  # aligned with StepBatch.scores: log probabilities; NaN if logits were not finite
    moves_over: int = 0  # finished moves, counted over all batches


class Slab(enum.Enum):
    """Where whole pages and states lie, by the name of the attribute of a backend's caches."""

    PAGES = "kv"
    SNAPSHOTS = "snapshots"
    HOST_PAGES = "host_kv"
    HOST_SNAPSHOTS = "host_snapshots"


class Submitted(Protocol):
    """A submitted step."""

    @property
    def finished(self) -> bool:
        """Whether `result` returns without waiting; always true for backends that compute on the calling thread."""

    def result(self) -> StepResult:
        """Waits for the step and returns its result, the same each time. Raises the error that made the step fail."""


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
        """Begins a step. At most one other may be unfinished, and this call does not disturb it.

        Raises the error that made the step fail, or StepRefusedError.
        """

    def run(self, batch: StepBatch) -> StepResult:
        """Submits a step and waits for it."""

    @property
    def read_anywhere(self) -> bool:
        """Whether `read_blocks` may be called on any thread, beside a running step: then what that step writes may be torn."""

    def read_blocks(self, slab: Slab, places: Sequence[int]) -> Blocks:
        """Copies of whole pages or states as bytes, as all steps and moves submitted so far leave them."""

    def write_blocks(self, slab: Slab, places: Sequence[int], blocks: Blocks) -> None:
        """Writes whole pages or states of the device, after all steps submitted so far and before all others."""

    def close(self) -> None: ...
