"""Perplexity as llama-perplexity measures it: log probabilities of the second half of each chunk of a text.

A chunk here is llama-perplexity's: n_ctx tokens that start from an empty state, of which the first half is context only. Several
run at once, each in a live row of its own, and a step evaluates any part of each. On the cpu device neither changes a bit. The
sums are taken in the order of the text.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from svc.compute.backend import Backend, Chunk, Score, StepBatch

Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]
MIN_CHUNK_TOKENS = 4  # one of them is scored


@dataclass(frozen=True, slots=True)
class Perplexity:
    """`value` +/- `error` (one standard error) over `num_scored` tokens whose mean negative log probability is `mean_nll`."""

    value: float
    error: float
    mean_nll: float
    num_scored: int


def first_scored(chunk_tokens: int) -> int:
    """Position in a chunk of the first token whose probability counts: one more than half of the chunk."""
    return chunk_tokens // 2 + 1


def cut(tokens: Int32, chunk_tokens: int, bos_id: int | None = None) -> Int32:
    """[n] -> whole chunks [n // chunk_tokens, chunk_tokens]; the rest of the text is dropped.

    `bos_id` replaces the first token of every chunk, for models that need a BOS token.
    """
    assert chunk_tokens >= MIN_CHUNK_TOKENS, chunk_tokens
    num_chunks = len(tokens) // chunk_tokens
    chunks = np.array(tokens[: num_chunks * chunk_tokens], np.int32).reshape(num_chunks, chunk_tokens)
    if bos_id is not None:
        chunks[:, 0] = bos_id
    return chunks


def estimate(nll: Float64) -> Perplexity:
    """From negative log probabilities [n] in the order of the text, n >= 1; the error is infinite if n is 1."""
    mean = float(nll.mean())
    variance = max(float(np.square(nll).mean()) - mean * mean, 0.0)
    value = math.exp(mean)
    error = math.sqrt(variance / (len(nll) - 1)) * value if len(nll) > 1 else math.inf
    return Perplexity(value, error, mean, len(nll))


def score_chunks(backend: Backend, chunks: Int32, on_step: Callable[[int, Float64], None] = lambda done, nll: None) -> Float64:
    """Negative log probabilities of the scored half of each chunk, [n, chunk_tokens - first_scored]; NaN for broken logits.

    Uses all rows of the backend's plan, which must have pages for a chunk in each. After every step, `on_step` gets the number of
    tokens done in all and the array so far, with NaN for unknown entries.
    """
    first = first_scored(chunks.shape[1])
    nll = np.full((len(chunks), chunks.shape[1] - first), np.nan)
    num_done = 0
    for work in _steps(backend, chunks):
        batch = StepBatch(
            zero_rows=[part.row for part in work if part.start == 0],
            chunks=[part.step_chunk for part in work],
            scores=[score for index, part in enumerate(work) for score in part.scores(index, first)],
        )
        results = iter(backend.run(batch).scores)
        for part in work:
            for position in part.scored(first):
                nll[part.chunk, position - first] = -next(results)
        num_done += batch.num_tokens
        on_step(num_done, nll)
    return nll


@dataclass(frozen=True, slots=True)
class _Part:
    """One chunk's share of a step: tokens [start, end) of it, in a live row."""

    chunk: int
    row: int
    start: int
    end: int
    tokens: Int32 = field(repr=False)  # the whole chunk
    pages: Int32 = field(repr=False)

    @property
    def step_chunk(self) -> Chunk:
        return Chunk(self.row, self.start, self.tokens[self.start : self.end], self.pages)

    def scored(self, first: int) -> range:
        """Positions of the tokens that this part predicts."""
        return range(max(self.start + 1, first), self.end + 1)

    def scores(self, index: int, first: int) -> list[Score]:
        return [Score(index, position, int(self.tokens[position])) for position in self.scored(first)]


def _steps(backend: Backend, chunks: Int32) -> Iterator[list[_Part]]:
    """Every free row takes the next chunk; the tokens of a step are divided evenly among the busy rows.

    The last token of a chunk is only predicted, never evaluated.
    """
    num_evaluated = chunks.shape[1] - 1
    pages_per_row = -(-num_evaluated // backend.plan.layout.page_tokens)
    assert pages_per_row * backend.plan.num_rows <= backend.plan.num_pages or not backend.plan.layout.page_elements, "too few pages"
    waiting = iter(range(len(chunks)))
    at: dict[int, tuple[int, int]] = {}  # row -> (chunk, tokens done)
    while True:
        for row in range(backend.plan.num_rows):
            if row not in at and (chunk := next(waiting, None)) is not None:
                at[row] = chunk, 0
        if not at:
            return
        work = []
        left = backend.max_step_tokens
        for index, (row, (chunk, start)) in enumerate(sorted(at.items())):
            count = min(left // (len(at) - index), num_evaluated - start)
            if count:
                pages = np.arange(pages_per_row, dtype=np.int32) + row * pages_per_row
                work.append(_Part(chunk, row, start, start + count, chunks[chunk], pages))
                left -= count
        yield work
        for part in work:
            at[part.row] = part.chunk, part.end
            if part.end == num_evaluated:
                del at[part.row]
