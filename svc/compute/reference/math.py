"""The few element-wise functions that the layers share, in float32."""

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]


def rms_norm(x: Float32, weight: Float32, epsilon: float) -> Float32:
    """x * rsqrt(mean(x^2) + epsilon) * weight over the last axis."""
    mean_square = np.mean(np.square(x), axis=-1, keepdims=True)
    return np.asarray(x / np.sqrt(mean_square + np.float32(epsilon)) * weight, np.float32)


def l2_norm(x: Float32, epsilon: float) -> Float32:
    """x * rsqrt(sum(x^2) + epsilon) over the last axis (a sum, not a mean)."""
    square_sum = np.sum(np.square(x), axis=-1, keepdims=True)
    return np.asarray(x / np.sqrt(square_sum + np.float32(epsilon)), np.float32)


def sigmoid(x: Float32) -> Float32:
    """1 / (1 + exp(-x)), written so that exp never overflows."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(np.float32)


def silu(x: Float32) -> Float32:
    return x * sigmoid(x)


def softplus(x: Float32) -> Float32:
    """log(1 + exp(x)); x itself beyond 20, where the difference is below float32."""
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20)))).astype(np.float32)


def softmax(x: Float32) -> Float32:
    """Over the last axis."""
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return np.asarray(e / np.sum(e, axis=-1, keepdims=True), np.float32)


def key_heads(num_value_heads: int, num_key_heads: int, *, grouped: bool) -> NDArray[np.intp]:
    """[H_v]: the key head of each value head of a DeltaNet layer."""
    value_heads = np.arange(num_value_heads)
    return value_heads // (num_value_heads // num_key_heads) if grouped else value_heads % num_key_heads
