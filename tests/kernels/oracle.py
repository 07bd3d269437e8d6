"""The formulas of docs/model_math.md in float64, one number or one token at a time, over whole texts: no pages, rows or batches.

Deliberately written in another way than any backend.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


def sigmoid(x: Float64) -> Float64:
    return np.asarray(1 / (1 + np.exp(-x)))


def silu(x: Float64) -> Float64:
    return x * sigmoid(x)


def norm(x: Float64, weight: Float64, epsilon: float) -> Float64:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def unchanged(x: Float64) -> Float64:
    return x


def swiglu(x: Float64, gate: Float64, up: Float64, down: Float64, see: Callable[[Float64], Float64] = unchanged) -> Float64:
    """`see`: how a product rounds its activations."""
    return see(silu(see(x) @ gate.T) * (see(x) @ up.T)) @ down.T


def convolve(raw: Float64, taps: Float64) -> Float64:
    """Causal convolution per channel of a whole text: raw [n, channels], taps [channels, J], the last for the current token."""
    columns = [np.convolve(raw[:, c], taps[c, ::-1])[: len(raw)] for c in range(raw.shape[1])]
    return silu(np.stack(columns, axis=1))


def delta_rule(q: Float64, k: Float64, v: Float64, beta: Float64, g: Float64, state: Float64) -> tuple[Float64, list[Float64]]:
    """One head: q, k [n, D_k], v [n, D_v], beta, g [n], state [D_k, D_v] before -> outputs [n, D_v], the state after each token.

    In the fused form: delta = beta (v - e^g S^T k), S = e^g S + k delta^T.
    """
    outputs, states = np.zeros_like(v), []
    for t in range(len(q)):
        delta = beta[t] * (v[t] - math.exp(g[t]) * (k[t] @ state))
        state = math.exp(g[t]) * state + np.outer(k[t], delta)
        outputs[t] = q[t] @ state
        states.append(state)
    return outputs, states


def rotate(x: Float64, position: int, rotary: int, base: float, interleaved: bool = False) -> Float64:
    """One head's vector, its pairs as complex numbers: (j, j + rotary / 2), or (2 j, 2 j + 1)."""
    half = rotary // 2
    out, pairs = x.copy(), x[:rotary].reshape(half, 2).T if interleaved else x[:rotary].reshape(2, half)
    turned = (pairs[0] + 1j * pairs[1]) * np.exp(1j * position * base ** (-2 * np.arange(half) / rotary))
    both = np.stack([turned.real, turned.imag])
    out[:rotary] = (both.T if interleaved else both).ravel()
    return out


def attend(q: Float64, keys: Float64, values: Float64) -> Float64:
    """One query [D] over keys and values [n, D]."""
    scores = [math.exp(float(q @ key) / math.sqrt(len(q))) for key in keys]
    return sum(score * value for score, value in zip(scores, values, strict=True)) / sum(scores)


def experts(
    x: Float64, router: Float64, count: int, scale: float, stacks: Any, see: Callable[[Float64], Float64] = unchanged
) -> Float64:
    """One token: softmax over all experts, the `count` best (lower index first among equals), renormalised. The router is exact."""
    logits = router @ x
    probabilities = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    chosen = sorted(range(len(logits)), key=lambda e: (-logits[e], e))[:count]
    total = sum(probabilities[e] for e in chosen)
    gate, up, down = stacks
    return sum(probabilities[e] / total * scale * swiglu(x, gate[e], up[e], down[e], see) for e in chosen)
