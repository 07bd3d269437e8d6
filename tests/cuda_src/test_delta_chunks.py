"""The plan of chunks: which tokens go together through the chunked delta rule."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from svc.compute.cuda.delta_chunks import CHUNK, STEP_TOKENS, most_chunks, plan_chunks
from tests.cuda_src.delta_case import DeltaCase, Piece, Shape

SHAPE = Shape(1, 1, 16, 16)
pieces = st.builds(
    lambda row, length, start, dones: Piece(row, length, tuple((min(done, length), 0) for done in sorted(dones)), start),
    st.sampled_from([0, 1, 2, -1]),
    st.integers(1, 200),
    st.integers(0, 300),
    st.lists(st.integers(1, 200), max_size=4),
)


@given(st.lists(pieces, min_size=1, max_size=4), st.integers(0, STEP_TOKENS))
def test_chunks_cover_long_sequences(pieces: list[Piece], step_tokens: int) -> None:
    """Chunks are the tokens of all long sequences in order; none crosses a grid position or a captured token; a capture of
    a long sequence is at the end of its chunk, once."""
    inputs = DeltaCase(SHAPE, pieces).inputs()
    plan = plan_chunks(inputs, step_tokens)
    assert plan.num_chunks <= most_chunks(inputs.num_tokens, len(pieces), len(inputs.capture_tokens))
    captured = []
    for sequence, piece in enumerate(pieces):
        chunks = plan.chunks[plan.cu_chunks[sequence] : plan.cu_chunks[sequence + 1]]
        long = piece.row >= 0 and piece.num_tokens > step_tokens
        covered = [t for first, tokens, _, _ in chunks for t in range(first, first + tokens)]
        assert covered == (list(range(*inputs.cu_seqlens[sequence : sequence + 2])) if long else [])
        for first, tokens, capture, count in chunks:
            assert 1 <= tokens <= CHUNK
            inside = inputs.positions[first + 1 : first + tokens] % CHUNK
            assert np.all(inside != 0)
            assert not set(inputs.capture_tokens) & set(range(first, first + tokens - 1))
            assert set(inputs.capture_tokens[capture : capture + count]) <= {first + tokens - 1}
            captured += range(capture, capture + count)
        if not long:
            captured += range(*inputs.cu_captures[sequence : sequence + 2])
    assert captured == list(range(len(inputs.capture_tokens)))
    assert plan.any_steps == any(piece.row >= 0 and piece.num_tokens <= step_tokens for piece in pieces)
