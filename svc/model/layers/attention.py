"""Weights of a full-attention mixer; gate, head norms and biases exist in some architectures (docs/model_math.md)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from svc.model.layers.loading import WeightLoader, row_slice
from svc.model.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """H query heads, H_kv key/value heads of head_dim D; rotary over the first `rotary_dims` dimensions of a head."""

    index: int  # number among the attention layers: the place of its K and V in a page (memory/layout.py)
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dims: int
    epsilon: float
    gated: bool  # query rows are, per head, D of q then D of the output gate

    input_norm: Any  # vector [C]
    query: Any  # weight [H * D * (2 if gated else 1), C]
    key: Any  # weight [H_kv * D, C]
    value: Any  # weight [H_kv * D, C]
    query_norm: Any  # vector [D], or None: heads are not normed
    key_norm: Any  # vector [D], or None
    output: Any  # weight [C, H * D]
    interleaved: bool = False  # the rotation pairs dimensions 2 j and 2 j + 1; otherwise j and j + rotary_dims / 2
    query_bias: Any = None  # vector [H * D], or None; added to the product, before norm and rotation. Not with a gate
    key_bias: Any = None  # vector [H_kv * D], or None
    value_bias: Any = None  # vector [H_kv * D], or None


def load_attention(
    loader: WeightLoader,
    config: ModelConfig,
    layer: int,
    *,
    gated: bool = False,
    head_norms: bool = True,
    biased: bool = False,
    interleaved: bool = False,
) -> AttentionWeights:
    """From `attn_q`, `attn_k`, `attn_v`, or from a fused `attn_qkv` (rows q with gate | k | v)."""
    assert not (gated and biased), "no kernel adds a bias to a gate"
    block = f"blk.{layer}."
    width, head_dim = config.hidden_size, config.head_dim
    query_rows = config.num_heads * head_dim * (2 if gated else 1)
    kv_rows = config.num_kv_heads * head_dim
    query, key, value = _projections(loader, block, (query_rows, kv_rows, kv_rows), width)
    biases = _biases(loader, block, (query_rows, kv_rows, kv_rows)) if biased else (None,) * 3
    return AttentionWeights(
        index=config.mixer_index(layer),
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=head_dim,
        rotary_dims=config.rotary_dims,
        epsilon=config.epsilon,
        gated=gated,
        input_norm=loader.vector(f"{block}attn_norm.weight", (width,)),
        query=query,
        key=key,
        value=value,
        query_norm=loader.vector(f"{block}attn_q_norm.weight", (head_dim,)) if head_norms else None,
        key_norm=loader.vector(f"{block}attn_k_norm.weight", (head_dim,)) if head_norms else None,
        output=loader.matrix(f"{block}attn_output.weight", width, config.num_heads * head_dim),
        interleaved=interleaved,
        query_bias=biases[0],
        key_bias=biases[1],
        value_bias=biases[2],
    )


def has_biases(loader: WeightLoader, layer: int) -> bool:
    """Whether the file adds biases to this layer's q, k and v."""
    names = ("attn_qkv", "attn_q", "attn_k", "attn_v")
    return any(loader.source.has(f"blk.{layer}.{name}.bias") for name in names)


def _projections(loader: WeightLoader, block: str, rows: Sequence[int], width: int) -> list[Any]:
    """The weights of q, k and v, with these numbers of rows."""
    if not loader.source.has(f"{block}attn_qkv.weight"):
        return [loader.matrix(f"{block}attn_{name}.weight", size, width) for name, size in zip("qkv", rows, strict=True)]
    fused = loader.source.take(f"{block}attn_qkv.weight", (sum(rows), width))
    return [loader.prepare(row_slice(fused, *ends)) for ends in pairwise(accumulate(rows, initial=0))]


def _biases(loader: WeightLoader, block: str, sizes: Sequence[int]) -> list[Any]:
    """The vectors added to q, k and v."""
    if not loader.source.has(f"{block}attn_qkv.bias"):
        return [loader.vector(f"{block}attn_{name}.bias", (size,)) for name, size in zip("qkv", sizes, strict=True)]
    return loader.vectors(f"{block}attn_qkv.bias", sizes)
