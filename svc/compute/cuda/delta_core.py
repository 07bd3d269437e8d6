"""The core of a Gated DeltaNet layer (ARCH_SPEC 6): all between the projections of its input and the projection of its output."""

from dataclasses import dataclass

import numpy as np

from svc.compute.cuda.delta_chunks import ChunkPlan
from svc.compute.cuda.device import Device, DeviceArray, Dim, Stream
from svc.compute.layers.delta import DeltaWeights
from svc.compute.step_inputs import StepInputs
from svc.memory.layout import MemoryLayout

STATE_ORDER = "vk"  # inner order of a head's recurrent state: value dimension, then key dimension (fastest)
CHUNK_FLOATS = 2 * 64 * 64 + 2 * 64  # per chunk and value head, CHUNK_WORK in cuda_src/include/delta.cuh
# Blocks that keep a GPU busy: two for each multiprocessor of the largest.
WANTED_BLOCKS = 264


@dataclass(frozen=True, slots=True)
class DeltaStep:
    """What the kernels know of a step: int32 arrays of StepInputs and ChunkPlan on the device, and host numbers that shape the launches.

    `num_tokens` and `num_sequences` may count padding: sequences whose row is negative, tokens behind cu_seqlens[-1]. Padding is neither
    read nor advanced, and its outputs are zero. A negative capture cell is skipped.
    """

    num_tokens: int
    num_sequences: int
    num_chunks: int
    step_tokens: int
    any_steps: bool
    cu_seqlens: DeviceArray
    rows: DeviceArray
    capture_tokens: DeviceArray
    capture_cells: DeviceArray
    cu_captures: DeviceArray
    chunks: DeviceArray
    cu_chunks: DeviceArray


def delta_step(device: Device, inputs: StepInputs, plan: ChunkPlan) -> DeltaStep:
    """In fresh arrays, for whoever keeps no buffers of fixed place."""

    def on_device(values: np.typing.NDArray[np.int32]) -> DeviceArray:
        return device.from_host(np.ascontiguousarray(values, np.int32))

    return DeltaStep(
        num_tokens=inputs.num_tokens,
        num_sequences=inputs.num_sequences,
        num_chunks=plan.num_chunks,
        step_tokens=plan.step_tokens,
        any_steps=plan.any_steps,
        cu_seqlens=on_device(inputs.cu_seqlens),
        rows=on_device(inputs.rows),
        capture_tokens=on_device(inputs.capture_tokens),
        capture_cells=on_device(inputs.capture_cells),
        cu_captures=on_device(inputs.cu_captures),
        chunks=on_device(plan.chunks),
        cu_chunks=on_device(plan.cu_chunks),
    )


@dataclass(frozen=True, slots=True)
class DeltaProjected:
    """Of all tokens of the step, float32: raw [T, channels] (q | k | v before the convolution), gate [T, V], beta and alpha [T, H_v]."""

    raw: DeviceArray
    gate: DeviceArray
    beta: DeviceArray
    alpha: DeviceArray


@dataclass(frozen=True, slots=True)
class DeltaStates:
    """Live rows and snapshot cells [n, state_elements] float32, laid out as memory/layout.py says, recurrent states in STATE_ORDER."""

    layout: MemoryLayout
    rows: DeviceArray
    cells: DeviceArray

    def __post_init__(self) -> None:
        # Kernels move 16 bytes at once.
        assert self.layout.state_elements % 4 == 0, f"a row of {self.layout.state_elements} floats is no multiple of 4"

    def recurrent(self, slab: DeviceArray, layer: int) -> DeviceArray | None:
        return self._from(slab, self.layout.recurrent_offset(layer))

    def conv(self, slab: DeviceArray, layer: int) -> DeviceArray | None:
        return self._from(slab, self.layout.conv_offset(layer))

    @staticmethod
    def _from(slab: DeviceArray, offset: int) -> DeviceArray | None:
        """The slab from an offset in its first row on; None for one without rows."""
        return slab.view((slab.size - offset,), offset_bytes=4 * offset) if slab.size else None


@dataclass(frozen=True, slots=True)
class DeltaWorkspace:
    """Scratch memory for chunked sequences, any content, shared by all layers: mixed [>= T, channels], gates [>= T, H_v, 2],
    chunks [>= num_chunks, H_v, CHUNK_FLOATS] float32."""

    mixed: DeviceArray
    gates: DeviceArray
    chunks: DeviceArray

    @staticmethod
    def shapes(layer: DeltaWeights, num_tokens: int, num_chunks: int) -> tuple[Dim, Dim, Dim]:
        heads = layer.num_value_heads
        return (num_tokens, layer.channels), (num_tokens, heads, 2), (num_chunks, heads, CHUNK_FLOATS)

    @classmethod
    def allocate(cls, device: Device, layer: DeltaWeights, num_tokens: int, num_chunks: int) -> "DeltaWorkspace":
        return cls(*(device.empty(shape, np.float32) for shape in cls.shapes(layer, num_tokens, num_chunks)))


def delta_core(
    device: Device,
    out: DeviceArray,
    projected: DeltaProjected,
    layer: DeltaWeights,
    states: DeltaStates,
    step: DeltaStep,
    workspace: DeltaWorkspace | None,
    stream: Stream | None = None,
) -> None:
    """out [T, V] = norm(delta rule(conv(raw))) * SiLU(gate); advances live rows and writes captured cells.

    Sequences of at most `step.step_tokens` tokens go token by token, the others through chunks; a step may have both. `workspace` may be
    None when the step has no chunks.
    """
    assert out.shape == (step.num_tokens, layer.num_value_heads * layer.value_dim)
    if step.any_steps:
        _decode(device, out, projected, layer, states, step, stream)
    if step.num_chunks:
        assert (
            workspace is not None and workspace.chunks.shape[0] >= step.num_chunks and workspace.mixed.shape[0] >= step.num_tokens
        )
        _convolve(device, workspace, projected, layer, states, step, stream)
        _scan(device, out, workspace, layer, states, step, stream)
    _finish(device, out, projected, layer, states, step, stream)


