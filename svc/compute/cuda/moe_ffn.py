"""A mixture-of-experts layer: norm, routing, the experts' products, the shared expert, and the sum, as launches in one order.

Each pair of token and rank has its own row in the products, whichever expert it is for, so that the sum runs in the order of ranks
and a token's result does not depend on the others that share its experts.
"""

from dataclasses import dataclass

import numpy as np

from svc.compute.cuda.arena import Allocator
from svc.compute.cuda.device import Device, DeviceArray, Stream
from svc.compute.cuda.matmul import MOST_GEMV_ROWS, ExpertRows, gate_up, matmul
from svc.compute.cuda.moe import combine, route, sort_by_expert, sort_workspace
from svc.compute.cuda.quantize import Activations, activations, workspace_bytes
from svc.compute.cuda.rms_norm import rms_norm
from svc.compute.cuda.weights import CudaWeight
from svc.model.layers.moe_ffn import MoeFfnWeights


@dataclass(frozen=True, slots=True)
class MoeSizes:
    """C hidden, E experts of size F, k of them used, F_s shared expert (0: none)."""

    hidden: int
    num_experts: int
    num_used: int
    expert: int
    shared: int


@dataclass(frozen=True, slots=True)
class MoeBuffers:
    """Workspace of every layer of a model, for up to `max_tokens` tokens. Owner: whoever runs the layers, one at a time."""

    max_tokens: int
    x: DeviceArray  # [T C] the normed rows
    x_blocks: DeviceArray  # uint8
    logits: DeviceArray  # [T E]
    experts: DeviceArray  # [T k] int32
    weights: DeviceArray  # [T k]
    offsets: DeviceArray  # [E + 1] int32
    order: DeviceArray  # [T k] int32
    sort_work: DeviceArray  # int32
    inner: DeviceArray  # [T k F], and [T F_s]
    inner_blocks: DeviceArray  # uint8
    parts: DeviceArray  # [T k C]
    shared: DeviceArray  # [T C]


def moe_buffers(device: Allocator, sizes: MoeSizes, max_tokens: int) -> MoeBuffers:
    pairs = max_tokens * sizes.num_used
    inner_bytes = max(workspace_bytes(pairs, sizes.expert), workspace_bytes(max_tokens, sizes.shared))
    return MoeBuffers(
        max_tokens=max_tokens,
        x=device.empty((max_tokens * sizes.hidden,), np.float32),
        x_blocks=device.empty((workspace_bytes(max_tokens, sizes.hidden),), np.uint8),
        logits=device.empty((max_tokens * sizes.num_experts,), np.float32),
        experts=device.empty((pairs,), np.int32),
        weights=device.empty((pairs,), np.float32),
        offsets=device.empty((sizes.num_experts + 1,), np.int32),
        order=device.empty((pairs,), np.int32),
        sort_work=device.empty((sort_workspace(pairs, sizes.num_experts),), np.int32),
        inner=device.empty((max(pairs * sizes.expert, max_tokens * sizes.shared),), np.float32),
        inner_blocks=device.empty((inner_bytes,), np.uint8),
        parts=device.empty((pairs * sizes.hidden,), np.float32),
        shared=device.empty((max_tokens * sizes.hidden if sizes.shared else 0,), np.float32),
    )


def moe_ffn(
    device: Device,
    hidden: DeviceArray,
    layer: MoeFfnWeights,
    buffers: MoeBuffers,
    *,
    rows: DeviceArray | None = None,
    exact: bool = False,
    stream: Stream | None = None,
) -> None:
    """hidden [T, C] += the experts' output (reference/moe_ffn.py). `layer` holds device arrays and CudaWeights.

    `rows` [T] int32, for graphs of one token a sequence: tokens with a negative live row are padding and stay as they are. `exact`:
    the same bits for a token whatever the number of tokens beside it (matmul.py).
    """
    tokens, width = hidden.shape
    pairs = tokens * layer.num_used
    assert tokens <= buffers.max_tokens
    if not tokens:
        return
    x_values = _rows(buffers.x, tokens, width)
    rms_norm(device, x_values, hidden, layer.input_norm, layer.epsilon, stream=stream)
    readers = [weight for weight in (layer.router, layer.gate, layer.up, layer.shared_gate, layer.shared_up) if weight is not None]
    x = activations(device, x_values, buffers.x_blocks, readers, stream)

    logits = _rows(buffers.logits, tokens, layer.num_experts)
    experts, weights = _rows(buffers.experts, tokens, layer.num_used), _rows(buffers.weights, tokens, layer.num_used)
    matmul(device, logits, x, layer.router, exact=exact, stream=stream)
    route(device, experts, weights, logits, layer.weights_scale, rows, stream)

    chosen = ExpertRows(experts.view((pairs,)))
    if not exact and pairs > max(MOST_GEMV_ROWS, layer.num_experts // 2):  # fewer pairs rarely share an expert
        order = buffers.order.view((pairs,))
        sort_by_expert(device, buffers.offsets, order, None, experts, buffers.sort_work, stream)
        chosen = ExpertRows(experts.view((pairs,)), order, buffers.offsets)
    parts = _rows(buffers.parts, pairs, width)
    _swiglu(device, parts, x, (layer.gate, layer.up, layer.down), buffers, chosen, exact, stream)

    if layer.shared_router is None:
        combine(device, hidden, parts, None, experts, weights, stream=stream)
        return
    shared = _rows(buffers.shared, tokens, width)
    assert layer.shared_gate is not None
    assert layer.shared_up is not None
    assert layer.shared_down is not None
    _swiglu(device, shared, x, (layer.shared_gate, layer.shared_up, layer.shared_down), buffers, None, exact, stream)
    gated = {"shared": shared, "x": x_values, "shared_router": layer.shared_router}
    combine(device, hidden, parts, None, experts, weights, **gated, stream=stream)


def _swiglu(
    device: Device,
    out: DeviceArray,
    x: Activations,
    matrices: tuple[CudaWeight, CudaWeight, CudaWeight],
    buffers: MoeBuffers,
    chosen: ExpertRows | None,
    exact: bool,
    stream: Stream | None,
) -> None:
    """out = down(SiLU(gate x) * up x), a row for each pair or for each token."""
    gate, up, down = matrices
    inner = _rows(buffers.inner, out.shape[0], gate.rows)
    gate_up(device, inner, x, gate, up, experts=chosen, exact=exact, stream=stream)
    y = activations(device, inner, buffers.inner_blocks, [down], stream)
    matmul(device, out, y, down, experts=chosen, exact=exact, stream=stream)


def _rows(buffer: DeviceArray, rows: int, columns: int) -> DeviceArray:
    return buffer.view((rows, columns))
