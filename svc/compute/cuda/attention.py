"""The core of an attention layer: everything between the input and output projections (docs/model_math.md)."""

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np

from svc.compute.cuda.device import Device, DeviceArray, Stream
from svc.compute.step_inputs import Int32
from svc.memory.layout import MemoryLayout
from svc.model.layers.attention import AttentionWeights

# Tokens of a split of the context in decoding: long enough that partial results are 3 % of the traffic, short enough that a context
# of 4,000 has work for every multiprocessor. The bits of a result depend on it.
SPLIT_TOKENS = 256
# Sequences with more tokens than this in the step use the prefill kernel. A warp has 16 rows, so a few drafts cost nothing.
MOST_DECODE_TOKENS = 8
# Thread blocks that keep a GPU busy: two for each multiprocessor of the largest. With more splits a block takes several.
WANTED_BLOCKS = 264

ROWS = 16  # query rows of a warp, cuda_src/include/attention.cuh
LOG2_E = math.log2(math.e)


class KvType(Enum):
    """Types of KV pages, by their names in memory/layout.py."""

    F16 = "f16"
    F32 = "f32"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"

    @property
    def defines(self) -> dict[str, int | str]:
        """The -D names that cuda_src/include/kv_pages.cuh reads: the C type of an element, and the bits of a number in blocks."""
        match self:
            case KvType.F16:
                return {"KV": "__half"}
            case KvType.F32:
                return {"KV": "float"}
            case KvType.Q8_0:
                return {"KV": "u8", "KV_BITS": 8}
            case KvType.Q4_0:
                return {"KV": "u8", "KV_BITS": 4}

    @property
    def wide(self) -> bool:
        """Whether a number takes two halves in shared memory."""
        return self is not KvType.F16


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Host numbers of a step that shape its launches, the same for all layers; upper bounds if a graph serves many steps.

    A sequence of up to `decode_tokens` tokens is decoded in splits; a longer one uses the prefill kernel. With `decode_tokens` 0
    all use the prefill kernel, and a row then has the same bits however its prompt was cut.
    """

    decode_tokens: int
    max_splits: int  # of the context of a decoded sequence
    long_tokens: int  # of all sequences longer than decode_tokens
    num_long: int  # such sequences


def plan_attention(cu_seqlens: Int32, positions: Int32, *, most_decode_tokens: int = MOST_DECODE_TOKENS) -> AttentionPlan:
    """For a step with these host arrays (as in StepInputs, without padding)."""
    lengths = np.diff(cu_seqlens)
    contexts = positions[cu_seqlens[1:] - 1] + 1
    decoded = lengths <= most_decode_tokens
    return AttentionPlan(
        decode_tokens=int(lengths[decoded].max(initial=0)),
        max_splits=-(-int(contexts[decoded].max(initial=0)) // SPLIT_TOKENS),
        long_tokens=int(lengths[~decoded].sum()),
        num_long=int((~decoded).sum()),
    )


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """Arrays of StepInputs on the device, as the attention kernels need them.

    There may be padding: sequences with a negative row, tokens after cu_seqlens[-1]. Their pages are neither read nor written, and
    their outputs are zero.
    """

    positions: DeviceArray  # [T] int32
    cu_seqlens: DeviceArray  # [B + 1] int32
    rows: DeviceArray  # [B] int32
    block_table: DeviceArray  # [B, max_pages] int32
    rope_cos: DeviceArray  # [T, rotary / 2] float32
    rope_sin: DeviceArray
    plan: AttentionPlan

    @property
    def num_tokens(self) -> int:
        return self.positions.shape[0]

    @property
    def num_sequences(self) -> int:
        return self.rows.shape[0]


@dataclass(frozen=True, slots=True)
class AttentionProjected:
    """Projections of all tokens of the step, float32: query [T, H * D], or [T, H * 2 D] if the layer is gated (per head D of q,
    then D of the gate); key and value [T, H_kv * D]. The q part of `query` is overwritten."""

    query: DeviceArray
    key: DeviceArray
    value: DeviceArray


def workspace_floats(layer: AttentionWeights, plan: AttentionPlan, num_sequences: int) -> int:
    """Float32 elements of the scratch memory that all layers share: D sums and two numbers for each split of a row."""
    return num_sequences * plan.decode_tokens * layer.num_heads * plan.max_splits * (layer.head_dim + 2)


def attention_core(
    device: Device,
    out: DeviceArray,
    projected: AttentionProjected,
    layer: AttentionWeights,
    kv: DeviceArray,
    layout: MemoryLayout,
    step: AttentionInputs,
    workspace: DeviceArray | None,
    stream: Stream | None = None,
) -> None:
    """out [T, H * D] = softmax(q k^T / sqrt(D)) v [* sigmoid(gate)], after biases, norms and rotation,
    with K and V in pages.

    `kv` is the slab [num_pages, page_elements]. `workspace` [>= workspace_floats] may be None if nothing is decoded.
    """
    call = _Call(device, out, projected, layer, kv, layout, step, stream)
    call.write_pages()
    if step.plan.decode_tokens:
        assert workspace is not None
        assert workspace.size >= workspace_floats(layer, step.plan, step.num_sequences)
        call.decode(workspace)
    if step.plan.long_tokens:
        call.prefill()


@dataclass(frozen=True, slots=True)
class _Geometry:
    """Values for the -D names of a kernel, and its dynamic shared memory."""

    warps: int
    keys: int
    shared_bytes: int


def prefill_geometry(arch: int, head_dim: int, kv: KvType) -> _Geometry:
    """A tile shared by all warps, and 16 queries each. Not measured yet.

    float16 pages and heads of 256 take 99 KiB: all that sm_86 and sm_120 have, two blocks on sm_90. sm_75 has 64 KiB.
    """
    wide = kv.wide
    warps, keys = (2, 16) if wide else (4, 32)
    if arch < 80:
        warps, keys = warps // 2, 16
    return _Geometry(warps, keys, _tile_bytes(keys, head_dim, wide) + warps * _query_bytes(head_dim))


def decode_geometry(arch: int, head_dim: int, kv: KvType) -> _Geometry:
    """A tile of 16 keys for each warp, 16 queries for all. Four warps with heads of 256 have 68 KB in flight."""
    wide = kv.wide
    warps, keys = (2 if wide else 4), 16
    if arch < 80:
        warps //= 2
    return _Geometry(warps, keys, warps * _tile_bytes(keys, head_dim, wide) + _query_bytes(head_dim))


def _tile_bytes(keys: int, head_dim: int, wide: bool) -> int:
    """Bytes of TILE_HALVES in cuda_src/include/attention.cuh: keys and values, and their low parts."""
    return 2 * (2 if wide else 1) * keys * (head_dim + 8) * 2


def _query_bytes(head_dim: int) -> int:
    return 2 * ROWS * (head_dim + 8) * 2


@dataclass(frozen=True, slots=True)
class _Call:
    device: Device
    out: DeviceArray
    projected: AttentionProjected
    layer: AttentionWeights
    kv: DeviceArray
    layout: MemoryLayout
    step: AttentionInputs
    stream: Stream | None

    def __post_init__(self) -> None:
        layer, layout, tokens = self.layer, self.layout, self.step.num_tokens
        assert (layer.head_dim, layer.num_kv_heads) == (layout.head_dim, layout.num_kv_heads)
        assert layer.num_heads % layer.num_kv_heads == 0
        assert layer.query_bias is None or not layer.gated
        assert layer.head_dim in range(16, 257, 16)
        assert self.out.size == tokens * layer.num_heads * layer.head_dim
        assert self.projected.query.size == tokens * layer.num_heads * self.query_stride
        assert self.projected.key.size == self.projected.value.size == tokens * layer.num_kv_heads * layer.head_dim
        assert self.step.rope_cos.shape == self.step.rope_sin.shape == (tokens, layer.rotary_dims // 2)
        assert self.kv.shape[1] == layout.page_elements

    @property
    def kv_type(self) -> KvType:
        return KvType(self.layout.kv_type)

    @property
    def query_stride(self) -> int:
        return self.layer.head_dim * (2 if self.layer.gated else 1)

    @property
    def gate(self) -> DeviceArray | None:
        """The gates: that of the first head, and each next one query_stride later."""
        query, head_dim = self.projected.query, self.layer.head_dim
        return query.view((query.size - head_dim,), offset_bytes=4 * head_dim) if self.layer.gated else None

    @property
    def pages(self) -> tuple[int, int, int, int, int]:
        """table_width, page_tokens, page_elements, key_offset, value_offset."""
        layout = self.layout
        table_width = self.step.block_table.shape[1]
        return (
            table_width,
            layout.page_tokens,
            layout.page_elements,
            layout.key_offset(self.layer.index),
            layout.kv_block_elements,
        )

    @property
    def scale(self) -> float:
        """Scale of the scores, for exponents to base 2."""
        return LOG2_E / math.sqrt(self.layer.head_dim)

    def defines(self, geometry: _Geometry | None = None) -> dict[str, int | str]:
        sizes: dict[str, int | str] = {"HEAD_DIM": self.layer.head_dim, **self.kv_type.defines}
        return sizes | ({"WARPS": geometry.warps, "KEYS": geometry.keys} if geometry else {})

    def write_pages(self) -> None:
        layer, step, projected = self.layer, self.step, self.projected
        args = (
            *(projected.query, projected.key, projected.value, layer.query_bias, layer.key_bias, layer.value_bias),
            *(layer.query_norm, layer.key_norm, step.rope_cos, step.rope_sin),
            *(self.kv, step.block_table, step.positions, step.cu_seqlens, step.rows, self.out),
            *(
                step.num_sequences,
                layer.num_heads,
                layer.num_kv_heads,
                self.query_stride,
                layer.rotary_dims // 2,
                int(layer.interleaved),
            ),
            *(*self.pages, layer.epsilon),
        )
        grid = (step.num_tokens, -(-(layer.num_heads + 2 * layer.num_kv_heads) // 4))
        kernel = self.device.module("qk_norm_rope_kv", self.defines()).kernel("qk_norm_rope_kv")
        self.device.launch(kernel, grid, (128,), args, stream=self.stream)

    def decode(self, workspace: DeviceArray) -> None:
        layer, step, plan = self.layer, self.step, self.step.plan
        geometry = decode_geometry(self.device.arch, layer.head_dim, self.kv_type)
        module = self.device.module("attention_decode", self.defines(geometry))
        num_partial = step.num_sequences * plan.decode_tokens * layer.num_heads * plan.max_splits
        sums = workspace.view((num_partial, layer.head_dim))
        stats = workspace.view((num_partial, 2), offset_bytes=sums.nbytes)

        row_tiles = -(-plan.decode_tokens * layer.num_heads // layer.num_kv_heads // ROWS)
        others = layer.num_kv_heads * row_tiles * step.num_sequences
        grid = (min(plan.max_splits, -(-WANTED_BLOCKS // others)), layer.num_kv_heads * row_tiles, step.num_sequences)
        lists = (step.positions, step.cu_seqlens, step.rows)
        args = (
            *(self.projected.query, self.kv, step.block_table, *lists, sums, stats),
            *(layer.num_heads, layer.num_kv_heads, self.query_stride, *self.pages),
            *(plan.decode_tokens, SPLIT_TOKENS, plan.max_splits, self.scale),
        )
        block = (32 * geometry.warps,)
        self.device.launch(module.kernel("attention_split"), grid, block, args, geometry.shared_bytes, self.stream)

        grid, block = (layer.num_heads, plan.decode_tokens, step.num_sequences), (-(-layer.head_dim // 32) * 32,)
        tail = (layer.num_heads, self.query_stride, plan.decode_tokens, SPLIT_TOKENS, plan.max_splits)
        merge = (sums, stats, self.gate, *lists, self.out, *tail)
        self.device.launch(module.kernel("attention_merge"), grid, block, merge, stream=self.stream)

    def prefill(self) -> None:
        layer, step, plan = self.layer, self.step, self.step.plan
        geometry = prefill_geometry(self.device.arch, layer.head_dim, self.kv_type)
        kernel = self.device.module("attention_prefill", self.defines(geometry)).kernel("attention_prefill")
        # Each sequence starts a new tile; a block without a tile returns at once.
        tiles = plan.long_tokens * (layer.num_heads // layer.num_kv_heads) // (geometry.warps * ROWS) + plan.num_long
        args = (
            *(self.projected.query, self.gate, self.kv, step.block_table, step.positions, step.cu_seqlens, step.rows, self.out),
            *(step.num_sequences, layer.num_heads, layer.num_kv_heads, self.query_stride, *self.pages),
            *(plan.decode_tokens, self.scale),
        )
        grid, block = (tiles, layer.num_kv_heads), (32 * geometry.warps,)
        self.device.launch(kernel, grid, block, args, geometry.shared_bytes, self.stream)
