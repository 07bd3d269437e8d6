"""A step's metadata as int32 arrays, made once from a StepBatch and shared by every layer.

The arrays are host (numpy) arrays; a device backend copies them into fixed buffers of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from svc.compute.backend import StepBatch
from svc.model.layers.rope import RopeTable

Int32 = NDArray[np.int32]
WRITES_JOURNAL, HOLDS_ROW = 1, 2  # bits of a sequence's mode: its tokens go into the row's journal; its live row stays as it is
DRAFTED = WRITES_JOURNAL | HOLDS_ROW


@dataclass(frozen=True, slots=True)
class StepInputs:
    """B sequences with T tokens in all, the tokens of a sequence consecutive, sequences in the order of the batch's chunks."""

    tokens: Int32  # [T]
    positions: Int32  # [T] absolute position of each token
    cu_seqlens: Int32  # [B + 1] first token of each sequence; the last entry is T
    rows: Int32  # [B] live row of each sequence
    modes: Int32  # [B] bits of each sequence; 0: it advances its live row and leaves no trace in the journal
    block_table: Int32  # [B, max_pages] page numbers, -1 beyond a sequence's pages
    capture_tokens: Int32  # [n] index into [0, T) of the token after which to capture, ascending
    capture_snapshots: Int32  # [n]
    cu_captures: Int32  # [B + 1] first capture of each sequence
    rope_cos: NDArray[np.float32]  # [T, rotary / 2] ([T, 0] without rotary layers)
    rope_sin: NDArray[np.float32]

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_sequences(self) -> int:
        return len(self.rows)


def pairs(items: Sequence[tuple[int, int]]) -> Int32:
    """[n, 2] int32, for n == 0 too."""
    return np.array(items, dtype=np.int32).reshape(-1, 2)


def build_step_inputs(batch: StepBatch, rope: RopeTable | None) -> StepInputs:
    """Flattens the chunks of a batch. The batch must have at least one chunk."""
    lengths = [len(chunk.tokens) for chunk in batch.chunks]
    cu_seqlens = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=cu_seqlens[1:])
    positions = np.concatenate([np.arange(p.start, p.end, dtype=np.int32) for p in batch.chunks])
    block_table = np.full((len(lengths), max(len(p.pages) for p in batch.chunks)), -1, np.int32)
    for index, chunk in enumerate(batch.chunks):
        block_table[index, : len(chunk.pages)] = chunk.pages

    captures = sorted(
        (int(cu_seqlens[c.chunk]) + c.position - 1 - batch.chunks[c.chunk].start, c.snapshot_id) for c in batch.captures
    )
    capture_tokens = np.array([token for token, _ in captures], np.int32)
    cos, sin = rope.rows(positions) if rope else (np.zeros((len(positions), 0), np.float32),) * 2
    return StepInputs(
        tokens=np.concatenate([p.tokens for p in batch.chunks]).astype(np.int32, copy=False),
        positions=positions,
        cu_seqlens=cu_seqlens,
        rows=np.array([p.row for p in batch.chunks], np.int32),
        modes=np.array([DRAFTED if p.drafted else 0 for p in batch.chunks], np.int32),
        block_table=block_table,
        capture_tokens=capture_tokens,
        capture_snapshots=np.array([snapshot_id for _, snapshot_id in captures], np.int32),
        cu_captures=np.searchsorted(capture_tokens, cu_seqlens).astype(np.int32),
        rope_cos=cos,
        rope_sin=sin,
    )
