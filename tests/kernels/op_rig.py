"""A step for one operation: random weights, a batch of sequences with a past, and caches full of NaN around them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

from svc.compute.backend import Capture, Chunk, StepBatch
from svc.compute.ops import Ops
from svc.compute.step_inputs import StepInputs, build_step_inputs
from svc.gguf.gguf_file import GgufTensor
from svc.memory.layout import MemoryLayout
from svc.memory.plan import MemoryPlan
from svc.model.layers.rope import RopeTable
from tests.kernels.backends import KernelBackend

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

# (start, tokens) per sequence: alone and together, from the start and with a past, around pages, tiles and the convolution.
BATCHES: list[list[tuple[int, int]]] = [
    [(0, 1)],
    [(0, 2)],
    [(0, 3)],
    [(1, 1)],
    [(5, 2)],
    [(0, 63)],
    [(17, 65)],
    [(7, 1), (0, 65)],
    [(1, 1), (0, 2), (31, 3)],
    [(0, 3), (16, 1), (15, 2), (64, 1), (0, 17)],
]
BATCH_IDS = ["+".join(f"{start}:{start + count}" for start, count in batch) for batch in BATCHES]
PAGE_TOKENS = 16


class Weights:
    """Random weights in a backend, and their exact float64 values. `kind`: their GGUF type."""

    def __init__(self, ops: Ops, seed: int, kind: str = "F32") -> None:
        self._ops = ops
        self._random = np.random.default_rng(seed)
        self._kind = kind

    def matrix(self, *shape: int) -> tuple[Any, Float64]:
        """Scaled so that a product with numbers in the order of 1 is in the order of 1."""
        values = self._random.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)
        kind = GGMLQuantizationType[self._kind]
        packed = quants.quantize(values, kind).view(np.uint8).reshape(*shape[:-1], -1)
        exact = quants.dequantize(packed.reshape(-1, packed.shape[-1]), kind).reshape(shape)
        return self._ops.weight(GgufTensor("random", shape, self._kind, packed)), exact.astype(np.float64)

    def vector(self, *shape: int, mean: float = 0.0, spread: float = 1.0) -> tuple[Any, Float64]:
        values = self._random.normal(mean, spread, shape).astype(np.float32)
        return self._ops.vector(values), values.astype(np.float64)

    def norm(self, size: int) -> tuple[Any, Float64]:
        return self.vector(size, mean=1.0, spread=0.2)


class OpRig:
    """One backend with the caches of one layout and one batch. Sequence i has live row rows[i], its pages are scattered."""

    def __init__(
        self,
        backend: KernelBackend,
        layout: MemoryLayout,
        batch: Sequence[tuple[int, int]],
        *,
        seed: int = 0,
        rotary_dims: int = 0,
        captures: Sequence[tuple[int, int]] = (),
        vocabulary: int = 50,
        journal_tokens: int = 0,
    ) -> None:
        """`captures`: (sequence, position), each into a snapshot of its own: see `snapshots`. With a journal all but the first
        token of a sequence are drafts."""
        self.backend = backend
        self.ops = backend.make()
        self.random = np.random.default_rng(seed)
        num_pages = [-(-(start + count) // layout.page_tokens) for start, count in batch]
        free_pages = self.random.permutation(sum(num_pages) + 3).astype(np.int32)
        self.rows = self.random.permutation(len(batch) + 2)[: len(batch)].tolist()
        self.snapshots = self.random.permutation(len(captures) + 2)[: len(captures)].tolist()
        self.plan = MemoryPlan(layout, len(free_pages), len(batch) + 2, len(captures) + 2, journal_tokens=journal_tokens)
        self.caches = self.ops.caches(self.plan)
        self.batch = list(batch)
        self.captures = list(captures)
        self.pages = np.split(free_pages, np.cumsum(num_pages))[:-1]
        tokens = [self.random.integers(0, vocabulary, count).astype(np.int32) for _, count in batch]
        chunks = [
            Chunk(row, start, ids, pages, (len(ids) - 1) * bool(journal_tokens))
            for row, (start, _), ids, pages in zip(self.rows, batch, tokens, self.pages, strict=True)
        ]
        wanted = [
            Capture(chunk, position, snapshot_id) for (chunk, position), snapshot_id in zip(captures, self.snapshots, strict=True)
        ]
        rope = RopeTable.of(rotary_dims, 1e4) if rotary_dims else None
        self.inputs: StepInputs = build_step_inputs(StepBatch(chunks=chunks, captures=wanted), rope)
        self.poison()

    def poison(self) -> None:
        """NaN everywhere: memory that was not written must not matter."""
        for slab in (self.caches.kv, self.caches.rows, self.caches.snapshots, self.caches.journal):
            there = self.backend.read(slab)  # bytes are those of blocks, whose scales get NaN
            self.backend.write(slab, np.full_like(there, 0xFF if there.dtype == np.uint8 else np.nan))

    def hidden(self, width: int) -> tuple[Any, Float64]:
        """A random residual stream [T, width] in the backend, and its values."""
        values = self.random.normal(0, 1, (self.inputs.num_tokens, width)).astype(np.float32)
        return self.device(values), values.astype(np.float64)

    def device(self, values: Float32) -> Any:
        array = self.ops.empty(values.shape)
        self.backend.write(array, values)
        return array

    def spans(self) -> list[slice]:
        """The tokens of each sequence in the step."""
        return [slice(*ends) for ends in zip(self.inputs.cu_seqlens, self.inputs.cu_seqlens[1:], strict=False)]


def middle_captures(batch: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """After the first token, one in the middle and the last token of each sequence, without repeats."""
    return [
        (sequence, start + offset)
        for sequence, (start, count) in enumerate(batch)
        for offset in sorted({1, (count + 1) // 2, count})
    ]


def attention_layout(num_kv_heads: int, head_dim: int, kv_type: str, layers: int = 2, hidden: int = 40) -> MemoryLayout:
    return MemoryLayout(hidden, layers, num_kv_heads, head_dim, 0, 0, 0, 0, 0, 0, PAGE_TOKENS, kv_type)


def delta_layout(key_heads: int, value_heads: int, size: int, kernel: int, layers: int = 2, hidden: int = 40) -> MemoryLayout:
    channels = (2 * key_heads + value_heads) * size
    return MemoryLayout(hidden, 0, 1, 16, layers, value_heads, size, size, channels, kernel - 1, PAGE_TOKENS, "f32")
