"""From the residual stream to hidden rows, and from hidden rows to logits."""

import numpy as np
from numpy.typing import NDArray

from svc.compute.reference.caches import ReferenceCaches
from svc.compute.reference.math import Float32, rms_norm
from svc.compute.reference.weights import ReferenceWeight
from svc.compute.step_inputs import HOLDS_ROW, WRITES_JOURNAL, StepInputs


def final_hidden(hidden: Float32, norm: Float32, epsilon: float, inputs: StepInputs, caches: ReferenceCaches) -> None:
    """norm(hidden) of each sequence's last token into its live row, of each captured token into its snapshot; or, by its mode, of
    each of its tokens into the journal."""
    for sequence, (row, mode) in enumerate(zip(inputs.rows, inputs.modes, strict=True)):
        start, end = inputs.cu_seqlens[sequence : sequence + 2]
        if mode & WRITES_JOURNAL:
            for token in range(start, end):
                caches.entry(row, inputs.positions[token])[-len(norm) :] = rms_norm(hidden[token], norm, epsilon)
        if not mode & HOLDS_ROW:
            caches.hidden[row] = rms_norm(hidden[end - 1], norm, epsilon)
    caches.snapshot_hidden(caches.snapshots)[inputs.capture_snapshots] = rms_norm(hidden[inputs.capture_tokens], norm, epsilon)


def hidden_rows(out: Float32, hidden: Float32, norm: Float32, epsilon: float, tokens: NDArray[np.int32]) -> None:
    """out[i] = norm(hidden[tokens[i]])."""
    out[:] = rms_norm(hidden[tokens], norm, epsilon)


def live_hidden(out: Float32, rows: NDArray[np.int32], caches: ReferenceCaches) -> None:
    """out[i] = hidden row of live row rows[i]."""
    out[:] = caches.hidden[rows]


def logits(out: Float32, output: ReferenceWeight, vectors: Float32) -> None:
    """out[i] = output . vectors[i]."""
    out[:] = output.dot(vectors)
