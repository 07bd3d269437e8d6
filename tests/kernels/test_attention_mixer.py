"""Attention over pages against float64: outputs and pages, in any batch and with any past."""

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from svc.model.layers.attention import AttentionWeights
from tests.kernels import oracle
from tests.kernels.backends import KernelBackend
from tests.kernels.op_rig import BATCH_IDS, BATCHES, PAGE_TOKENS, OpRig, Weights, attention_layout
from tests.tolerances import KERNEL_F16_PAGES

EPSILON = 1e-6
WIDTH = 40
LAYER = 1  # the second of two: offsets inside a page count
Float64 = NDArray[np.float64]
ABSENT = (None, None)


@dataclass(frozen=True)
class Shape:
    heads: int
    kv_heads: int
    size: int
    rotary: int
    gated: bool
    normed: bool = True
    biased: bool = False
    interleaved: bool = False

    def __str__(self) -> str:
        kinds = {"g": self.gated, "u": not self.normed, "b": self.biased, "i": self.interleaved}
        return f"{self.heads}of{self.kv_heads}x{self.size}r{self.rotary}{''.join(kind for kind, there in kinds.items() if there)}"


SHAPES = [
    Shape(4, 2, 32, 8, True),
    Shape(3, 1, 16, 16, False),
    Shape(6, 3, 48, 20, True),
    Shape(2, 2, 64, 64, False),
    Shape(4, 2, 48, 48, False, normed=False, biased=True),  # qwen2
    Shape(3, 1, 64, 64, False, normed=False, interleaved=True),  # llama
    Shape(4, 2, 32, 20, False, biased=True, interleaved=True),  # all of it
]


