"""Replaces pending tokens on the host, once the result of the previous step is known.

For backends that compute on the calling thread: they know it by then. The cuda backend does this on the device (cuda/pending.py),
except for samples with penalties, which count tokens on the host.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from svc.compute.backend import PENDING, Chunk, Sample, Sampled, StepBatch


def has_pending_history(batch: StepBatch) -> bool:
    """Whether the penalties of a sample count a token that is still pending."""
    return any(sample.history is not None and sample.history.tokens[-1] == PENDING for sample in batch.samples)


def resolve(batch: StepBatch, before: Sequence[Sample], sampled: Sequence[Sampled]) -> tuple[StepBatch, list[int]]:
    """The batch with the tokens that the previous step sampled, and the indices of the samples it keeps.

    A chunk is dropped if its token ends the answer or is not finite, together with the samples of its row.
    """
    tokens = {wanted.row: found.token for wanted, found in zip(before, sampled, strict=True)}
    ended = {wanted.row for wanted in before if tokens[wanted.row] < 0 or tokens[wanted.row] in wanted.stops}
    skipped = {chunk.row for chunk in batch.chunks if _is_pending(chunk) and chunk.row in ended}
    places = [index for index, chunk in enumerate(batch.chunks) if chunk.row not in skipped]
    moved = {old: new for new, old in enumerate(places)}
    left = [index for index, sample in enumerate(batch.samples) if sample.row not in skipped]
    resolved = replace(
        batch,
        chunks=[_with_token(batch.chunks[index], tokens) for index in places],
        captures=[replace(capture, chunk=moved[capture.chunk]) for capture in batch.captures],
        scores=[replace(score, chunk=moved[score.chunk]) for score in batch.scores],
        samples=[_with_history(batch.samples[index], tokens) for index in left],
    )
    return resolved, left


def _is_pending(chunk: Chunk) -> bool:
    return bool(chunk.tokens[0] == PENDING)


def _with_token(chunk: Chunk, tokens: dict[int, int]) -> Chunk:
    return chunk._replace(tokens=np.array([tokens[chunk.row]], np.int32)) if _is_pending(chunk) else chunk


def _with_history(sample: Sample, tokens: dict[int, int]) -> Sample:
    if sample.history is None or sample.history.tokens[-1] != PENDING:
        return sample
    known = np.append(sample.history.tokens[:-1], np.int32(tokens[sample.row]))
    return sample._replace(history=replace(sample.history, tokens=known))
