"""Weights of a mixture-of-experts feed-forward layer (docs/model_math.md)."""

from dataclasses import dataclass
from typing import Any

from svc.model.layers.loading import WeightLoader, row_slice
from svc.model.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class MoeFfnWeights:
    """E experts of size F, `num_used` of them per token; shared expert parts are None if the architecture has none."""

    num_experts: int
    num_used: int
    weights_scale: float  # multiplies the renormalised routing weights; 1.0 = none
    epsilon: float
    input_norm: Any  # vector [C]
    router: Any  # weight [E, C]
    gate: Any  # weight [E, F, C]
    up: Any  # weight [E, F, C]
    down: Any  # weight [E, C, F]
    shared_router: Any | None  # vector [C]
    shared_gate: Any | None  # weight [F_s, C]
    shared_up: Any | None  # weight [F_s, C]
    shared_down: Any | None  # weight [C, F_s]


def load_moe_ffn(loader: WeightLoader, config: ModelConfig, layer: int, *, norm: str) -> MoeFfnWeights:
    """`norm`: the architecture's name for the input norm. Gate and up experts may be fused (gate rows, then up rows)."""
    block = f"blk.{layer}."
    width, size, count = config.hidden_size, config.expert_size, config.num_experts
    if loader.source.has(f"{block}ffn_gate_up_exps.weight"):
        fused = loader.source.take(f"{block}ffn_gate_up_exps.weight", (count, 2 * size, width))
        gate = loader.prepare(row_slice(fused, 0, size))
        up = loader.prepare(row_slice(fused, size, 2 * size))
    else:
        gate = loader.matrix(f"{block}ffn_gate_exps.weight", count, size, width)
        up = loader.matrix(f"{block}ffn_up_exps.weight", count, size, width)
    shared = config.shared_expert_size
    return MoeFfnWeights(
        num_experts=count,
        num_used=config.num_experts_used,
        weights_scale=config.expert_weights_scale,
        epsilon=config.epsilon,
        input_norm=loader.vector(f"{block}{norm}.weight", (width,)),
        router=loader.matrix(f"{block}ffn_gate_inp.weight", count, width),
        gate=gate,
        up=up,
        down=loader.matrix(f"{block}ffn_down_exps.weight", count, width, size),
        # ggml's [d] and [d, 1] both occur: one logit either way.
        shared_router=loader.flat_vector(f"{block}ffn_gate_inp_shexp.weight", (width,), (1, width)) if shared else None,
        shared_gate=loader.matrix(f"{block}ffn_gate_shexp.weight", shared, width) if shared else None,
        shared_up=loader.matrix(f"{block}ffn_up_shexp.weight", shared, width) if shared else None,
        shared_down=loader.matrix(f"{block}ffn_down_shexp.weight", width, shared) if shared else None,
    )
