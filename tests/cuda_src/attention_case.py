"""Random steps for the attention kernels, and their expected results in float64, from a separate implementation."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from svc.compute.cuda.attention import (
    AttentionInputs,
    AttentionPlan,
    AttentionProjected,
    attention_core,
    plan_attention,
    workspace_floats,
)
from svc.compute.cuda.device import Device
from svc.memory.layout import KV_TYPE_BYTES, MemoryLayout
from svc.model.layers.attention import AttentionWeights

Float64 = NDArray[np.float64]
Floats = NDArray[np.floating]
EPSILON = 1e-6
LAYER, LAYERS = 1, 2  # the second of two: offsets inside a page count


@dataclass(frozen=True)
class Shape:
    heads: int
    kv_heads: int
    size: int
    rotary: int
    gated: bool = True
    page_tokens: int = 16
    kv_type: str = "f16"
    normed: bool = True
    biased: bool = False
    interleaved: bool = False

    def __str__(self) -> str:
        kinds = {"gated": self.gated, "unnormed": not self.normed, "biased": self.biased, "interleaved": self.interleaved}
        words = "".join(f"-{kind}" for kind, there in kinds.items() if there)
        return f"{self.heads}of{self.kv_heads}x{self.size}r{self.rotary}{words}-{self.page_tokens}-{self.kv_type}"

    @property
    def layout(self) -> MemoryLayout:
        return MemoryLayout(
            hidden_size=8,
            num_attention_layers=LAYERS,
            num_kv_heads=self.kv_heads,
            head_dim=self.size,
            num_delta_layers=0,
            num_value_heads=0,
            key_dim=0,
            value_dim=0,
            conv_channels=0,
            conv_rows=0,
            page_tokens=self.page_tokens,
            kv_type=self.kv_type,
        )


@dataclass
class Case:
    """`batch`: (tokens before the step, tokens in the step) of each sequence. Pages are shuffled; memory that was not written is
    NaN."""

    shape: Shape
    batch: Sequence[tuple[int, int]]
    padding: frozenset[int] = frozenset()  # sequences whose row is negative
    extra_tokens: int = 0  # after the last sequence
    seed: int = 0
    random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        shape, self.random = self.shape, np.random.default_rng(self.seed)
        self.cu_seqlens = np.cumsum([0, *(count for _, count in self.batch)]).astype(np.int32)
        self.num_tokens = int(self.cu_seqlens[-1]) + self.extra_tokens
        self.positions = np.zeros(self.num_tokens, np.int32)
        for sequence, (start, count) in enumerate(self.batch):
            self.positions[self.span(sequence)] = np.arange(start, start + count)
        self.rows = np.array([-1 if s in self.padding else 7 - s for s in range(len(self.batch))], np.int32)
        self._make_pages()

        self.query = self.normal(self.num_tokens, shape.heads, shape.size * (2 if shape.gated else 1))
        self.key, self.value = (self.normal(self.num_tokens, shape.kv_heads, shape.size) for _ in range(2))
        self.query_norm, self.key_norm = (1 + 0.2 * self.normal(shape.size) for _ in range(2))
        heads = (shape.heads, shape.kv_heads, shape.kv_heads)
        self.biases = [self.normal(count, shape.size) for count in heads] if shape.biased else None
        angles = self.positions[:, None] * 1e4 ** (-np.arange(0, shape.rotary, 2) / shape.rotary)
        self.cos, self.sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def normal(self, *shape: int) -> NDArray[np.float32]:
        return self.random.standard_normal(shape).astype(np.float32)

    def span(self, sequence: int) -> slice:
        return slice(int(self.cu_seqlens[sequence]), int(self.cu_seqlens[sequence + 1]))

    def _make_pages(self) -> None:
        layout = self.shape.layout
        counts = [-(-(start + count) // layout.page_tokens) for start, count in self.batch]
        numbers = 1 + self.random.permutation(sum(counts) + 2).astype(np.int32)  # nobody has page 0: NaN for whoever reads it
        self.block_table = np.full((len(self.batch), max(counts) + 1), -1, np.int32)
        for sequence, count in enumerate(counts):
            if sequence not in self.padding:
                self.block_table[sequence, :count] = numbers[sum(counts[:sequence]) :][:count]
        dtype = np.dtype(f"f{KV_TYPE_BYTES[layout.kv_type]}")
        self.slab = np.full((len(numbers) + 1, layout.page_elements), np.nan, dtype)
        for sequence, (start, _) in enumerate(self.batch):
            if sequence not in self.padding:
                self.put(self.slab, sequence, 0, *(self.normal(start, layout.num_kv_heads, layout.head_dim) for _ in range(2)))

    def put(self, slab: Floats, sequence: int, first: int, keys: Floats, values: Floats) -> None:
        """keys, values [n, H_kv, D] of positions from `first` on."""
        blocks = self.blocks(slab)
        for i in range(len(keys)):
            page, slot = divmod(first + i, self.shape.page_tokens)
            blocks[self.block_table[sequence, page], LAYER, :, :, slot] = keys[i], values[i]

    def blocks(self, slab: Floats) -> Floats:
        """[pages, layer, K or V, H_kv, row, D]"""
        return slab.reshape(len(slab), LAYERS, 2, self.shape.kv_heads, self.shape.page_tokens, self.shape.size)

    # -- on a device --------------------------------------------------------------------------------------------------------------
    def run(self, device: Device, plan: AttentionPlan | None = None) -> tuple[NDArray[np.float32], Floats]:
        """out [T, H, D] and the slab afterwards."""
        shape, put = self.shape, device.from_host
        step = AttentionInputs(
            positions=put(self.positions),
            cu_seqlens=put(self.cu_seqlens),
            rows=put(self.rows),
            block_table=put(self.block_table),
            rope_cos=put(self.cos),
            rope_sin=put(self.sin),
            plan=plan or plan_attention(self.cu_seqlens, self.positions),
        )
        norms = (put(self.query_norm), put(self.key_norm)) if shape.normed else (None, None)
        biases = map(put, self.biases) if self.biases else (None,) * 3
        sizes = (LAYER, shape.heads, shape.kv_heads, shape.size, shape.rotary, EPSILON, shape.gated)
        layer = AttentionWeights(*sizes, None, None, None, None, *norms, None, shape.interleaved, *biases)
        slab, out = put(self.slab), device.empty((self.num_tokens, shape.heads * shape.size), np.float32)
        projected = AttentionProjected(put(self.query), put(self.key), put(self.value))
        floats = workspace_floats(layer, step.plan, step.num_sequences)
        workspace = device.empty((floats,), np.float32) if floats else None
        attention_core(device, out, projected, layer, slab, shape.layout, step, workspace)
        return device.to_host(out).reshape(self.num_tokens, shape.heads, shape.size), device.to_host(slab)

    # -- in float64 ---------------------------------------------------------------------------------------------------------------
    def expected_slab(self) -> Floats:
        slab = self.slab.copy()
        for sequence, (start, _) in enumerate(self.batch):
            if sequence not in self.padding:
                span, (_, key, value) = self.span(sequence), self._with_biases()
                self.put(slab, sequence, start, self._turned(key, self.key_norm)[span], value[span])
        return slab

    def expected_out(self, slab: Floats) -> Float64:
        """From the keys and values in `slab`: rounding them is not what these tests are about."""
        shape, out = self.shape, np.zeros((self.num_tokens, self.shape.heads, self.shape.size))
        query, blocks = self._turned(self._with_biases()[0], self.query_norm), self.blocks(slab).astype(np.float64)
        for sequence, (start, count) in enumerate(self.batch):
            if sequence in self.padding:
                continue
            context = np.arange(start + count)
            pages = self.block_table[sequence, context // shape.page_tokens]
            keys, values = np.moveaxis(blocks[pages, LAYER, :, :, context % shape.page_tokens], 1, 0)  # each [n, H_kv, D]
            for i, token in enumerate(range(*self.span(sequence).indices(self.num_tokens))):
                seen = start + i + 1
                for head in range(shape.heads):
                    kv_head = head // (shape.heads // shape.kv_heads)
                    scores = keys[:seen, kv_head] @ query[token, head] / np.sqrt(shape.size)
                    weights = np.exp(scores - scores.max())
                    out[token, head] = weights @ values[:seen, kv_head] / weights.sum()
        if shape.gated:
            out /= 1 + np.exp(-self.query[..., shape.size :].astype(np.float64))
        return out

    def _with_biases(self) -> list[Float64]:
        """q, k and v."""
        projected = (self.query[..., : self.shape.size], self.key, self.value)
        biases = self.biases or (0, 0, 0)
        return [x.astype(np.float64) + bias for x, bias in zip(projected, biases, strict=True)]

    def _turned(self, x: Float64, weight: NDArray[np.float32]) -> Float64:
        wide, half = x.copy(), self.shape.rotary // 2
        if self.shape.normed:
            wide *= weight / np.sqrt(np.mean(wide**2, axis=-1, keepdims=True) + EPSILON)
        pairs = wide[..., : 2 * half]
        first, second = (pairs[..., ::2], pairs[..., 1::2]) if self.shape.interleaved else (pairs[..., :half], pairs[..., half:])
        turned = (first + 1j * second) * (self.cos + 1j * self.sin.astype(np.float64))[:, None]
        first[...], second[...] = turned.real, turned.imag
        return wide
