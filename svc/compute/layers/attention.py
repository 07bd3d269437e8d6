"""Weights of a full-attention mixer (ARCH_SPEC 5); ungated for the attention-only controls."""

from dataclasses import dataclass
from typing import Any


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
