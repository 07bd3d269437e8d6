"""The core of a Gated DeltaNet layer: everything between the input and output projections (docs/model_math.md)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from svc.compute.cuda.delta_chunks import CHUNK
from svc.compute.cuda.device import Device, DeviceArray, Dim, Stream
from svc.compute.cuda.snapshot_cells import snapshot_define
from svc.memory.layout import MemoryLayout
from svc.model.layers.delta import DeltaWeights

STATE_ORDER = "vk"  # inner order of a head's recurrent state: value dimension, then key dimension (fastest)
CHUNK_FLOATS = 2 * CHUNK * CHUNK + 2 * CHUNK  # per chunk and value head: CHUNK_WORK in cuda_src/include/delta.cuh
WRITE_SNAPSHOTS = ("delta_decode", "delta_prefill")  # sources that depend on the snapshots' type
WANTED_BLOCKS = 264  # keep a GPU busy: two for each multiprocessor of the largest


@dataclass(frozen=True, slots=True)
class DeltaInputs:
    """Arrays of StepInputs and ChunkPlan on the device, and host numbers that shape the launches.

    `num_tokens` and `num_sequences` may count padding: sequences with a negative row, tokens after cu_seqlens[-1]. Padding is
    neither read nor advanced, and its outputs are zero. A negative capture snapshot is skipped.
    """

    num_tokens: int
    num_sequences: int
    num_chunks: int  # of the largest round
    step_tokens: int
    any_steps: bool
    cu_seqlens: DeviceArray
    rows: DeviceArray
    capture_tokens: DeviceArray
    capture_snapshots: DeviceArray
    cu_captures: DeviceArray
    rounds: tuple[tuple[DeviceArray, DeviceArray], ...]  # (chunks, cu_chunks) of ChunkPlan.rounds
    modes: DeviceArray | None = None  # None: no sequence uses the journal
    positions: DeviceArray | None = None  # with `modes`


@dataclass(frozen=True, slots=True)
class DeltaProjected:
    """Projections of all tokens, float32: raw [T, channels] (q | k | v before the convolution), gate [T, V], beta, alpha [T,
    H_v]."""

    raw: DeviceArray
    gate: DeviceArray
    beta: DeviceArray
    alpha: DeviceArray


@dataclass(frozen=True, slots=True)
class DeltaStates:
    """Live rows [n, state_elements] float32 and snapshots [n, snapshot_elements] (memory/layout.py), recurrent states in
    STATE_ORDER."""

    layout: MemoryLayout
    rows: DeviceArray
    snapshots: DeviceArray
    journal: DeviceArray | None = None  # [n, tokens, journal_elements]

    def __post_init__(self) -> None:
        # Kernels move 16 bytes at once.
        assert self.layout.state_elements % 4 == 0, f"a row of {self.layout.state_elements} floats is no multiple of 4"
        assert self.layout.snapshot_elements % 4 == 0, f"a snapshot of {self.layout.snapshot_elements} words is no multiple of 4"

    def recurrent(self, layer: int) -> DeviceArray | None:
        """The live rows, from the layer's recurrent state in the first one on."""
        return self._from(self.rows, self.layout.recurrent_offset(layer))

    def conv(self, layer: int) -> DeviceArray | None:
        return self._from(self.rows, self.layout.conv_offset(layer))

    def snapshot_recurrent(self, layer: int) -> DeviceArray | None:
        """The snapshots, from the layer's recurrent state in the first one on."""
        return self._from(self.snapshots, self.layout.snapshot_recurrent_offset(layer))

    def snapshot_conv(self, layer: int) -> DeviceArray | None:
        return self._from(self.snapshots, self.layout.snapshot_conv_offset(layer))

    def journal_part(self, offset: int) -> tuple[DeviceArray | None, int, int]:
        """The journal from an offset in its first entry on, elements of an entry, entries of a row."""
        if self.journal is None or not self.journal.size:
            return None, 0, 0
        return self._from(self.journal, offset), self.layout.journal_elements, self.journal.shape[1]

    @staticmethod
    def _from(slab: DeviceArray, offset: int) -> DeviceArray | None:
        """The slab from an offset in its first row; None for a slab without rows."""
        return slab.view((slab.size - offset,), offset_bytes=4 * offset) if slab.size else None


@dataclass(frozen=True, slots=True)
class DeltaWorkspace:
    """Scratch memory of chunked sequences, shared by all layers: mixed [>= T, channels], gates [>= T, H_v, 2],
    chunks [>= num_chunks, H_v, CHUNK_FLOATS], float32."""

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
    step: DeltaInputs,
    workspace: DeltaWorkspace | None,
    stream: Stream | None = None,
) -> None:
    """out [T, V] = norm(delta rule(conv(raw))) * SiLU(gate); advances live rows and writes captured snapshots.

    Sequences of at most `step.step_tokens` tokens advance token by token, the others in chunks; a step may have both. `workspace`
    may be None if the step has no chunks.
    """
    assert out.shape == (step.num_tokens, layer.num_value_heads * layer.value_dim)
    call = _Call(device, layer, states, step, stream)
    if step.any_steps:
        call.decode(out, projected)
    if step.rounds:
        assert workspace is not None
        assert workspace.chunks.shape[0] >= step.num_chunks
        assert workspace.mixed.shape[0] >= step.num_tokens
        call.convolve(workspace, projected)
        for chunks, cu_chunks in step.rounds:
            call.scan(out, workspace, chunks, cu_chunks)
    call.finish(out, projected)


