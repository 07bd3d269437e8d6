"""A mixture-of-experts layer: norm, routing, the experts' products, the shared expert, and the sum, as launches in one order.

Each pair of token and rank has a row of its own in the products. So the sum runs in the order of ranks, and the result of a token
does not depend on other tokens with the same experts.
"""

from dataclasses import dataclass

import numpy as np

from svc.compute.cuda.arena import Allocator
from svc.compute.cuda.device import Device, DeviceArray, Stream
from svc.compute.cuda.matmul import MOST_GEMV_ROWS, ExpertRows, gate_up, matmul
from svc.compute.cuda.moe import RoutedParts, SharedPart, combine, route, sort_by_expert, sort_workspace
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
    """Workspace of every layer of a model, for up to `max_tokens` tokens, one layer at a time."""

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
    a token has the same bits for any number of tokens beside it (matmul.py).
    """
    tokens, width = hidden.shape
    assert tokens <= buffers.max_tokens
    if not tokens:
        return
    call = _Call(device, layer, buffers, exact, stream)
    x_values = _rows(buffers.x, tokens, width)
    rms_norm(device, x_values, hidden, layer.input_norm, layer.epsilon, stream=stream)
    readers = [weight for weight in (layer.router, layer.gate, layer.up, layer.shared_gate, layer.shared_up) if weight is not None]
    x = activations(device, x_values, buffers.x_blocks, readers, stream)

    experts, weights = call.route(x, tokens, rows)
    parts = _rows(buffers.parts, tokens * layer.num_used, width)
    call.swiglu(parts, x, layer.gate, layer.up, layer.down, call.rows_of(experts))
    combine(device, hidden, RoutedParts(parts, experts, weights), call.shared(x, x_values), stream=stream)


@dataclass(frozen=True, slots=True)
class _Call:
    """The launches of one layer in one step."""

    device: Device
    layer: MoeFfnWeights
    buffers: MoeBuffers
    exact: bool
    stream: Stream | None

    def route(self, x: Activations, tokens: int, rows: DeviceArray | None) -> tuple[DeviceArray, DeviceArray]:
        """The experts of each token and their weights, both [T, k]."""
        layer, buffers = self.layer, self.buffers
        logits = _rows(buffers.logits, tokens, layer.num_experts)
        experts, weights = _rows(buffers.experts, tokens, layer.num_used), _rows(buffers.weights, tokens, layer.num_used)
        matmul(self.device, logits, x, layer.router, exact=self.exact, stream=self.stream)
        route(self.device, experts, weights, logits, layer.weights_scale, rows, self.stream)
        return experts, weights

    def rows_of(self, experts: DeviceArray) -> ExpertRows:
        """The expert of each pair; sorted by expert where pairs are many enough to share one."""
        pairs, buffers = experts.size, self.buffers
        if self.exact or pairs <= max(MOST_GEMV_ROWS, self.layer.num_experts // 2):
            return ExpertRows(experts.view((pairs,)))
        order = buffers.order.view((pairs,))
        sort_by_expert(self.device, buffers.offsets, order, None, experts, buffers.sort_work, self.stream)
        return ExpertRows(experts.view((pairs,)), order, buffers.offsets)

    def shared(self, x: Activations, x_values: DeviceArray) -> SharedPart | None:
        layer = self.layer
        if layer.shared_router is None:
            return None
        assert layer.shared_gate is not None
        assert layer.shared_up is not None
        assert layer.shared_down is not None
        output = _rows(self.buffers.shared, *x_values.shape)
        self.swiglu(output, x, layer.shared_gate, layer.shared_up, layer.shared_down, None)
        return SharedPart(output, x_values, layer.shared_router)

    def swiglu(
        self, out: DeviceArray, x: Activations, gate: CudaWeight, up: CudaWeight, down: CudaWeight, chosen: ExpertRows | None
    ) -> None:
        """out = down(SiLU(gate x) * up x), a row for each pair or for each token."""
        device, stream = self.device, self.stream
        inner = _rows(self.buffers.inner, out.shape[0], gate.rows)
        gate_up(device, inner, x, gate, up, experts=chosen, exact=self.exact, stream=stream)
        y = activations(device, inner, self.buffers.inner_blocks, [down], stream)
        matmul(device, out, y, down, experts=chosen, exact=self.exact, stream=stream)


def _rows(buffer: DeviceArray, rows: int, columns: int) -> DeviceArray:
    return buffer.view((rows, columns))
