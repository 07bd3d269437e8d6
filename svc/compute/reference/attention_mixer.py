"""Full attention, gated or not, token by token, reading keys and values from pages only (docs/model_math.md).

    Q = W_q x -> per head D of q, then (gated) D of the gate;  k = W_k x;  v = W_v x     + a bias in some architectures
    q = rope(norm(q)), k = rope(norm(k))                     norm per head, before the rotation; not in all architectures
    o = softmax( q k^T / sqrt(D) ) v                         over positions 0 .. own; query head h reads KV head h // (H / H_kv)
    hidden += W_o ( o * sigmoid(gate) )                      without the gate if the layer is not gated

The rotation turns dimension j with j + R / 2 (R = rotary_dims), or 2 j with 2 j + 1 where the layer is interleaved, by
position * base^(-2 j / R); dimensions from R on stay.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.compute.reference.caches import ReferenceCaches
from svc.compute.reference.kv_pages import pack_rows, unpack_rows
from svc.compute.reference.math import Float32, rms_norm, sigmoid, softmax
from svc.compute.reference.weights import ReferenceWeight
from svc.compute.step_inputs import StepInputs
from svc.model.layers.attention import AttentionWeights


def attention_mixer(hidden: Float32, layer: AttentionWeights, inputs: StepInputs, caches: ReferenceCaches) -> None:
    x = rms_norm(hidden, layer.input_norm, layer.epsilon)
    parts = _projected(x, layer.query, layer.query_bias, layer.num_heads)
    query, gate = parts[..., : layer.head_dim], parts[..., layer.head_dim :]
    key = _projected(x, layer.key, layer.key_bias, layer.num_kv_heads)
    value = _projected(x, layer.value, layer.value_bias, layer.num_kv_heads)

    query = rotate(_normed(query, layer.query_norm, layer.epsilon), inputs, layer.interleaved)
    key = rotate(_normed(key, layer.key_norm, layer.epsilon), inputs, layer.interleaved)
    _write_pages(key, value, layer, inputs, caches)
    attended = _attend(query, layer, inputs, caches)
    if layer.gated:
        attended *= sigmoid(gate)
    hidden += layer.output.dot(attended.reshape(len(x), -1))


def _projected(x: Float32, weight: ReferenceWeight, bias: Float32 | None, heads: int) -> Float32:
    """[T, C] -> [T, heads, rows of a head]."""
    out = weight.dot(x)
    if bias is not None:
        out += bias
    return out.reshape(len(x), heads, -1)


def _normed(x: Float32, weight: Float32 | None, epsilon: float) -> Float32:
    return x if weight is None else rms_norm(x, weight, epsilon)


def rotate(x: Float32, inputs: StepInputs, interleaved: bool = False) -> Float32:
    """Turns the first R dimensions of each head of x [T, heads, D]."""
    rotary = 2 * inputs.rope_cos.shape[1]
    cos, sin = inputs.rope_cos[:, None, :], inputs.rope_sin[:, None, :]
    first, second = (slice(0, rotary, 2), slice(1, rotary, 2)) if interleaved else (slice(rotary // 2), slice(rotary // 2, rotary))
    turned = x.copy()
    turned[..., first] = x[..., first] * cos - x[..., second] * sin
    turned[..., second] = x[..., second] * cos + x[..., first] * sin
    return turned


def _write_pages(key: Float32, value: Float32, layer: AttentionWeights, inputs: StepInputs, caches: ReferenceCaches) -> None:
    sequence_of = np.repeat(np.arange(inputs.num_sequences), np.diff(inputs.cu_seqlens))
    page, slot = np.divmod(inputs.positions, caches.plan.layout.page_tokens)
    pages = inputs.block_table[sequence_of, page]
    # Two index arrays around a slice: numpy puts the token axis first, [T, H_kv, elements of a row].
    kv_type = caches.plan.layout.kv_type
    caches.keys(layer.index)[pages, :, slot] = pack_rows(key, kv_type)
    caches.values(layer.index)[pages, :, slot] = pack_rows(value, kv_type)


def _attend(query: Float32, layer: AttentionWeights, inputs: StepInputs, caches: ReferenceCaches) -> Float32:
    """[T, H, D] -> [T, H, D]. Positions after a token's own are never read."""
    scale = np.float32(1 / np.sqrt(layer.head_dim))
    grouped = query.reshape(len(query), layer.num_kv_heads, -1, layer.head_dim)
    out = np.empty_like(grouped)
    for sequence in range(inputs.num_sequences):
        start, end = inputs.cu_seqlens[sequence : sequence + 2]
        num_positions = int(inputs.positions[end - 1]) + 1
        keys = _context(caches, caches.keys(layer.index), sequence, num_positions, inputs)
        values = _context(caches, caches.values(layer.index), sequence, num_positions, inputs)
        for t in range(start, end):
            seen = int(inputs.positions[t]) + 1
            scores = grouped[t] @ keys[:, :seen].swapaxes(1, 2) * scale  # [H_kv, H / H_kv, seen]
            out[t] = softmax(scores) @ values[:, :seen]
    return out.reshape(query.shape)


def _context(caches: ReferenceCaches, block: NDArray[Any], sequence: int, num_positions: int, inputs: StepInputs) -> Float32:
    """One sequence's rows of a K or V block, in order of position: [H_kv, num_positions, D] float32."""
    num_pages = -(-num_positions // caches.plan.layout.page_tokens)
    pages = block[inputs.block_table[sequence, :num_pages]]  # [pages, H_kv, P, elements of a row]
    rows = pages.swapaxes(0, 1).reshape(pages.shape[1], -1, pages.shape[3])
    return unpack_rows(rows[:, :num_positions], caches.plan.layout.kv_type)
