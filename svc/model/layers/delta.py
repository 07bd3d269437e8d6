"""Weights of a Gated DeltaNet mixer, in one form for all architectures (docs/model_math.md).

Files store them as `ssm_ba`, `ssm_in`, `attn_qkv` and so on; the operations know only the form below.
"""

from dataclasses import dataclass
from typing import Any

from svc.model.layers.loading import WeightLoader
from svc.model.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class DeltaWeights:
    """K = num_key_heads * key_dim, V = num_value_heads * value_dim; channels = 2 K + V in the order q | k | v."""

    index: int  # number among the DeltaNet layers: the place of its state (memory/layout.py)
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    epsilon: float  # of the norms and of the L2 norm
    grouped_heads: bool  # value head h uses key head h // r (qwen3next) rather than h % num_key_heads (qwen35*)

    input_norm: Any  # vector [C]
    qkv: Any  # weight [channels, C]
    gate: Any  # weight [V, C], z
    beta: Any  # weight [num_value_heads, C]
    alpha: Any  # weight [num_value_heads, C]
    conv: Any  # vector [channels, conv_kernel], last tap = current token
    a: Any  # vector [num_value_heads], -exp(A_log)
    dt_bias: Any  # vector [num_value_heads]
    output_norm: Any  # vector [value_dim]
    output: Any  # weight [C, V]

    @property
    def channels(self) -> int:
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class DeltaProjections:
    """The four input matrices, in the form of DeltaWeights."""

    qkv: Any
    gate: Any
    beta: Any
    alpha: Any


def load_delta(
    loader: WeightLoader, config: ModelConfig, layer: int, projections: DeltaProjections, *, grouped_heads: bool
) -> DeltaWeights:
    """Loads the parts that all architectures store alike; the projections differ and are given."""
    block = f"blk.{layer}."
    width, values = config.hidden_size, config.num_value_heads * config.value_dim
    heads = (config.num_value_heads,)
    return DeltaWeights(
        index=config.mixer_index(layer),
        num_key_heads=config.num_key_heads,
        num_value_heads=config.num_value_heads,
        key_dim=config.key_dim,
        value_dim=config.value_dim,
        conv_kernel=config.conv_kernel,
        epsilon=config.epsilon,
        grouped_heads=grouped_heads,
        input_norm=loader.vector(f"{block}attn_norm.weight", (width,)),
        qkv=projections.qkv,
        gate=projections.gate,
        beta=projections.beta,
        alpha=projections.alpha,
        conv=loader.vector(f"{block}ssm_conv1d.weight", (config.conv_channels, config.conv_kernel)),
        a=loader.vector(f"{block}ssm_a", heads),
        dt_bias=loader.vector(loader.source.first_of(f"{block}ssm_dt.bias", f"{block}ssm_dt"), heads),
        output_norm=loader.vector(f"{block}ssm_norm.weight", (config.value_dim,)),
        output=loader.matrix(f"{block}ssm_out.weight", width, values),
    )
