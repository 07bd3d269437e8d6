"""Gated DeltaNet mixer, token by token (docs/model_math.md).

Per sequence, with m_t = W_qkv x_t the raw channels q | k | v, w the taps (J of them, the last one for the current token):

    y_t    = SiLU( sum_j w[:, j] * m_{t - J + 1 + j} )            causal convolution; m before the start of the text is 0
    q, k, v = split(y_t); q = l2(q) / sqrt(D_k), k = l2(k)        per head; l2 has epsilon inside the root
    beta_t = sigmoid(W_beta x_t)
    g_t    = a * softplus(W_alpha x_t + dt)                       <= 0, the logarithm of the decay

    S   = exp(g_t) S                                              per value head, S is [D_k, D_v], float32
    u   = S^T k
    S   = S + k (beta_t (v - u))^T
    o_t = S^T q

    hidden_t += W_out ( norm(o_t) * SiLU(W_gate x_t) )            norm over D_v first, then the gate

Value head h uses key head h // r if `grouped_heads` (qwen3next), else h % H_k (r = H_v / H_k).
State of a sequence: S, and the last J - 1 raw rows m (before convolution and SiLU).
"""

import numpy as np
from numpy.typing import NDArray

from svc.compute.reference.caches import ReferenceCaches
from svc.compute.reference.math import Float32, key_heads, l2_norm, rms_norm, sigmoid, silu, softplus
from svc.compute.step_inputs import HOLDS_ROW, WRITES_JOURNAL, StepInputs
from svc.model.layers.delta import DeltaWeights


def delta_mixer(hidden: Float32, layer: DeltaWeights, inputs: StepInputs, caches: ReferenceCaches) -> None:
    x = rms_norm(hidden, layer.input_norm, layer.epsilon)
    raw = layer.qkv.dot(x)
    gate = layer.gate.dot(x).reshape(-1, layer.num_value_heads, layer.value_dim)
    beta = sigmoid(layer.beta.dot(x))
    decay = np.exp(layer.a * softplus(layer.alpha.dot(x) + layer.dt_bias))

    conv = _convolve(raw, layer, inputs, caches)
    query, key, value = split_heads(conv, layer)
    core = _recur(query, key, value, beta, decay, layer, inputs, caches)

    gated = rms_norm(core, layer.output_norm, layer.epsilon) * silu(gate)
    hidden += layer.output.dot(gated.reshape(len(hidden), -1))


def key_head_of(layer: DeltaWeights) -> NDArray[np.intp]:
    """[H_v]: the key head of each value head."""
    return key_heads(layer.num_value_heads, layer.num_key_heads, grouped=layer.grouped_heads)


def split_heads(conv: Float32, layer: DeltaWeights) -> tuple[Float32, Float32, Float32]:
    """[T, channels] after convolution and SiLU -> q [T, H_v, D_k], k [T, H_v, D_k], v [T, H_v, D_v], normalised and repeated."""
    size = layer.num_key_heads * layer.key_dim
    query, key, value = np.split(conv, [size, 2 * size], axis=1)
    heads = key_head_of(layer)
    query = l2_norm(query.reshape(-1, layer.num_key_heads, layer.key_dim), layer.epsilon) / np.float32(np.sqrt(layer.key_dim))
    key = l2_norm(key.reshape(-1, layer.num_key_heads, layer.key_dim), layer.epsilon)
    return query[:, heads], key[:, heads], value.reshape(-1, layer.num_value_heads, layer.value_dim)


def _convolve(raw: Float32, layer: DeltaWeights, inputs: StepInputs, caches: ReferenceCaches) -> Float32:
    """[T, channels] raw -> convolved and activated; advances the convolution rows of each sequence."""
    live = caches.conv(layer.index)
    snapshots = caches.snapshot_conv(caches.snapshots, layer.index)
    num_rows = layer.conv_kernel - 1
    out = np.empty_like(raw)
    for sequence, row in enumerate(inputs.rows):
        start, end = inputs.cu_seqlens[sequence : sequence + 2]
        window = np.concatenate([live[row], raw[start:end]])  # window[i] is the raw row of token start - num_rows + i
        out[start:end] = sum(layer.conv[:, j] * window[j : j + end - start] for j in range(layer.conv_kernel))
        for token, snapshot_id in captures_of(sequence, inputs):
            after = token - start + 1
            snapshots[snapshot_id] = window[after : after + num_rows]
        if inputs.modes[sequence] & WRITES_JOURNAL:
            for token in range(start, end):
                caches.entry_parts(row, inputs.positions[token], layer.index)[2][:] = raw[token]
        if not inputs.modes[sequence] & HOLDS_ROW:
            live[row] = window[end - start :]
    return silu(out)


def _recur(
    query: Float32,
    key: Float32,
    value: Float32,
    beta: Float32,
    decay: Float32,
    layer: DeltaWeights,
    inputs: StepInputs,
    caches: ReferenceCaches,
) -> Float32:
    """Advances the state of each sequence through its tokens -> [T, H_v, D_v], the reads S^T q."""
    live = caches.recurrent(layer.index)
    out = np.empty_like(value)
    for sequence, row in enumerate(inputs.rows):
        start, end = inputs.cu_seqlens[sequence : sequence + 2]
        snapshot_after = dict(captures_of(sequence, inputs))
        state = live[row].copy()
        for t in range(start, end):
            state *= decay[t, :, None, None]
            read = np.einsum("hkv,hk->hv", state, key[t])
            delta = beta[t, :, None] * (value[t] - read)
            state += key[t, :, :, None] * delta[:, None, :]
            out[t] = np.einsum("hkv,hk->hv", state, query[t])
            if t in snapshot_after:
                caches.keep_recurrent(snapshot_after[t], layer.index, state)
            if inputs.modes[sequence] & WRITES_JOURNAL:
                keys, deltas, _, decays = caches.entry_parts(row, inputs.positions[t], layer.index)
                keys[key_head_of(layer)], deltas[:], decays[:] = key[t], delta, decay[t]
        if not inputs.modes[sequence] & HOLDS_ROW:
            live[row] = state
    return out


def captures_of(sequence: int, inputs: StepInputs) -> list[tuple[int, int]]:
    """(token index after which to capture, snapshot) of one sequence of the step."""
    start, end = inputs.cu_captures[sequence : sequence + 2]
    return list(zip(inputs.capture_tokens[start:end].tolist(), inputs.capture_snapshots[start:end].tolist(), strict=True))
