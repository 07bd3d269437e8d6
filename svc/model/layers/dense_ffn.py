"""Weights of a dense SwiGLU feed-forward layer."""

from dataclasses import dataclass
from typing import Any

from svc.model.layers.loading import WeightLoader
from svc.model.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class DenseFfnWeights:
    """down(SiLU(gate x) * up x), F = feed-forward size."""

    epsilon: float
    input_norm: Any  # vector [C]
    gate: Any  # weight [F, C]
    up: Any  # weight [F, C]
    down: Any  # weight [C, F]


def load_dense_ffn(loader: WeightLoader, config: ModelConfig, layer: int, *, norm: str) -> DenseFfnWeights:
    """`norm`: the architecture's name for the input norm, "post_attention_norm" or "ffn_norm"."""
    block = f"blk.{layer}."
    width, size = config.hidden_size, config.feed_forward_size
    if loader.source.has(f"{block}ffn_gate_inp.weight"):
        raise loader.refuse(f"{block}ffn_gate_inp.weight", f"is a router, which {config.architecture} models do not have")
    return DenseFfnWeights(
        epsilon=config.epsilon,
        input_norm=loader.vector(f"{block}{norm}.weight", (width,)),
        gate=loader.matrix(f"{block}ffn_gate.weight", size, width),
        up=loader.matrix(f"{block}ffn_up.weight", size, width),
        down=loader.matrix(f"{block}ffn_down.weight", width, size),
    )