def decode_columns(layer: DeltaWeights, num_sequences: int) -> int:
    """Value columns of a block of delta_decode.

    At least 32 (64 if a warp covers 16), since fewer leave lanes idle. More columns spare convolving q and k again in every block,
    which matters only if there are blocks enough. Not measured.
    """
    columns = 32 if layer.key_dim % 32 == 0 else 64
    while 2 * columns <= layer.value_dim:
        blocks = num_sequences * layer.num_value_heads * (layer.value_dim // (2 * columns))
        if blocks < WANTED_BLOCKS:
            break
        columns *= 2
    return columns


@dataclass(frozen=True, slots=True)
class _Call:
    """The launches of one layer in one step. `reads`: the output of the delta rule before norm and gate, stored in `out`."""

    device: Device
    layer: DeltaWeights
    states: DeltaStates
    step: DeltaInputs
    stream: Stream | None

    def decode(self, reads: DeviceArray, projected: DeltaProjected) -> None:
        layer, states, step = self.layer, self.states, self.step
        columns = decode_columns(layer, step.num_sequences)
        grid = (-(-layer.value_dim // columns), layer.num_value_heads, step.num_sequences)
        self._launch(
            "delta_decode", grid, 128,
            reads, *self._before_conv(projected),
            states.recurrent(layer.index), self._conv_rows, states.snapshot_recurrent(layer.index), *self._strides,
            step.rows, step.cu_seqlens, *self._captures, step.modes, step.positions, *states.journal_part(self._journal_offset),
            layer.num_key_heads, layer.num_value_heads, columns, step.step_tokens, layer.epsilon,
        )  # fmt: skip

    def convolve(self, workspace: DeltaWorkspace, projected: DeltaProjected) -> None:
        layer, step = self.layer, self.step
        heads = 2 * layer.num_key_heads + layer.num_value_heads + 1  # the last one: the gates
        self._launch(
            "delta_conv", (-(-heads // 4), -(-step.num_tokens // 16)), 128,
            workspace.mixed, workspace.gates, *self._before_conv(projected),
            self._conv_rows, self.states.layout.state_elements, step.rows, step.cu_seqlens, step.num_sequences,
            layer.num_key_heads, layer.num_value_heads, step.step_tokens, layer.epsilon,
        )  # fmt: skip

    def scan(self, reads: DeviceArray, workspace: DeltaWorkspace, chunks: DeviceArray, cu_chunks: DeviceArray) -> None:
        layer, states, step = self.layer, self.states, self.step
        heads = (layer.num_key_heads, layer.num_value_heads)
        self._launch(
            "delta_prefill/delta_chunk", (chunks.shape[0], layer.num_value_heads), 256,
            workspace.chunks, workspace.mixed, workspace.gates, chunks, *heads,
        )  # fmt: skip
        self._launch(
            "delta_prefill/delta_scan", (-(-layer.value_dim // 32), layer.num_value_heads, step.num_sequences), 128,
            reads, workspace.mixed, workspace.chunks,
            states.recurrent(layer.index), states.snapshot_recurrent(layer.index), *self._strides,
            step.rows, chunks, cu_chunks, step.capture_snapshots, *heads,
        )  # fmt: skip

    def finish(self, out: DeviceArray, projected: DeltaProjected) -> None:
        layer, states, step = self.layer, self.states, self.step
        raw_offset = self._journal_offset + states.layout.journal_key_elements + layer.num_value_heads * layer.value_dim
        norm_blocks = -(-step.num_tokens * layer.num_value_heads // 8)
        self._launch(
            "delta_finish", (norm_blocks + step.num_sequences * -(-layer.channels // 256),), 256,
            out, out, projected.gate, layer.output_norm, projected.raw,
            self._conv_rows, states.snapshot_conv(layer.index), *self._strides,
            step.rows, step.cu_seqlens, *self._captures, step.modes, step.positions, *states.journal_part(raw_offset),
            step.num_tokens, step.num_sequences, layer.num_value_heads, layer.channels, norm_blocks, layer.epsilon,
        )  # fmt: skip

    @property
    def _conv_rows(self) -> DeviceArray | None:
        return self.states.conv(self.layer.index)

    @property
    def _journal_offset(self) -> int:
        return self.layer.index * self.states.layout.journal_layer_elements

    @property
    def _strides(self) -> tuple[int, int]:
        """Words of a live row and of a snapshot."""
        return self.states.layout.state_elements, self.states.layout.snapshot_elements

    @property
    def _captures(self) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        return self.step.capture_tokens, self.step.capture_snapshots, self.step.cu_captures

    def _before_conv(self, projected: DeltaProjected) -> tuple[DeviceArray, ...]:
        layer = self.layer
        return projected.raw, projected.beta, projected.alpha, layer.conv, layer.a, layer.dt_bias

    def _launch(self, kernel: str, grid: Dim, threads: int, *args: Any) -> None:
        """`kernel`: "source", or "source/kernel" if the names differ."""
        layer = self.layer
        source, _, name = kernel.partition("/")
        defines = {
            "KEY_DIM": layer.key_dim,
            "VALUE_DIM": layer.value_dim,
            "TAPS": layer.conv_kernel,
            "GROUPED": int(layer.grouped_heads),
            **(snapshot_define(self.states.layout) if source in WRITE_SNAPSHOTS else {}),
        }
        self.device.launch(self.device.module(source, defines).kernel(name or source), grid, (threads,), args, stream=self.stream)
