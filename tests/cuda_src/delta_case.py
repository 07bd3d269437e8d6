"""A DeltaNet layer's core with random inputs, and its expected results in float64, token by token from the formulas."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.compute.cuda.delta_chunks import STEP_TOKENS, ChunkPlan, plan_chunks
from svc.compute.cuda.delta_core import DeltaInputs, DeltaProjected, DeltaStates, DeltaWorkspace, delta_core
from svc.compute.cuda.device import Device, DeviceArray
from svc.compute.step_inputs import Int32, StepInputs
from svc.memory.layout import MemoryLayout
from svc.model.layers.delta import DeltaWeights
from tests.kernels import oracle

Array = NDArray[Any]

EPSILON = 1e-6
LAYER = 1  # the second of two: offsets inside a row count
NUM_ROWS, NUM_SNAPSHOTS = 7, 6


def delta_inputs(device: Device, inputs: StepInputs, plan: ChunkPlan) -> DeltaInputs:
    """Uploads the arrays of a step, each into memory of its own."""

    def on_device(values: Int32) -> DeviceArray:
        return device.from_host(np.ascontiguousarray(values, np.int32))

    return DeltaInputs(
        num_tokens=inputs.num_tokens,
        num_sequences=inputs.num_sequences,
        num_chunks=plan.num_chunks,
        step_tokens=plan.step_tokens,
        any_steps=plan.any_steps,
        cu_seqlens=on_device(inputs.cu_seqlens),
        rows=on_device(inputs.rows),
        capture_tokens=on_device(inputs.capture_tokens),
        capture_snapshots=on_device(inputs.capture_snapshots),
        cu_captures=on_device(inputs.cu_captures),
        rounds=tuple((on_device(chunks), on_device(cu_chunks)) for chunks, cu_chunks in plan.rounds(plan.num_chunks)),
    )


@dataclass(frozen=True)
class Shape:
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    taps: int = 4
    grouped: bool = False

    @property
    def channels(self) -> int:
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim

    @property
    def layout(self) -> MemoryLayout:
        return MemoryLayout(
            hidden_size=12, num_attention_layers=0, num_kv_heads=0, head_dim=0, num_delta_layers=2,
            num_value_heads=self.num_value_heads, key_dim=self.key_dim, value_dim=self.value_dim,
            conv_channels=self.channels, conv_rows=self.taps - 1, page_tokens=16,
        )  # fmt: skip


@dataclass(frozen=True)
class Piece:
    """One sequence of the step. `captures`: (tokens of this step after which to capture, snapshot). `row` below zero: padding."""

    row: int
    num_tokens: int
    captures: tuple[tuple[int, int], ...] = ()
    start: int = 0  # position in the text; a sequence at 0 has a state of zeros

    @property
    def used(self) -> bool:
        return self.row >= 0


class DeltaCase:
    """Change `numbers` or `vectors` before `run`, if at all. Memory that the kernels must not read is NaN."""

    def __init__(self, shape: Shape, pieces: list[Piece], seed: int = 0, spare_tokens: int = 0) -> None:
        self.shape, self.pieces = shape, pieces
        self.random = np.random.default_rng(seed)
        lengths = [piece.num_tokens for piece in pieces]
        self.cu_seqlens = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        self.num_tokens = int(self.cu_seqlens[-1]) + spare_tokens
        heads, values = shape.num_value_heads, shape.num_value_heads * shape.value_dim
        self.numbers = {
            "raw": self.normal(self.num_tokens, shape.channels),
            "gate": self.normal(self.num_tokens, values),
            "beta": self.normal(self.num_tokens, heads),
            "alpha": self.normal(self.num_tokens, heads),
        }
        self.vectors = {
            "conv": 0.5 * self.normal(shape.channels, shape.taps),
            "a": -np.exp(self.normal(heads)),
            "dt_bias": self.normal(heads),
            "output_norm": 1 + 0.1 * self.normal(shape.value_dim),
        }
        for numbers in self.numbers.values():
            numbers[self.cu_seqlens[-1] :] = np.nan
            for sequence, piece in enumerate(pieces):
                if not piece.used:
                    numbers[self.span(sequence)] = np.nan
        self.rows = self.past()

    def normal(self, *shape: int) -> Array:
        return self.random.standard_normal(shape).astype(np.float32)

    def span(self, sequence: int) -> slice:
        return slice(*self.cu_seqlens[sequence : sequence + 2])

    # -- states -----------------------------------------------------------------------------------------------------------------
    def past(self) -> Array:
        rows = np.full((NUM_ROWS, self.shape.layout.state_elements), np.nan, np.float32)
        for piece in self.pieces:
            if piece.used:
                scale = np.float32(piece.start > 0)
                for part in self.parts(rows[piece.row]):
                    part[...] = self.normal(*part.shape) * scale
        return rows

    def parts(self, row: Array) -> tuple[Array, Array]:
        """Views of this layer's states [H_v, D_v, D_k] and convolution rows [taps - 1, channels] in a row or snapshot."""
        shape, layout = self.shape, self.shape.layout
        at, conv_at = layout.recurrent_offset(LAYER), layout.conv_offset(LAYER)
        recurrent = row[at : at + layout.recurrent_elements].reshape(
            shape.num_value_heads, shape.value_dim, shape.key_dim, copy=False
        )
        return recurrent, row[conv_at : conv_at + layout.conv_elements].reshape(shape.taps - 1, shape.channels, copy=False)

    # -- float64 ----------------------------------------------------------------------------------------------------------------
    def expected(self) -> tuple[Array, Array, Array]:
        """(out, rows, snapshots); NaN where nothing is written."""
        values = self.shape.num_value_heads * self.shape.value_dim
        out = np.zeros((self.num_tokens, values))
        rows = self.rows.astype(float)
        snapshots = np.full((NUM_SNAPSHOTS, rows.shape[1]), np.nan)
        for sequence, piece in enumerate(self.pieces):
            if piece.used and piece.num_tokens:
                out[self.span(sequence)], history = self.run_sequence(sequence)
                for target, done in [
                    (rows[piece.row], piece.num_tokens),
                    *((snapshots[snapshot_id], done) for done, snapshot_id in piece.captures if snapshot_id >= 0),
                ]:
                    for part, after in zip(self.parts(target), history[done - 1], strict=True):
                        part[...] = after
        return out, rows, snapshots

    def run_sequence(self, sequence: int) -> tuple[Array, list[tuple[Array, Array]]]:
        """Outputs [n, V], and the states after each token."""
        shape, span = self.shape, self.span(sequence)
        state, kept = (part.astype(float) for part in self.parts(self.rows[self.pieces[sequence].row]))
        numbers = {name: array[span].astype(float) for name, array in self.numbers.items()}
        vectors = {name: array.astype(float) for name, array in self.vectors.items()}
        raw = np.concatenate([kept, numbers["raw"]])
        with np.errstate(over="ignore"):
            mixed = oracle.convolve(raw, vectors["conv"])[shape.taps - 1 :]
            beta, gate = oracle.sigmoid(numbers["beta"]), oracle.silu(numbers["gate"])
        g = vectors["a"] * np.logaddexp(0, numbers["alpha"] + vectors["dt_bias"])
        keys = shape.num_key_heads * shape.key_dim
        q, k, v = (part.reshape(len(mixed), -1, size) for part, size in zip(
            np.split(mixed, [keys, 2 * keys], axis=1), (shape.key_dim, shape.key_dim, shape.value_dim), strict=True))  # fmt: skip
        q, k = (part / np.sqrt((part * part).sum(-1, keepdims=True) + EPSILON) for part in (q, k))
        outputs, states = [], []
        for h in range(shape.num_value_heads):
            ratio = shape.num_value_heads // shape.num_key_heads
            kh = h // ratio if shape.grouped else h % shape.num_key_heads
            read, after = oracle.delta_rule(q[:, kh] / np.sqrt(shape.key_dim), k[:, kh], v[:, h], beta[:, h], g[:, h], state[h].T)
            outputs.append(oracle.norm(read, vectors["output_norm"], EPSILON))
            states.append([one.T for one in after])
        history = [(np.stack([one[t] for one in states]), raw[t + 1 : t + shape.taps]) for t in range(len(mixed))]
        return np.concatenate(outputs, axis=1) * gate, history

    # -- device -----------------------------------------------------------------------------------------------------------------
    def inputs(self) -> StepInputs:
        captures = [
            (int(self.cu_seqlens[i]) + done - 1, snapshot_id)
            for i, piece in enumerate(self.pieces)
            for done, snapshot_id in piece.captures
        ]
        tokens, snapshots = ([pair[i] for pair in captures] for i in (0, 1))
        positions = [piece.start + t for piece in self.pieces for t in range(piece.num_tokens)]
        none = np.zeros((len(positions), 0), np.float32)
        return StepInputs(
            tokens=np.zeros(len(positions), np.int32),
            positions=np.array(positions, np.int32),
            cu_seqlens=self.cu_seqlens,
            rows=np.array([piece.row for piece in self.pieces], np.int32),
            modes=np.zeros(len(self.pieces), np.int32),
            block_table=np.zeros((len(self.pieces), 0), np.int32),
            capture_tokens=np.array(tokens, np.int32),
            capture_snapshots=np.array(snapshots, np.int32),
            cu_captures=np.concatenate([[0], np.cumsum([len(piece.captures) for piece in self.pieces])]).astype(np.int32),
            rope_cos=none,
            rope_sin=none,
        )

    def step(self, device: Device, step_tokens: int) -> DeltaInputs:
        inputs = self.inputs()
        return replace(delta_inputs(device, inputs, plan_chunks(inputs, step_tokens)), num_tokens=self.num_tokens)

    def layer(self, device: Device) -> DeltaWeights:
        shape, vectors = self.shape, {name: device.from_host(array) for name, array in self.vectors.items()}
        return DeltaWeights(
            LAYER, shape.num_key_heads, shape.num_value_heads, shape.key_dim, shape.value_dim, shape.taps, EPSILON, shape.grouped,
            input_norm=None, qkv=None, gate=None, beta=None, alpha=None, output=None, **vectors,
        )  # fmt: skip

    def run(self, device: Device, step_tokens: int = STEP_TOKENS) -> tuple[Array, Array, Array]:
        """(out, rows, snapshots) of the kernels; sequences of up to `step_tokens` tokens go token by token."""
        layer, step = self.layer(device), self.step(device, step_tokens)
        projected = DeltaProjected(**{name: device.from_host(array) for name, array in self.numbers.items()})
        snapshots = device.empty((NUM_SNAPSHOTS, self.rows.shape[1]), np.float32)
        states = DeltaStates(self.shape.layout, device.from_host(self.rows), snapshots)
        out = device.empty((self.num_tokens, self.shape.num_value_heads * self.shape.value_dim), np.float32)
        workspace = DeltaWorkspace.allocate(device, layer, self.num_tokens, step.num_chunks) if step.num_chunks else None
        delta_core(device, out, projected, layer, states, step, workspace)
        return device.to_host(out), device.to_host(states.rows), device.to_host(states.snapshots)


def assert_close(actual: tuple[Array, Array, Array], expected: tuple[Array, Array, Array], tolerance: float) -> None:
    """Each array within `tolerance` of its largest magnitude; NaN where, and only where, it is expected."""
    for name, got, wanted in zip(("out", "rows", "snapshots"), actual, expected, strict=True):
        scale = float(np.nanmax(np.abs(wanted), initial=1e-30)) if np.isfinite(wanted).any() else 1.0
        np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * scale, err_msg=name)
