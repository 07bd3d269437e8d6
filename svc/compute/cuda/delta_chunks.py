"""Plans the chunked delta rule: which sequences of a step use it, and in which chunks. Numbers only, once per step."""

from dataclasses import dataclass

import numpy as np

from svc.compute.step_inputs import Int32, StepInputs

CHUNK = 64  # most tokens of a chunk, as in cuda_src/include/delta.cuh
# Sequences of at most this many tokens are evaluated token by token (STEP_TOKENS in cuda_src/delta_decode.cu): a chunk costs as
# much as 64 tokens however few it has.
STEP_TOKENS = 8
# `step_tokens` of a plan without chunks: all tokens one by one, so that a state has the same bits however it was reached.
ALL_STEPS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """chunks [n, 4]: first token in the step, tokens, first capture, captures after the chunk's last token. cu_chunks [B + 1]:
    first chunk of each sequence. Sequences of at most `step_tokens` tokens have no chunks; `any_steps`: there are some."""

    chunks: Int32
    cu_chunks: Int32
    step_tokens: int
    any_steps: bool

    @property
    def num_chunks(self) -> int:
        return len(self.chunks)

    def rounds(self, most: int) -> list[tuple[Int32, Int32]]:
        """(chunks, cu_chunks) of at most `most` chunks each, to run one after the other."""
        starts = range(0, self.num_chunks, most) if most else ()
        return [(self.chunks[a : a + most], np.clip(self.cu_chunks - a, 0, min(most, self.num_chunks - a))) for a in starts]


def plan_chunks(inputs: StepInputs, step_tokens: int = STEP_TOKENS) -> ChunkPlan:
    """A chunk ends after CHUNK tokens, at absolute positions that CHUNK divides and after a captured token.

    With the absolute grid, the rounding of a long text does not depend on how its prefill was divided into steps on that grid.
    Padding sequences (negative rows) have no chunks.
    """
    chunks: list[tuple[int, int, int, int]] = []
    cu_chunks, any_steps = [0], False
    for sequence, row in enumerate(inputs.rows.tolist()):
        start, end = inputs.cu_seqlens[sequence : sequence + 2].tolist()
        if row >= 0 and end - start > step_tokens:
            chunks += _chunks_of(inputs, sequence, start, end)
        any_steps |= row >= 0 and start < end <= start + step_tokens
        cu_chunks.append(len(chunks))
    return ChunkPlan(np.array(chunks, np.int32).reshape(-1, 4), np.array(cu_chunks, np.int32), step_tokens, any_steps)


def most_chunks(num_tokens: int, num_sequences: int, num_captures: int) -> int:
    """Upper bound on the chunks of a step."""
    return min(num_tokens, num_tokens // CHUNK + 2 * num_sequences + num_captures)


def _chunks_of(inputs: StepInputs, sequence: int, start: int, end: int) -> list[tuple[int, int, int, int]]:
    capture, end_capture = inputs.cu_captures[sequence : sequence + 2].tolist()
    captured = inputs.capture_tokens[capture:end_capture].tolist()
    to_grid = CHUNK - int(inputs.positions[start]) % CHUNK
    ends = sorted({*range(start + to_grid, end, CHUNK), *(token + 1 for token in captured), end})
    chunks = []
    for first, after in zip([start, *ends], ends, strict=False):
        count = captured.count(after - 1)
        chunks.append((first, after - first, capture, count))
        capture += count
    return chunks
