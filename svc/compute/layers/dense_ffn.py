"""Weights of a dense SwiGLU feed-forward layer."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DenseFfnWeights:
    """down(SiLU(gate x) * up x), F = feed-forward size."""

    epsilon: float
    input_norm: Any  # vector [C]
    gate: Any  # weight [F, C]
    up: Any  # weight [F, C]
    down: Any  # weight [C, F]