def defines(layer: DeltaWeights) -> dict[str, int | str]:
    """The -D names of all four sources."""
    return {
        "KEY_DIM": layer.key_dim,
        "VALUE_DIM": layer.value_dim,
        "TAPS": layer.conv_kernel,
        "GROUPED": int(layer.grouped_heads),
    }


def decode_columns(layer: DeltaWeights, num_sequences: int) -> int:
    """Value columns a block of delta_decode takes.

    32 at least (64 where a warp covers 16): fewer leave lanes idle. More save convolving q and k again in every block, which matters once
    there are blocks enough. Chosen on paper: KERNELS.md 1b; to be measured.
    """
    columns = least = 32 if layer.key_dim % 32 == 0 else 64
    while (
        2 * columns <= layer.value_dim
        and num_sequences * layer.num_value_heads * (layer.value_dim // (2 * columns)) >= WANTED_BLOCKS
    ):
        columns *= 2
    return max(least, columns)


def _decode(
    device: Device,
    reads: DeviceArray,
    projected: DeltaProjected,
    layer: DeltaWeights,
    states: DeltaStates,
    step: DeltaStep,
    stream: Stream | None,
) -> None:
    columns = decode_columns(layer, step.num_sequences)
    args = (
        reads, projected.raw, projected.beta, projected.alpha, layer.conv, layer.a, layer.dt_bias,
        states.recurrent(states.rows, layer.index), states.conv(states.rows, layer.index), states.recurrent(states.cells, layer.index),
        states.layout.state_elements, step.rows, step.cu_seqlens, step.capture_tokens, step.capture_cells, step.cu_captures,
        layer.num_key_heads, layer.num_value_heads, columns, step.step_tokens, layer.epsilon,
    )  # fmt: skip
    grid = (-(-layer.value_dim // columns), layer.num_value_heads, step.num_sequences)
    device.launch(device.module("delta_decode", defines(layer)).kernel("delta_decode"), grid, (128,), args, stream=stream)


def _convolve(
    device: Device,
    workspace: DeltaWorkspace,
    projected: DeltaProjected,
    layer: DeltaWeights,
    states: DeltaStates,
    step: DeltaStep,
    stream: Stream | None,
) -> None:
    args = (
        workspace.mixed, workspace.gates, projected.raw, projected.beta, projected.alpha, layer.conv, layer.a, layer.dt_bias,
        states.conv(states.rows, layer.index), states.layout.state_elements, step.rows, step.cu_seqlens, step.num_sequences,
        layer.num_key_heads, layer.num_value_heads, step.step_tokens, layer.epsilon,
    )  # fmt: skip
    heads = 2 * layer.num_key_heads + layer.num_value_heads + 1  # the last one: the gates
    grid = (-(-heads // 4), -(-step.num_tokens // 16))
    device.launch(device.module("delta_conv", defines(layer)).kernel("delta_conv"), grid, (128,), args, stream=stream)


def _scan(
    device: Device,
    reads: DeviceArray,
    workspace: DeltaWorkspace,
    layer: DeltaWeights,
    states: DeltaStates,
    step: DeltaStep,
    stream: Stream | None,
) -> None:
    columns = 32 if layer.value_dim % 32 == 0 else 16
    module = device.module("delta_prefill", {**defines(layer), "COLUMNS": columns})
    args = (workspace.chunks, workspace.mixed, workspace.gates, step.chunks, layer.num_key_heads, layer.num_value_heads)
    device.launch(module.kernel("delta_chunk"), (step.num_chunks, layer.num_value_heads), (256,), args, stream=stream)
    args = (
        reads, workspace.mixed, workspace.chunks,
        states.recurrent(states.rows, layer.index), states.recurrent(states.cells, layer.index), states.layout.state_elements,
        step.rows, step.chunks, step.cu_chunks, step.capture_cells, layer.num_key_heads, layer.num_value_heads,
    )  # fmt: skip
    grid = (layer.value_dim // columns, layer.num_value_heads, step.num_sequences)
    device.launch(module.kernel("delta_scan"), grid, (4 * columns,), args, stream=stream)


def _finish(
    device: Device,
    out: DeviceArray,
    projected: DeltaProjected,
    layer: DeltaWeights,
    states: DeltaStates,
    step: DeltaStep,
    stream: Stream | None,
) -> None:
    norm_blocks = -(-step.num_tokens * layer.num_value_heads // 8)
    args = (
        out, out, projected.gate, layer.output_norm, projected.raw,
        states.conv(states.rows, layer.index), states.conv(states.cells, layer.index), states.layout.state_elements,
        step.rows, step.cu_seqlens, step.capture_tokens, step.capture_cells, step.cu_captures,
        step.num_tokens, step.num_sequences, layer.num_value_heads, layer.channels, norm_blocks, layer.epsilon,
    )  # fmt: skip
    grid = (norm_blocks + step.num_sequences * -(-layer.channels // 256),)
    device.launch(device.module("delta_finish", defines(layer)).kernel("delta_finish"), grid, (256,), args, stream=stream)
