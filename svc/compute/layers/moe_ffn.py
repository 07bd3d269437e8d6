"""Weights of a mixture-of-experts feed-forward layer (ARCH_SPEC 7)."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MoeFfnWeights:
    """E experts of size F, `num_used` of them per token; shared expert parts are None where the architecture has none."""

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
