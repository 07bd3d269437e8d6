"""Rotary angles by position. NEOX pairing: dimension j turns with j + rotary / 2, angle = position * base ** (-2 j / rotary)."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK = 1024  # positions computed at once, always the same ones together, so that a row's bits depend on its position only


# YaRN: dimensions that turn more often than FAST over the original context keep their angle, those that turn less often than SLOW
# are stretched by the factor, and those between are mixed (the paper's constants; no file of these architectures changes them).
YARN_FAST_TURNS = 32
YARN_SLOW_TURNS = 1


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Context extension by YaRN: `factor` times the `original_context` (tokens) the model was trained for."""

    factor: float
    original_context: int


class RopeTable:
    """cos and sin, float32, of every position asked for so far. Owner: the model that holds it; grows on demand."""

    def __init__(self, inverse_frequencies: NDArray[np.float64], scale: float = 1.0) -> None:
        """`inverse_frequencies`: [rotary / 2], radians per position. `scale` multiplies cos and sin (YaRN's attention factor)."""
        self._inverse_frequencies = inverse_frequencies
        self._scale = scale
        self._cos = np.zeros((0, len(inverse_frequencies)), np.float32)
        self._sin = np.zeros((0, len(inverse_frequencies)), np.float32)

    @classmethod
    def plain(cls, rotary_dims: int, base: float) -> "RopeTable":
        return cls(base ** (-np.arange(0, rotary_dims, 2, dtype=np.float64) / rotary_dims))

    @classmethod
    def yarn(cls, rotary_dims: int, base: float, scaling: YarnScaling) -> "RopeTable":
        def dimension_turning(times: float) -> float:
            """The (fractional) pair that makes so many turns over the original context."""
            return rotary_dims * math.log(scaling.original_context / (times * 2 * math.pi)) / (2 * math.log(base))

        low = max(0, math.floor(dimension_turning(YARN_FAST_TURNS)))
        high = min(rotary_dims - 1, math.ceil(dimension_turning(YARN_SLOW_TURNS)))
        pairs = np.arange(rotary_dims // 2, dtype=np.float64)
        stretched = np.clip((pairs - low) / max(high - low, 0.001), 0, 1)
        plain = base ** (-2 * pairs / rotary_dims)
        frequencies = plain * (1 - stretched) + plain / scaling.factor * stretched
        return cls(frequencies, scale=1 + 0.1 * math.log(scaling.factor))

    @classmethod
    def of(cls, rotary_dims: int, base: float, scaling: YarnScaling | None) -> "RopeTable":
        return cls.yarn(rotary_dims, base, scaling) if scaling else cls.plain(rotary_dims, base)

    def rows(self, positions: NDArray[np.int32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """cos and sin of `positions` [T]: two arrays [T, rotary / 2]."""
        if len(positions):
            self._grow(int(positions.max()) + 1)
        return self._cos[positions], self._sin[positions]

    def _grow(self, num_positions: int) -> None:
        if num_positions <= len(self._cos):
            return
        # At least double, or a long prefill would copy the table once per block.
        target = max(num_positions, 2 * len(self._cos))
        starts = range(len(self._cos), target, BLOCK)
        angles = [np.arange(s, s + BLOCK, dtype=np.float64)[:, None] * self._inverse_frequencies for s in starts]
        self._cos = np.concatenate([self._cos, *((np.cos(a) * self._scale).astype(np.float32) for a in angles)])
        self._sin = np.concatenate([self._sin, *((np.sin(a) * self._scale).astype(np.float32) for a in angles)])