class Case:
    def __init__(self, backend: KernelBackend, shape: Shape, batch: list[tuple[int, int]], kv_type: str, kind: str = "F32") -> None:
        self.shape = shape
        layout = attention_layout(shape.kv_heads, shape.size, kv_type, hidden=WIDTH)
        self.rig = OpRig(backend, layout, batch, rotary_dims=shape.rotary, seed=len(batch))
        weights, rows = Weights(self.rig.ops, seed=2, kind=kind), shape.heads * shape.size
        parts = {
            "input_norm": weights.norm(WIDTH),
            "query": weights.matrix(rows * (2 if shape.gated else 1), WIDTH),
            "key": weights.matrix(shape.kv_heads * shape.size, WIDTH),
            "value": weights.matrix(shape.kv_heads * shape.size, WIDTH),
            "query_norm": weights.norm(shape.size) if shape.normed else ABSENT,
            "key_norm": weights.norm(shape.size) if shape.normed else ABSENT,
            "output": weights.matrix(WIDTH, rows),
        }
        for name, size in (
            ("query_bias", rows),
            ("key_bias", shape.kv_heads * shape.size),
            ("value_bias", shape.kv_heads * shape.size),
        ):
            parts[name] = weights.vector(size) if shape.biased else ABSENT
        self.exact = {name: exact for name, (_, exact) in parts.items()}
        self.layer = AttentionWeights(
            index=LAYER,
            num_heads=shape.heads,
            num_kv_heads=shape.kv_heads,
            head_dim=shape.size,
            rotary_dims=shape.rotary,
            epsilon=EPSILON,
            gated=shape.gated,
            interleaved=shape.interleaved,
            **{name: part for name, (part, _) in parts.items()},
        )
        self.hidden, self.values = self.rig.hidden(WIDTH)
        self.expected_hidden = self.values.copy()
        slab = np.array(backend.read(self.rig.caches.kv))
        self.expected_kv = slab.copy()
        for sequence in range(len(batch)):
            self.fill(sequence, slab)
        backend.write(self.rig.caches.kv, slab)

    def fill(self, sequence: int, slab: NDArray[np.floating]) -> None:
        """Gives a sequence a random past in its pages and works out its outputs and its pages afterwards."""
        shape, w = self.shape, self.exact
        start, count = self.rig.batch[sequence]
        past = self.rig.random.normal(0, 1, (2, start, shape.kv_heads, shape.size)).astype(slab.dtype)
        span = self.rig.spans()[sequence]
        x = oracle.norm(self.values[span], w["input_norm"], EPSILON)
        query = self.projected(x, "query", shape.heads)
        gate = oracle.sigmoid(query[..., shape.size :]) if shape.gated else np.ones((count, shape.heads, shape.size))
        key, value = (self.projected(x, name, shape.kv_heads) for name in ("key", "value"))
        query = self.turned(query[..., : shape.size], w["query_norm"], start)
        key = self.turned(key, w["key_norm"], start)
        keys, values = np.concatenate([past[0], key]), np.concatenate([past[1], value])
        out = np.zeros((count, shape.heads, shape.size))
        for t in range(count):
            for h in range(shape.heads):
                kv = h // (shape.heads // shape.kv_heads)
                out[t, h] = oracle.attend(query[t, h], keys[: start + t + 1, kv], values[: start + t + 1, kv])
        self.expected_hidden[span] += (out * gate).reshape(count, -1) @ w["output"].T
        for position in range(start + count):
            self.put(self.expected_kv, sequence, position, keys[position], values[position])
            if position < start:
                self.put(slab, sequence, position, past[0, position], past[1, position])

    def projected(self, x: Float64, name: str, heads: int) -> Float64:
        bias = self.exact[f"{name}_bias"]
        return (x @ self.exact[name].T + (0 if bias is None else bias)).reshape(len(x), heads, -1)

    def turned(self, x: Float64, weight: Float64 | None, start: int) -> Float64:
        x = x if weight is None else oracle.norm(x, weight, EPSILON)
        way = (self.shape.rotary, 1e4, self.shape.interleaved)
        return np.array([[oracle.rotate(head, start + t, *way) for head in x[t]] for t in range(len(x))])

    def put(self, slab: NDArray[np.floating], sequence: int, position: int, key: Float64, value: Float64) -> None:
        """Inside a page: layer, K then V, KV head, row, dimension (memory/layout.py)."""
        page = slab[self.rig.pages[sequence][position // PAGE_TOKENS]]
        blocks = page.reshape(2, 2, self.shape.kv_heads, PAGE_TOKENS, self.shape.size)
        blocks[LAYER, 0, :, position % PAGE_TOKENS] = key
        blocks[LAYER, 1, :, position % PAGE_TOKENS] = value

    def check(self, tolerance: float) -> None:
        read = self.rig.backend.read
        np.testing.assert_allclose(read(self.hidden), self.expected_hidden, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(read(self.rig.caches.kv), self.expected_kv, rtol=tolerance, atol=tolerance)

    def run(self) -> None:
        self.rig.ops.attention_mixer(self.hidden, self.layer, self.rig.inputs, self.rig.caches)


@pytest.mark.parametrize("batch", BATCHES, ids=BATCH_IDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_float64(backend: KernelBackend, shape: Shape, batch: list[tuple[int, int]]) -> None:
    """Grouped heads, partial and full rotary of halves and of neighbours, with and without gate, norms and biases; positions
    that are not written are NaN, before and after."""
    case = Case(backend, shape, batch, "f32")
    case.run()
    case.check(backend.tolerance("F32"))


@pytest.mark.parametrize("batch", [BATCHES[0], BATCHES[6], BATCHES[-1]], ids=[BATCH_IDS[0], BATCH_IDS[6], BATCH_IDS[-1]])
def test_f16_pages(backend: KernelBackend, batch: list[tuple[int, int]]) -> None:
    """Keys and values rounded to half precision when written, and read back from there."""
    case = Case(backend, SHAPES[0], batch, "f16")
    case.run()
    case.check(KERNEL_F16_PAGES)


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_weight_types(backend: KernelBackend, kind: str) -> None:
    case = Case(backend, SHAPES[2], BATCHES[-1], "f32", kind)
    case.run()
    case.check(backend.tolerance(kind))
