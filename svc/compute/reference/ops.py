"""ReferenceOps: the operations in numpy float32, short and obvious. The oracle of the other backends, and the last resort.

It agrees with the others within a tolerance only: numpy's matrix products round differently for different numbers of rows.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from svc.compute.backend import Sample, Sampled, Slab, StepBatch
from svc.compute.blocks import Blocks, read_numpy, write_numpy
from svc.compute.ops import Caches, Ops, StepSizes
from svc.compute.reference import caches as cache_ops
from svc.compute.reference.attention_mixer import attention_mixer
from svc.compute.reference.caches import ReferenceCaches
from svc.compute.reference.delta_mixer import delta_mixer
from svc.compute.reference.dense_ffn import dense_ffn
from svc.compute.reference.embed import embed
from svc.compute.reference.logits import final_hidden, hidden_rows, live_hidden, logits
from svc.compute.reference.math import Float32
from svc.compute.reference.moe_ffn import moe_ffn
from svc.compute.reference.weights import DequantCache, ReferenceWeight, prepare
from svc.compute.sampling.chain import logprob, sample_rows
from svc.compute.step_inputs import StepInputs
from svc.compute.tier_moves import move_at_once
from svc.gguf.gguf_file import GgufTensor
from svc.memory.plan import MemoryPlan
from svc.model.model_config import ModelConfig

DEQUANT_CACHE_BYTES = 1 << 30


class ReferenceOps:
    """`Ops` in numpy: each operation is the function of the same name in the file of the same name."""

    name = "reference"
    copies_weights = False
    asynchronous = False

    def __init__(self, dequant_cache_bytes: int = DEQUANT_CACHE_BYTES) -> None:
        """`dequant_cache_bytes`: bytes of weights that may stay in memory as float32; the rest is dequantized at each use."""
        self._dequant_cache = DequantCache(dequant_cache_bytes)
        self._moves_over = 0

    def bytes_for_caches(self, sizes: StepSizes, weights_bytes: int) -> None:
        """The caches are in the machine's memory."""

    def reserve(self, config: ModelConfig, plan: MemoryPlan, max_step_tokens: int, logit_rows: int) -> None:
        """numpy allocates as it goes."""

    def logprobs(self, logits: Float32, rows: Sequence[int], targets: Sequence[int]) -> list[float]:
        return [logprob(logits[row], target) for row, target in zip(rows, targets, strict=True)]

    def sample(self, logits: Float32, rows: Sequence[int], samples: Sequence[Sample]) -> Callable[[], list[Sampled]]:
        drawn = sample_rows(logits, rows, samples)
        return lambda: drawn

    def submit(self, forward: Callable[[Float32, StepInputs], None], hidden: Float32, inputs: StepInputs) -> None:
        forward(hidden[: inputs.num_tokens], inputs)

    def mark(self) -> Callable[[], None]:
        """Operations are synchronous: there is nothing to wait for."""
        return lambda: None

    def close(self) -> None:
        """Nothing to close."""

    def weight(self, tensor: GgufTensor, progress: Callable[[int], None] | None = None) -> ReferenceWeight | list[ReferenceWeight]:
        return prepare(tensor, self._dequant_cache)

    def vector(self, values: NDArray[np.float32]) -> Float32:
        return np.ascontiguousarray(values, np.float32)

    def empty(self, shape: tuple[int, ...]) -> Float32:
        return np.full(shape, np.nan, np.float32)

    def to_numpy(self, array: Float32) -> Float32:
        return array

    def caches(self, plan: MemoryPlan) -> ReferenceCaches:
        return ReferenceCaches(plan)

    def move(self, caches: ReferenceCaches, batch: StepBatch) -> None:
        move_at_once(caches, batch.moves, cache_ops.restore_from_host)
        self._moves_over = batch.moves_before + len(batch.moves)

    def moves_over(self, *, all_of_them: bool) -> int:
        return self._moves_over

    def read_blocks(self, caches: ReferenceCaches, slab: Slab, places: Sequence[int]) -> Blocks:
        return read_numpy(getattr(caches, slab.value), places)

    def write_blocks(self, caches: ReferenceCaches, slab: Slab, places: Sequence[int], blocks: Blocks) -> None:
        write_numpy(getattr(caches, slab.value), places, blocks)

    copy_pages = staticmethod(cache_ops.copy_pages)
    settle_rows = staticmethod(cache_ops.settle_rows)
    save_rows = staticmethod(cache_ops.save_rows)
    restore_rows = staticmethod(cache_ops.restore_rows)
    zero_rows = staticmethod(cache_ops.zero_rows)

    embed = staticmethod(embed)
    delta_mixer = staticmethod(delta_mixer)
    attention_mixer = staticmethod(attention_mixer)
    dense_ffn = staticmethod(dense_ffn)
    moe_ffn = staticmethod(moe_ffn)
    final_hidden = staticmethod(final_hidden)
    hidden_rows = staticmethod(hidden_rows)
    live_hidden = staticmethod(live_hidden)
    logits = staticmethod(logits)


__all__ = ["Caches", "Ops", "ReferenceOps"]
