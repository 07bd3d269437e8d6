"""One layer of each kind with random weights, and texts that run through it in any cuts, batches and order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

from svc.compute.backend import Capture, Chunk, StepBatch
from svc.compute.cpu import CpuOps
from svc.compute.step_inputs import build_step_inputs
from svc.gguf.gguf_file import GgufTensor
from svc.memory.layout import MemoryLayout
from svc.memory.plan import MemoryPlan
from svc.model.layers.attention import AttentionWeights
from svc.model.layers.delta import DeltaWeights
from svc.model.layers.dense_ffn import DenseFfnWeights
from svc.model.layers.moe_ffn import MoeFfnWeights
from svc.model.layers.rope import RopeTable

WIDTH = 64  # hidden size; a multiple of the 32-blocks
KEY_HEADS, VALUE_HEADS, STATE_SIZE, TAPS = 2, 4, 48, 4  # 48: a panel of 32 and one of 16
HEADS, KV_HEADS, HEAD_SIZE, ROTARY = 4, 2, 48, 20
PAGE_TOKENS = 32
MAX_PAGES = 48  # three segments of attention
LAYOUT = MemoryLayout(
    WIDTH, 1, KV_HEADS, HEAD_SIZE, 1, VALUE_HEADS, STATE_SIZE, STATE_SIZE,
    (2 * KEY_HEADS + VALUE_HEADS) * STATE_SIZE, TAPS - 1, PAGE_TOKENS, "f16",
)  # fmt: skip

Step = Sequence[tuple[int, int]]  # (text, tokens of it) in the order of the batch


class LayerWeights:
    """Random weights of a few types, prepared for one CpuOps. The same numbers for every one."""

    def __init__(self, ops: CpuOps) -> None:
        self._ops = ops
        self._random = np.random.default_rng(11)

    def matrix(self, kind: str, *shape: int) -> Any:
        values = self._random.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)
        packed = quants.quantize(values, GGMLQuantizationType[kind]).view(np.uint8).reshape(*shape[:-1], -1)
        return self._ops.weight(GgufTensor("random", shape, kind, packed))

    def vector(self, *shape: int, mean: float = 0.0) -> Any:
        return self._ops.vector(self._random.normal(mean, 0.3, shape).astype(np.float32))

    def delta(self) -> DeltaWeights:
        values = VALUE_HEADS * STATE_SIZE
        return DeltaWeights(
            0, KEY_HEADS, VALUE_HEADS, STATE_SIZE, STATE_SIZE, TAPS, 1e-6, False,
            self.vector(WIDTH, mean=1), self.matrix("Q8_0", LAYOUT.conv_channels, WIDTH), self.matrix("Q4_0", values, WIDTH),
            self.matrix("F32", VALUE_HEADS, WIDTH), self.matrix("BF16", VALUE_HEADS, WIDTH),
            self.vector(LAYOUT.conv_channels, TAPS), self.vector(VALUE_HEADS, mean=-1), self.vector(VALUE_HEADS),
            self.vector(STATE_SIZE, mean=1),
            self.matrix("Q8_0", WIDTH, values),
        )  # fmt: skip

    def attention(self) -> AttentionWeights:
        rows, kv_rows = HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE
        return AttentionWeights(
            0, HEADS, KV_HEADS, HEAD_SIZE, ROTARY, 1e-6, True,
            self.vector(WIDTH, mean=1), self.matrix("Q4_0", 2 * rows, WIDTH), self.matrix("F16", kv_rows, WIDTH),
            self.matrix("Q5_1", kv_rows, WIDTH), self.vector(HEAD_SIZE, mean=1), self.vector(HEAD_SIZE, mean=1),
            self.matrix("Q8_0", WIDTH, rows),
        )  # fmt: skip

    def dense(self) -> DenseFfnWeights:
        size = 96
        parts = (self.matrix("Q4_0", size, WIDTH), self.matrix("Q8_0", size, WIDTH), self.matrix("Q5_0", WIDTH, size))
        return DenseFfnWeights(1e-6, self.vector(WIDTH, mean=1), *parts)

    def moe(self) -> MoeFfnWeights:
        count, size, shared = 7, 32, 96
        return MoeFfnWeights(
            count, 3, 1.0, 1e-6, self.vector(WIDTH, mean=1), self.matrix("F32", count, WIDTH),
            self.matrix("Q4_0", count, size, WIDTH), self.matrix("Q8_0", count, size, WIDTH),
            self.matrix("Q4_1", count, WIDTH, size), self.vector(WIDTH),
            self.matrix("Q8_0", shared, WIDTH), self.matrix("Q8_0", shared, WIDTH),
            self.matrix("Q4_0", WIDTH, shared),
        )  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """All that an operation leaves behind of one text."""

    hidden: NDArray[np.float32]  # [n, WIDTH]
    row: NDArray[np.float32]  # the live row
    pages: NDArray[np.float16]  # its pages in order of position
    snapshots: NDArray[np.float32]  # one per capture


def text(number: int, length: int) -> NDArray[np.float32]:
    """The residual stream of a text [length, WIDTH]; a shorter one is a prefix of a longer one."""
    return np.random.default_rng(100 + number).normal(0, 1, (length, WIDTH)).astype(np.float32)


def run(
    ops: CpuOps, kind: str, lengths: Sequence[int], steps: Sequence[Step], captures: Sequence[tuple[int, int]] = ()
) -> list[Outcome]:
    """Runs texts of these lengths, from their start, through one layer, `kind` a method of LayerWeights.

    `steps` says which text advances by how many tokens; `captures` (text, position) in all. Rows, pages and snapshots of a text
    depend on the number of texts, so that no result can hang on them.
    """
    layer = getattr(LayerWeights(ops), kind)()
    count = len(lengths)
    caches = ops.caches(MemoryPlan(LAYOUT, count * MAX_PAGES, count, max(1, len(captures))))
    ops.zero_rows(caches, np.arange(count, dtype=np.int32))
    rope = RopeTable.of(ROTARY, 1e4)
    rows = [count - 1 - number for number in range(count)]
    pages = [np.arange(MAX_PAGES, dtype=np.int32)[::-1] * count + number for number in range(count)]
    texts = [text(number, length) for number, length in enumerate(lengths)]
    out: list[list[NDArray[np.float32]]] = [[] for _ in lengths]
    done = [0] * count
    for step in steps:
        chunks = [Chunk(rows[t], done[t], np.zeros(n, np.int32), pages[t][: -(-(done[t] + n) // PAGE_TOKENS)]) for t, n in step]
        wanted = [
            Capture(index, position, captures.index((t, position)))
            for index, (t, n) in enumerate(step)
            for position in range(done[t] + 1, done[t] + n + 1)
            if (t, position) in captures
        ]
        inputs = build_step_inputs(StepBatch(chunks=chunks, captures=wanted), rope)
        hidden = ops.empty((inputs.num_tokens, WIDTH))
        hidden[:] = np.concatenate([texts[t][done[t] : done[t] + n] for t, n in step])
        match kind:
            case "delta":
                ops.delta_mixer(hidden, layer, inputs, caches)
            case "attention":
                ops.attention_mixer(hidden, layer, inputs, caches)
            case "dense":
                ops.dense_ffn(hidden, layer, inputs)
            case "moe":
                ops.moe_ffn(hidden, layer, inputs)
        for index, (t, n) in enumerate(step):
            out[t].append(hidden[inputs.cu_seqlens[index] : inputs.cu_seqlens[index + 1]])
            done[t] += n
    assert done == list(lengths), "the steps do not cover the texts"
    snapshots = [[index for index, (owner, _) in enumerate(captures) if owner == t] for t in range(count)]
    return [
        Outcome(
            np.concatenate(out[t]), caches.rows[rows[t]].copy(), caches.kv[pages[t]].copy(), caches.snapshots[snapshots[t]].copy()
        )
        for t in range(count)
    ]
