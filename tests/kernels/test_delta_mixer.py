"""Gated DeltaNet mixer against float64: outputs, live states and captured states, in any batch and with any past."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from svc.model.layers.delta import DeltaWeights
from tests.kernels import oracle
from tests.kernels.backends import KernelBackend
from tests.kernels.op_rig import BATCH_IDS, BATCHES, OpRig, Weights, delta_layout, middle_captures

EPSILON = 1e-6
WIDTH = 40
LAYER = 1  # the second of two: offsets inside a row count
# key heads, value heads, head size, taps, grouped
SHAPES = [(2, 6, 16, 4, True), (2, 6, 16, 4, False), (3, 3, 32, 4, False), (1, 5, 48, 3, True), (4, 8, 16, 2, False)]


class Case:
    """A layer, a step and, in float64, the expected results."""

    def __init__(
        self,
        backend: KernelBackend,
        shape: tuple[int, int, int, int, bool],
        batch: list[tuple[int, int]],
        kind: str,
        snapshot_type: str = "f32",
        journal_tokens: int | None = None,
    ) -> None:
        self.n_k, self.n_v, self.size, self.taps, self.grouped = shape
        self.layout = replace(delta_layout(self.n_k, self.n_v, self.size, self.taps, hidden=WIDTH), snapshot_type=snapshot_type)
        captures = middle_captures(batch) if journal_tokens is None else every_position(batch)
        sizes = {"seed": len(batch), "journal_tokens": journal_tokens or 0}
        self.rig = OpRig(backend, self.layout, batch, captures=captures, **sizes)
        self.layer, self.exact = self.make_layer(kind)
        self.hidden, values = self.rig.hidden(WIDTH)
        self.values = values
        self.expected_hidden = values.copy()
        self.expected_rows: list[NDArray[Any]] = []
        self.expected_snapshots: list[NDArray[Any]] = []
        self.fill()

    def make_layer(self, kind: str) -> tuple[DeltaWeights, dict[str, NDArray[np.float64]]]:
        weights, values = Weights(self.rig.ops, seed=1, kind=kind), self.n_v * self.size
        parts = {
            "input_norm": weights.norm(WIDTH),
            "qkv": weights.matrix(self.layout.conv_channels, WIDTH),
            "gate": weights.matrix(values, WIDTH),
            "beta": weights.matrix(self.n_v, WIDTH),
            "alpha": weights.matrix(self.n_v, WIDTH),
            "conv": weights.vector(self.layout.conv_channels, self.taps, spread=0.5),
            "a": weights.vector(self.n_v, mean=-1.0, spread=0.3),
            "dt_bias": weights.vector(self.n_v),
            "output_norm": weights.norm(self.size),
            "output": weights.matrix(WIDTH, values),
        }
        layer = DeltaWeights(
            LAYER, self.n_k, self.n_v, self.size, self.size, self.taps, EPSILON, self.grouped, *(part for part, _ in parts.values())
        )
        return layer, {name: exact for name, (_, exact) in parts.items()}

    def fill(self) -> None:
        """Gives each sequence a past (zeros where it starts) and works out what the step must leave behind."""
        slab = np.array(self.rig.backend.read(self.rig.caches.rows))
        for (start, _), row, span in zip(self.rig.batch, self.rig.rows, self.rig.spans(), strict=True):
            state = np.zeros((self.n_v, self.size, self.size), np.float32)
            conv = np.zeros((self.taps - 1, self.layout.conv_channels), np.float32)
            if start:
                state[:] = self.rig.random.normal(0, 1, state.shape)
                conv[:] = self.rig.random.normal(0, 1, conv.shape)
            self.put(slab[row], state, conv)
            self.expect(span, state.astype(float), conv.astype(float))
        self.rig.backend.write(self.rig.caches.rows, slab)

    def expect(self, span: slice, state: NDArray[np.float64], conv: NDArray[np.float64]) -> None:
        w = self.exact
        x = oracle.norm(self.values[span], w["input_norm"], EPSILON)
        raw = np.concatenate([conv, x @ w["qkv"].T])
        y = oracle.convolve(raw, w["conv"])[self.taps - 1 :]
        beta, dt = oracle.sigmoid(x @ w["beta"].T), np.log1p(np.exp(x @ w["alpha"].T + w["dt_bias"]))
        heads = y.reshape(len(x), -1, self.size)
        outputs, states = [], []
        for h in range(self.n_v):
            kh = h // (self.n_v // self.n_k) if self.grouped else h % self.n_k
            q, k, v = heads[:, kh], heads[:, self.n_k + kh], heads[:, 2 * self.n_k + h]
            q, k = (part / np.sqrt((part * part).sum(1, keepdims=True) + EPSILON) for part in (q, k))
            read, after = oracle.delta_rule(q / np.sqrt(self.size), k, v, beta[:, h], w["a"][h] * dt[:, h], state[h])
            outputs.append(oracle.norm(read, w["output_norm"], EPSILON))
            states.append(after)
        gate = oracle.silu(x @ w["gate"].T)
        self.expected_hidden[span] += (np.concatenate(outputs, axis=1) * gate) @ w["output"].T

        history = [(np.stack([states[h][t] for h in range(self.n_v)]), raw[t + 1 : t + self.taps]) for t in range(len(x))]
        sequence = self.rig.spans().index(span)
        start = self.rig.batch[sequence][0]
        self.expected_rows.append(self.packed(*history[-1]))
        self.expected_snapshots += [self.packed(*history[p - start - 1]) for s, p in self.rig.captures if s == sequence]

    def packed(self, state: NDArray[Any], conv: NDArray[Any]) -> NDArray[Any]:
        """A row of which only this layer's part is known: the rest stays NaN."""
        row = np.full(self.layout.state_elements, np.nan)
        self.put(row, state, conv)
        return row

    def put(self, row: NDArray[Any], state: NDArray[Any], conv: NDArray[Any]) -> None:
        if self.rig.backend.state_order == "vk":
            state = state.swapaxes(1, 2)
        at = self.layout.recurrent_offset(LAYER)
        row[at : at + state.size] = state.ravel()
        at = self.layout.conv_offset(LAYER)
        row[at : at + conv.size] = conv.ravel()

    def run(self) -> None:
        self.rig.ops.delta_mixer(self.hidden, self.layer, self.rig.inputs, self.rig.caches)

    def check(self, tolerance: float) -> None:
        read = self.rig.backend.read
        np.testing.assert_allclose(read(self.hidden), self.expected_hidden, rtol=tolerance, atol=tolerance)
        # NaN equals NaN here: other layers' parts, other rows and snapshots must not have been written.
        for slab, numbers, rows in (
            (self.rig.caches.rows, self.rig.rows, self.expected_rows),
            (self.rig.caches.snapshots, self.rig.snapshots, self.expected_snapshots),
        ):
            expected = np.full_like(read(slab), np.nan, dtype=float)
            expected[numbers] = rows
            np.testing.assert_allclose(read(slab), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("batch", BATCHES, ids=BATCH_IDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_float64(backend: KernelBackend, shape: tuple[int, int, int, int, bool], batch: list[tuple[int, int]]) -> None:
    """Both head maps, several head sizes and taps; states captured in mid-chunk; nothing else is written."""
    case = Case(backend, shape, batch, "F32")
    case.run()
    case.check(backend.tolerance("F32"))


@pytest.mark.parametrize("snapshot_type", ["bf16", "q8"])
@pytest.mark.parametrize("batch", [BATCHES[2], BATCHES[6], BATCHES[9]], ids=[BATCH_IDS[2], BATCH_IDS[6], BATCH_IDS[9]])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_compact_captures(
    backend: KernelBackend, shape: tuple[int, int, int, int, bool], batch: list[tuple[int, int]], snapshot_type: str
) -> None:
    """A capture at a chunk's last token writes the very words that saving the row does, into this layer's part and nothing else."""
    case = Case(backend, shape, batch, "F32", snapshot_type)
    case.run()
    rig, layout = case.rig, case.layout
    captured = np.array(backend.read(rig.caches.snapshots)).view(np.uint32)
    part = slice(layout.snapshot_recurrent_offset(LAYER), layout.snapshot_recurrent_offset(LAYER) + layout.snapshot_layer_words)
    written = np.zeros(captured.shape, bool)
    written[rig.snapshots, part] = True
    assert (captured[~written] == np.float32(np.nan).view(np.uint32)).all()
    ends = {(sequence, start + count): row for sequence, ((start, count), row) in enumerate(zip(rig.batch, rig.rows, strict=True))}
    pairs = [(ends[wanted], number) for wanted, number in zip(rig.captures, rig.snapshots, strict=True) if wanted in ends]
    assert len(pairs) == len(rig.batch)
    rig.ops.save_rows(rig.caches, np.array(pairs, np.int32))
    saved = np.array(backend.read(rig.caches.snapshots)).view(np.uint32)
    np.testing.assert_array_equal(captured[:, part], saved[:, part])


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_weight_types(backend: KernelBackend, kind: str) -> None:
    case = Case(backend, SHAPES[0], BATCHES[-1], kind)
    case.run()
    case.check(backend.tolerance(kind))


def test_strong_decay_and_saturated_gates(backend: KernelBackend) -> None:
    """Inputs far outside the usual range: decay underflows to 0 and sigmoids saturate without NaN or overflow."""
    case = Case(backend, SHAPES[1], [(9, 5)], "F32")
    backend.write(case.hidden, np.array(case.values * 1e4, np.float32))
    layer = case.layer
    big = DeltaWeights(**{
        **{name: getattr(layer, name) for name in layer.__dataclass_fields__},
        "a": case.rig.ops.vector(np.full(case.n_v, -77.0, np.float32)),
        "dt_bias": case.rig.ops.vector(np.full(case.n_v, 30.0, np.float32)),
    })  # fmt: skip
    case.rig.ops.delta_mixer(case.hidden, big, case.rig.inputs, case.rig.caches)
    assert np.isfinite(backend.read(case.hidden)).all()


def every_position(batch: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(sequence, start + after) for sequence, (start, count) in enumerate(batch) for after in range(1, count + 1)]


# (start, tokens): a lone token, which advances its row; entries that wrap around the journal; fewer tokens than taps.
DRAFTS = [[(4, 2)], [(0, 5), (3, 1), (7, 8)], [(6, 3), (15, 7), (1, 2)]]


@pytest.mark.parametrize("drafts", DRAFTS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rolled_back(backend: KernelBackend, shape: tuple[int, int, int, int, bool], drafts: list[tuple[int, int]]) -> None:
    """Drafts give the outputs of a plain chunk and leave live rows alone; settled at any accepted token, a row has the bits that
    the forward captured there."""
    plain, case = (Case(backend, shape, drafts, "F32", journal_tokens=tokens) for tokens in (0, 9))
    read, rig = backend.read, case.rig
    before = np.array(read(rig.caches.rows))
    plain.run()
    case.run()
    np.testing.assert_array_equal(read(case.hidden), read(plain.hidden))
    after, snapshots = np.array(read(rig.caches.rows)), np.array(read(rig.caches.snapshots))
    drafted = [sequence for sequence, (_, count) in enumerate(drafts) if count > 1]
    held = [rig.rows[sequence] for sequence in drafted]
    np.testing.assert_array_equal(after[held], before[held])
    for most in (1, 2, 99):
        backend.write(rig.caches.rows, after)
        expected, settles = after.copy(), []
        for sequence in drafted:
            start, count = drafts[sequence]
            end = start + min(most + sequence % 2, count)
            settles.append((rig.rows[sequence], start, end))
            expected[rig.rows[sequence]] = snapshots[rig.snapshots[rig.captures.index((sequence, end))]]
        rig.ops.settle_rows(rig.caches, np.array(settles, np.int32), grouped_heads=shape[-1])
        np.testing.assert_array_equal(read(rig.caches.rows), expected)
