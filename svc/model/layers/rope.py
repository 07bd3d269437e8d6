"""Rotary angles by position: pair j of a head's dimensions turns by position * base ** (-2 j / rotary).

The architecture chooses which two dimensions are a pair (layers/attention.py).
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

BLOCK = 1024  # positions computed at once, in fixed groups, so that the bits of a row depend on its position only


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Context extension: `factor` times the `original_context` (tokens) the model was trained for.

    Pairs of dimensions that turn more than `beta_fast` times over the original context keep their angle, those that turn less
    than `beta_slow` times have it divided by `factor`, and those between are mixed (YaRN, arXiv 2309.00071, computed as in ggml).
    `extrapolation` is the share of that, from 0 to 1: with 0 every angle is divided ("linear").
    """

    kind: Literal["linear", "yarn"]
    factor: float
    original_context: int
    extrapolation: float = 1.0
    attention_factor: float = 1.0  # multiplies cos and sin, beside YaRN's own correction
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    @property
    def context(self) -> int:
        """The longest sequence it supports, in tokens."""
        return int(self.factor * self.original_context)

    @property
    def magnitude(self) -> float:
        """The factor of cos and sin. Linear scaling has no correction of its own."""
        return self.attention_factor * (1 + 0.1 * math.log(self.factor) if self.extrapolation else 1.0)

    def inverse_frequencies(self, rotary_dims: int, base: float) -> NDArray[np.float64]:
        """Radians per position, [rotary / 2]."""

        def pair_turning(times: float) -> float:
            """The (fractional) pair that turns `times` times over the original context."""
            return rotary_dims * math.log(self.original_context / (times * 2 * math.pi)) / (2 * math.log(base))

        plain = inverse_frequencies(rotary_dims, base)
        if not self.extrapolation:
            return plain / self.factor
        low = max(0, math.floor(pair_turning(self.beta_fast)))
        high = min(rotary_dims - 1, math.ceil(pair_turning(self.beta_slow)))
        ramp = np.clip((np.arange(rotary_dims // 2) - low) / max(high - low, 0.001), 0, 1)
        kept = (1 - ramp) * self.extrapolation
        return plain * kept + plain / self.factor * (1 - kept)


def inverse_frequencies(rotary_dims: int, base: float) -> NDArray[np.float64]:
    """Radians per position without scaling, [rotary / 2]."""
    return base ** (-np.arange(0, rotary_dims, 2, dtype=np.float64) / rotary_dims)


class RopeTable:
    """cos and sin, float32, of every position asked for so far. Owner: the model that holds it; grows on demand."""

    def __init__(self, inverse_frequencies: NDArray[np.float64], scale: float = 1.0) -> None:
        """`inverse_frequencies`: [rotary / 2], radians per position. `scale` multiplies cos and sin."""
        self._inverse_frequencies = inverse_frequencies
        self._scale = scale
        self._cos = np.zeros((0, len(inverse_frequencies)), np.float32)
        self._sin = np.zeros((0, len(inverse_frequencies)), np.float32)

    @classmethod
    def of(
        cls, rotary_dims: int, base: float, scaling: RopeScaling | None = None, factors: NDArray[np.float32] | None = None
    ) -> "RopeTable":
        """`factors`: [rotary / 2], divisors of the frequencies, scaled or not (Llama 3)."""
        divisors = 1.0 if factors is None else factors.astype(np.float64)
        if scaling is None:
            return cls(inverse_frequencies(rotary_dims, base) / divisors)
        return cls(scaling.inverse_frequencies(rotary_dims, base) / divisors, scaling.magnitude)

    def rows(self, positions: NDArray[np.int32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """cos and sin of `positions` [T]: two arrays [T, rotary / 2]."""
        if len(positions):
            self._grow(int(positions.max()) + 1)
        return self._cos[positions], self._sin[positions]

    def _grow(self, num_positions: int) -> None:
        if num_positions <= len(self._cos):
            return
        # At least double; otherwise a long prefill would copy the table once per block.
        target = max(num_positions, 2 * len(self._cos))
        starts = range(len(self._cos), target, BLOCK)
        angles = [np.arange(s, s + BLOCK, dtype=np.float64)[:, None] * self._inverse_frequencies for s in starts]
        self._cos = np.concatenate([self._cos, *((np.cos(a) * self._scale).astype(np.float32) for a in angles)])
        self._sin = np.concatenate([self._sin, *((np.sin(a) * self._scale).astype(np.float32) for a in angles)])
