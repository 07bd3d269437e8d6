"""Embedding, final hidden rows and logits."""

import numpy as np
import pytest

from tests.kernels import oracle
from tests.kernels.backends import KernelBackend
from tests.kernels.op_rig import BATCH_IDS, BATCHES, OpRig, Weights, delta_layout, middle_captures
from tests.tolerances import KERNEL

WIDTHS = {"F32": 40, "F16": 24, "BF16": 72, "Q8_0": 64, "Q4_0": 96}


@pytest.mark.parametrize("kind", WIDTHS)
@pytest.mark.parametrize("batch", [BATCHES[0], BATCHES[-1]], ids=[BATCH_IDS[0], BATCH_IDS[-1]])
def test_embed(backend: KernelBackend, batch: list[tuple[int, int]], kind: str) -> None:
    """Exactly the table's rows, dequantized; repeats and the last row included."""
    rig = OpRig(backend, delta_layout(1, 1, 16, 4), batch, vocabulary=7)
    table, exact = Weights(rig.ops, seed=6, kind=kind).matrix(7, WIDTHS[kind])
    hidden = rig.ops.empty((rig.inputs.num_tokens, WIDTHS[kind]))
    rig.ops.embed(hidden, table, rig.inputs)
    np.testing.assert_array_equal(backend.read(hidden), exact[rig.inputs.tokens].astype(np.float32))


