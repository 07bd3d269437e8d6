"""qwen3next: Qwen3-Next-80B-A3B, Qwen3-Coder-Next. Gated DeltaNet and gated attention, experts with a shared one.

Value heads are in the order of Hugging Face, grouped by key head: value head h belongs to key head h // r.
"""

import numpy as np
from numpy.typing import NDArray

from svc.model.arch.architecture import Architecture
from svc.model.arch.model import Ffn, Mixer
from svc.model.layers.attention import load_attention
from svc.model.layers.delta import DeltaProjections, load_delta
from svc.model.layers.loading import WeightLoader, row_gather
from svc.model.layers.moe_ffn import load_moe_ffn
from svc.model.model_config import ModelConfig, Traits


def load_layer(loader: WeightLoader, config: ModelConfig, layer: int) -> tuple[Mixer, Ffn]:
    mixer: Mixer
    if config.recurrent_layers[layer]:
        mixer = load_delta(loader, config, layer, load_projections(loader, config, layer), grouped_heads=True)
    else:
        mixer = load_attention(loader, config, layer, gated=True)
    return mixer, load_moe_ffn(loader, config, layer, norm="post_attention_norm")


def load_projections(loader: WeightLoader, config: ModelConfig, layer: int) -> DeltaProjections:
    """New files have `attn_qkv` and `attn_gate`, legacy ones `ssm_in`; both have beta and alpha in one `ssm_ba`."""
    block = f"blk.{layer}."
    width, values = config.hidden_size, config.num_value_heads * config.value_dim
    if loader.source.has(f"{block}ssm_in.weight"):
        fused = loader.source.take(f"{block}ssm_in.weight", (config.conv_channels + values, width))
        qkv_rows, gate_rows = ssm_in_rows(config)
        qkv = loader.prepare(row_gather(fused, qkv_rows, "qkv"))
        gate = loader.prepare(row_gather(fused, gate_rows, "gate"))
    else:
        qkv = loader.matrix(f"{block}attn_qkv.weight", config.conv_channels, width)
        gate = loader.matrix(f"{block}attn_gate.weight", values, width)
    both = loader.source.take(f"{block}ssm_ba.weight", (2 * config.num_value_heads, width))
    beta_rows, alpha_rows = ssm_ba_rows(config)
    return DeltaProjections(
        qkv=qkv,
        gate=gate,
        beta=loader.prepare(row_gather(both, beta_rows, "beta")),
        alpha=loader.prepare(row_gather(both, alpha_rows, "alpha")),
    )


def ssm_in_rows(config: ModelConfig) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Row numbers in a legacy `ssm_in` of q | k | v, and of z. It stores, per key head: q, k, r heads of v, r heads of z."""
    key, values = config.key_dim, config.value_dim * config.num_value_heads // config.num_key_heads
    groups = np.arange(config.num_key_heads * 2 * (key + values)).reshape(config.num_key_heads, -1)
    query, key_rows, value, gate = np.split(groups, np.cumsum([key, key, values]), axis=1)
    return np.concatenate([query.ravel(), key_rows.ravel(), value.ravel()]), gate.ravel()


def ssm_ba_rows(config: ModelConfig) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Row numbers in `ssm_ba` of beta and of alpha. It stores, per key head: r rows of beta, r rows of alpha."""
    groups = np.arange(2 * config.num_value_heads).reshape(config.num_key_heads, 2, -1)
    return groups[:, 0].ravel(), groups[:, 1].ravel()


ARCHITECTURE = Architecture(Traits(hybrid=True, experts=True, shared_expert=True, rotary_share=0.25), load_layer)
