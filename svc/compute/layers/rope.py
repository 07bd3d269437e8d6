"""Rotary angles by position. NEOX pairing: dimension j turns with j + rotary / 2, angle = position * base ** (-2 j / rotary)."""

import numpy as np
from numpy.typing import NDArray

BLOCK = 1024  # positions computed at once, always the same ones together, so that a row's bits depend on its position only


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
