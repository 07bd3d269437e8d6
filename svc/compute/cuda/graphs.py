"""Decode steps as recorded graphs: one launch from the host instead of several hundred.

Sizes and addresses of a graph are fixed, so a step is padded to one of a few shapes: a bucket of sequences, and a bound on their
contexts. Padding sequences have a negative row and touch nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from svc.compute.cuda.attention import SPLIT_TOKENS, AttentionPlan
from svc.compute.cuda.device import Device, Graph
from svc.compute.cuda.device_inputs import DECODE_BUCKETS, StepLimits
from svc.compute.step_inputs import StepInputs


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """`sequences` of one token each, with contexts of up to `splits` splits. `exact`: as in InputsUploader."""

    sequences: int
    splits: int
    exact: bool = False

    @property
    def attention_plan(self) -> AttentionPlan:
        if self.exact:
            return AttentionPlan(decode_tokens=0, max_splits=0, long_tokens=self.sequences, num_long=self.sequences)
        return AttentionPlan(decode_tokens=1, max_splits=self.splits, long_tokens=0, num_long=0)

    @classmethod
    def of(cls, inputs: StepInputs, limits: StepLimits, *, exact: bool = False) -> "DecodeShape | None":
        """The smallest shape that holds a step; None if no graph can: prefill, captures, drafts, more sequences than any
        bucket."""
        count = inputs.num_sequences
        sequences = next((bucket for bucket in DECODE_BUCKETS if count <= bucket <= limits.sequences), None)
        if inputs.num_tokens != count or len(inputs.capture_tokens) or inputs.modes.any() or sequences is None:
            return None
        splits = -(-(int(inputs.positions.max()) + 1) // SPLIT_TOKENS)
        rounded = 1 << (splits - 1).bit_length()
        if exact or not limits.query_rows:
            return cls(sequences, rounded, exact)
        most_splits = limits.split_floats // (sequences * limits.query_rows)
        return cls(sequences, min(most_splits, rounded)) if splits <= most_splits else None

    def padded(self, inputs: StepInputs, limits: StepLimits) -> StepInputs:
        """The step padded to this shape's number of sequences and to a block table for its contexts."""
        extra = self.sequences - inputs.num_sequences
        width = min(limits.table_width, -(-self.splits * SPLIT_TOKENS // limits.page_tokens))
        table = np.full((self.sequences, width), -1, np.int32)
        known = inputs.block_table[:, :width]
        table[: len(known), : known.shape[1]] = known
        return replace(
            inputs,
            tokens=np.pad(inputs.tokens, (0, extra), constant_values=-1),
            positions=np.pad(inputs.positions, (0, extra)),
            cu_seqlens=np.arange(self.sequences + 1, dtype=np.int32),
            rows=np.pad(inputs.rows, (0, extra), constant_values=-1),
            modes=np.pad(inputs.modes, (0, extra)),
            block_table=table,
            cu_captures=np.zeros(self.sequences + 1, np.int32),
            rope_cos=np.pad(inputs.rope_cos, ((0, extra), (0, 0))),
            rope_sin=np.pad(inputs.rope_sin, ((0, extra), (0, 0))),
        )


class DecodeGraphs:
    """Owner of the graphs. A shape is launched kernel by kernel the first time, which may compile kernels, and recorded the
    second time."""

    def __init__(self) -> None:
        self._graphs: dict[DecodeShape, Graph | None] = {}

    def __len__(self) -> int:
        """Number of recorded graphs."""
        return sum(graph is not None for graph in self._graphs.values())

    def run(self, device: Device, shape: DecodeShape, work: Callable[[], None]) -> None:
        """Runs `work`, or its graph. For one shape `work` must always queue the same, apart from the contents of arrays."""
        if shape not in self._graphs:
            self._graphs[shape] = None
            work()
            return
        graph = self._graphs[shape]
        if graph is None:
            graph = self._graphs[shape] = device.capture(work)
        graph.launch()