@pytest.mark.parametrize("batch", BATCHES, ids=BATCH_IDS)
def test_final_hidden(backend: KernelBackend, batch: list[tuple[int, int]]) -> None:
    """norm(hidden) of last tokens into rows and of captured tokens into snapshots, after the states, which do not change."""
    layout = delta_layout(2, 4, 16, 4, hidden=72)
    rig = OpRig(backend, layout, batch, captures=middle_captures(batch))
    norm, exact = Weights(rig.ops, seed=7).norm(72)
    hidden, values = rig.hidden(72)
    rig.ops.final_hidden(hidden, norm, 1e-6, rig.inputs, rig.caches)
    final = oracle.norm(values, exact, 1e-6)
    rows = np.full((rig.plan.num_rows, layout.state_elements), np.nan)
    snapshots = np.full((rig.plan.num_snapshots, layout.state_elements), np.nan)
    for row, span in zip(rig.rows, rig.spans(), strict=True):
        rows[row, layout.hidden_offset :] = final[span][-1]
    for snapshot_id, (sequence, position) in zip(rig.snapshots, rig.captures, strict=True):
        snapshots[snapshot_id, layout.hidden_offset :] = final[rig.spans()[sequence]][position - batch[sequence][0] - 1]
    tolerance = backend.tolerance("F32")
    np.testing.assert_allclose(backend.read(rig.caches.rows), rows, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(backend.read(rig.caches.snapshots), snapshots, rtol=tolerance, atol=tolerance)


def test_final_hidden_of_drafts(backend: KernelBackend) -> None:
    """Drafts leave the hidden row of their live row alone; settled at an accepted token, it has that token's, as hidden_rows gives
    it."""
    layout, batch = delta_layout(2, 4, 16, 4, hidden=72), [(3, 4), (0, 1), (6, 2)]
    rig = OpRig(backend, layout, batch, journal_tokens=5)
    norm, _ = Weights(rig.ops, seed=7).norm(72)
    hidden, _ = rig.hidden(72)
    out = rig.ops.empty((7, 72))
    rig.ops.hidden_rows(out, hidden, norm, 1e-6, np.arange(7, dtype=np.int32))
    rig.ops.final_hidden(hidden, norm, 1e-6, rig.inputs, rig.caches)
    expected = np.full((rig.plan.num_rows, 72), np.nan, np.float32)
    expected[rig.rows[1]] = backend.read(out)[4]
    np.testing.assert_array_equal(backend.read(rig.caches.rows)[:, layout.hidden_offset :], expected)
    settles = np.array([(rig.rows[0], 3, 6), (rig.rows[2], 6, 8)], np.int32)
    rig.ops.settle_rows(rig.caches, settles, grouped_heads=False)
    expected[rig.rows[0]], expected[rig.rows[2]] = backend.read(out)[2], backend.read(out)[6]
    np.testing.assert_array_equal(backend.read(rig.caches.rows)[:, layout.hidden_offset :], expected)


@pytest.mark.parametrize("tokens", [[0], [21, 3, 3, 0, 23]], ids=str)
def test_hidden_rows(backend: KernelBackend, tokens: list[int]) -> None:
    """norm(hidden) of any tokens, in any order and repeated, and nothing else is written: residual stream and caches stay."""
    rig = OpRig(backend, delta_layout(2, 4, 16, 4, hidden=72), BATCHES[-1])
    norm, exact = Weights(rig.ops, seed=7).norm(72)
    hidden, values = rig.hidden(72)
    out = rig.ops.empty((len(tokens), 72))
    rig.ops.hidden_rows(out, hidden, norm, 1e-6, np.array(tokens, np.int32))
    tolerance = backend.tolerance("F32")
    np.testing.assert_allclose(backend.read(out), oracle.norm(values, exact, 1e-6)[tokens], rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(backend.read(hidden), values)
    assert np.isnan(backend.read(rig.caches.rows)).all()


@pytest.mark.parametrize("rows", [[0], [2, 0], [1, 1, 3], [4, 3, 2, 1, 0]], ids=str)
def test_live_hidden(backend: KernelBackend, rows: list[int]) -> None:
    """The final hidden rows of live rows, for rows in any order and repeated."""
    layout = delta_layout(2, 4, 16, 4, hidden=72)
    rig = OpRig(backend, layout, [(0, 1), (0, 1), (0, 1)])  # a plan of five rows
    slab = rig.random.normal(0, 1, backend.read(rig.caches.rows).shape).astype(np.float32)
    backend.write(rig.caches.rows, slab)
    out = rig.ops.empty((len(rows), 72))
    rig.ops.live_hidden(out, np.array(rows, np.int32), rig.caches)
    np.testing.assert_array_equal(backend.read(out), slab[rows, layout.hidden_offset :])


@pytest.mark.parametrize("kind", WIDTHS)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_logits(backend: KernelBackend, count: int, kind: str) -> None:
    """output . vector, for any number of vectors; the vocabulary is odd."""
    ops = backend.make()
    output, exact = Weights(ops, seed=8, kind=kind).matrix(101, WIDTHS[kind])
    values = np.random.default_rng(9).normal(0, 1, (count, WIDTHS[kind])).astype(np.float32)
    vectors, out = ops.empty(values.shape), ops.empty((count, 101))
    backend.write(vectors, values)
    ops.logits(out, output, vectors)
    expected = backend.activations(values.astype(float), kind) @ exact.T
    np.testing.assert_allclose(ops.to_numpy(out), expected, rtol=backend.tolerance(kind), atol=backend.tolerance(kind))


@pytest.mark.parametrize("count", [1, 3, 300])
def test_logprobs(backend: KernelBackend, count: int) -> None:
    """log softmax of given tokens, rows in any order and repeated; a row that is not finite gives NaN and its neighbours do not
    notice."""
    ops, random = backend.make(), np.random.default_rng(10)
    values = random.normal(0, 5, (4, 101)).astype(np.float32)
    values[2, 77] = np.inf
    logits = ops.empty(values.shape)
    backend.write(logits, values)
    rows, targets = random.integers(0, 4, count), random.integers(0, 101, count)
    rows[0], targets[0] = 3, 100
    exact = values.astype(float)
    expected = exact[rows, targets] - np.logaddexp.reduce(exact, axis=1)[rows]
    expected[rows == 2] = np.nan
    found = ops.logprobs(logits, rows.tolist(), targets.tolist())
    np.testing.assert_allclose(found, expected, rtol=KERNEL, atol=KERNEL)
