"""Weights of a full-attention mixer (ARCH_SPEC 5); ungated for the attention-only controls."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from svc.model.layers.loading import WeightLoader, row_slice
from svc.model.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """H query heads, H_kv key/value heads of head_dim D; rotary over the first `rotary_dims` dimensions of a head."""

    index: int  # number among the attention layers: where its K and V stand in a page (memory/layout.py)
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
    query_norm: Any  # vector [D]
    key_norm: Any  # vector [D]
    output: Any  # weight [C, H * D]


def load_attention(loader: WeightLoader, config: ModelConfig, layer: int, *, gated: bool) -> AttentionWeights:
    """From `attn_q`, `attn_k`, `attn_v`, or from a fused `attn_qkv` (rows q with gate | k | v)."""
    block = f"blk.{layer}."
    width, head_dim = config.hidden_size, config.head_dim
    query_rows = config.num_heads * head_dim * (2 if gated else 1)
    kv_rows = config.num_kv_heads * head_dim
    if loader.source.has(f"{block}attn_qkv.weight"):
        fused = loader.source.take(f"{block}attn_qkv.weight", (query_rows + 2 * kv_rows, width))
        bounds = [0, query_rows, query_rows + kv_rows, query_rows + 2 * kv_rows]
        query, key, value = (loader.prepare(row_slice(fused, *ends)) for ends in pairwise(bounds))
    else:
        query = loader.matrix(f"{block}attn_q.weight", query_rows, width)
        key = loader.matrix(f"{block}attn_k.weight", kv_rows, width)
        value = loader.matrix(f"{block}attn_v.weight", kv_rows, width)
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
        query_norm=loader.vector(f"{block}attn_q_norm.weight", (head_dim,)),
        key_norm=loader.vector(f"{block}attn_k_norm.weight", (head_dim,)),
        output=loader.matrix(f"{block}attn_output.weight", width, config.num_heads * head_dim),
    )
