"""The coarse operations of a layer: launches in a fixed order, and their buffers.

The buffers are listed apart from the launches, so that planning the memory counts the same list.
"""

from dataclasses import dataclass

import numpy as np

from svc.compute.cuda.arena import Allocator
from svc.compute.cuda.attention import AttentionInputs, AttentionPlan, AttentionProjected, attention_core, workspace_floats
from svc.compute.cuda.caches import CudaCaches
from svc.compute.cuda.delta_core import DeltaInputs, DeltaProjected, DeltaWorkspace, delta_core
from svc.compute.cuda.device import Device, DeviceArray
from svc.compute.cuda.matmul import gate_up, matmul
from svc.compute.cuda.quantize import activations, workspace_bytes
from svc.compute.cuda.rms_norm import rms_norm
from svc.model.layers.attention import AttentionWeights
from svc.model.layers.delta import DeltaWeights
from svc.model.layers.dense_ffn import DenseFfnWeights


def blocks_for(allocator: Allocator, rows: int, columns: int) -> DeviceArray:
    """Memory for rows [T, K] of quantized activations."""
    return allocator.empty((workspace_bytes(rows, columns),), np.uint8)


@dataclass(frozen=True, slots=True)
class DeltaBuffers:
    x: DeviceArray  # [T, C]
    x_blocks: DeviceArray
    projected: DeltaProjected
    out: DeviceArray  # [T, V]
    out_blocks: DeviceArray
    workspace: DeltaWorkspace

    @classmethod
    def take(cls, allocator: Allocator, layer: DeltaWeights, width: int, num_tokens: int, num_chunks: int) -> "DeltaBuffers":
        heads, values = layer.num_value_heads, layer.num_value_heads * layer.value_dim
        columns = (layer.channels, values, heads, heads)
        return cls(
            x=allocator.empty((num_tokens, width), np.float32),
            x_blocks=blocks_for(allocator, num_tokens, width),
            projected=DeltaProjected(*(allocator.empty((num_tokens, size), np.float32) for size in columns)),
            out=allocator.empty((num_tokens, values), np.float32),
            out_blocks=blocks_for(allocator, num_tokens, values),
            workspace=DeltaWorkspace(
                *(
                    allocator.empty(shape, np.float32)
                    for shape in DeltaWorkspace.shapes(layer, num_tokens if num_chunks else 0, num_chunks)
                )
            ),
        )


def delta_mixer(
    device: Device,
    hidden: DeviceArray,
    layer: DeltaWeights,
    step: DeltaInputs,
    caches: CudaCaches,
    allocator: Allocator,
    *,
    exact: bool = False,
) -> None:
    """As in reference/delta_mixer.py; hidden [T, C]. `exact`: for products, as in matmul.py; `step` says how the states advance."""
    buffers = DeltaBuffers.take(allocator, layer, hidden.shape[1], step.num_tokens, step.num_chunks)
    rms_norm(device, buffers.x, hidden, layer.input_norm, layer.epsilon)
    weights = (layer.qkv, layer.gate, layer.beta, layer.alpha)
    x = activations(device, buffers.x, buffers.x_blocks, weights)
    projected = buffers.projected
    outputs = (projected.raw, projected.gate, projected.beta, projected.alpha)
    for out, weight in zip(outputs, weights, strict=True):
        matmul(device, out, x, weight, exact=exact)
    delta_core(device, buffers.out, projected, layer, caches.states, step, buffers.workspace)
    y = activations(device, buffers.out, buffers.out_blocks, [layer.output])
    matmul(device, hidden, y, layer.output, add=hidden, exact=exact)


@dataclass(frozen=True, slots=True)
class AttentionBuffers:
    x: DeviceArray  # [T, C]
    x_blocks: DeviceArray
    projected: AttentionProjected
    out: DeviceArray  # [T, H * D]
    out_blocks: DeviceArray

    @classmethod
    def take(cls, allocator: Allocator, layer: AttentionWeights, width: int, num_tokens: int) -> "AttentionBuffers":
        rows, kv_rows = layer.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim
        columns = (rows * (2 if layer.gated else 1), kv_rows, kv_rows)
        return cls(
            x=allocator.empty((num_tokens, width), np.float32),
            x_blocks=blocks_for(allocator, num_tokens, width),
            projected=AttentionProjected(*(allocator.empty((num_tokens, size), np.float32) for size in columns)),
            out=allocator.empty((num_tokens, rows), np.float32),
            out_blocks=blocks_for(allocator, num_tokens, rows),
        )


def split_floats(layer: AttentionWeights, plan: AttentionPlan, num_sequences: int) -> int:
    return workspace_floats(layer, plan, num_sequences) if plan.decode_tokens else 0


def attention_mixer(
    device: Device,
    hidden: DeviceArray,
    layer: AttentionWeights,
    step: AttentionInputs,
    caches: CudaCaches,
    allocator: Allocator,
    *,
    exact: bool = False,
) -> None:
    """As in reference/attention_mixer.py; hidden [T, C]. `exact`: for products, as in matmul.py; `step.plan` chooses the
    kernels."""
    buffers = AttentionBuffers.take(allocator, layer, hidden.shape[1], step.num_tokens)
    rms_norm(device, buffers.x, hidden, layer.input_norm, layer.epsilon)
    weights = (layer.query, layer.key, layer.value)
    x = activations(device, buffers.x, buffers.x_blocks, weights)
    projected = buffers.projected
    for out, weight in zip((projected.query, projected.key, projected.value), weights, strict=True):
        matmul(device, out, x, weight, exact=exact)
    splits = allocator.empty((split_floats(layer, step.plan, step.num_sequences),), np.float32)
    attention_core(device, buffers.out, projected, layer, caches.kv, caches.plan.layout, step, splits)
    y = activations(device, buffers.out, buffers.out_blocks, [layer.output])
    matmul(device, hidden, y, layer.output, add=hidden, exact=exact)


@dataclass(frozen=True, slots=True)
class DenseBuffers:
    x: DeviceArray  # [T, C]
    x_blocks: DeviceArray
    inner: DeviceArray  # [T, F]
    inner_blocks: DeviceArray

    @classmethod
    def take(cls, allocator: Allocator, width: int, size: int, num_tokens: int) -> "DenseBuffers":
        return cls(
            x=allocator.empty((num_tokens, width), np.float32),
            x_blocks=blocks_for(allocator, num_tokens, width),
            inner=allocator.empty((num_tokens, size), np.float32),
            inner_blocks=blocks_for(allocator, num_tokens, size),
        )


def dense_ffn(device: Device, hidden: DeviceArray, layer: DenseFfnWeights, allocator: Allocator, *, exact: bool = False) -> None:
    """As in reference/dense_ffn.py; hidden [T, C]. `exact`: for products, as in matmul.py."""
    num_tokens, width = hidden.shape
    buffers = DenseBuffers.take(allocator, width, layer.gate.rows, num_tokens)
    rms_norm(device, buffers.x, hidden, layer.input_norm, layer.epsilon)
    x = activations(device, buffers.x, buffers.x_blocks, [layer.gate, layer.up])
    gate_up(device, buffers.inner, x, layer.gate, layer.up, exact=exact)
    y = activations(device, buffers.inner, buffers.inner_blocks, [layer.down])
    matmul(device, hidden, y, layer.down, add=hidden, exact=exact)
