"""Moving whole pages, rows and snapshots: bit for bit, in order, and nothing beside them."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from svc.compute.backend import Slab, StepBatch
from svc.compute.step_inputs import pairs
from svc.compute.tier_moves import SLABS
from svc.memory.layout import MemoryLayout
from svc.memory.plan import MemoryPlan
from svc.memory.tiers import Move, MoveKind
from tests.kernels.backends import KernelBackend


class Slabs:
    """Caches of a small hybrid plan, filled with numbers that name their place."""

    def __init__(self, backend: KernelBackend, kv_type: str = "f32") -> None:
        layout = MemoryLayout(40, 2, 3, 16, 2, 3, 16, 16, 80, 3, 16, kv_type)
        self.backend, self.ops = backend, backend.make()
        self.caches = self.ops.caches(MemoryPlan(layout, num_pages=5, num_rows=3, num_snapshots=4))
        for name in ("kv", "rows", "snapshots"):
            slab = getattr(self.caches, name)
            shape = backend.read(slab).shape
            values = np.arange(shape[0])[:, None] + np.arange(shape[1]) % 251 / 256
            backend.write(slab, values.astype(backend.read(slab).dtype))
        self.before = {name: self.copy(name) for name in ("kv", "rows", "snapshots")}

    def copy(self, name: str) -> np.ndarray:
        return np.array(self.backend.read(getattr(self.caches, name)))

    def check(self, **changed: dict[int, np.ndarray]) -> None:
        for name, expected in self.before.items():
            expected = expected.copy()
            for row, values in changed.get(name, {}).items():
                expected[row] = values
            np.testing.assert_array_equal(self.copy(name), expected)


@pytest.mark.parametrize("kv_type", ["f32", "f16"])
def test_copy_pages(backend: KernelBackend, kv_type: str) -> None:
    """One after the other: a page may be a target first and a source then."""
    slabs = Slabs(backend, kv_type)
    slabs.ops.copy_pages(slabs.caches, pairs([(0, 2), (4, 1), (2, 3)]))
    kv = slabs.before["kv"]
    slabs.check(kv={2: kv[0], 1: kv[4], 3: kv[0]})


def test_save_and_restore(backend: KernelBackend) -> None:
    """row -> snapshot, then snapshot -> other row, NaN and all bits included."""
    slabs = Slabs(backend)
    slabs.before["rows"][1, ::7] = np.nan
    slabs.before["rows"][1, 1::7] = -0.0
    backend.write(slabs.caches.rows, slabs.before["rows"])
    rows, snapshots = slabs.before["rows"], slabs.before["snapshots"]
    slabs.ops.save_rows(slabs.caches, pairs([(1, 3), (0, 0)]))
    slabs.check(snapshots={3: rows[1], 0: rows[0]})
    slabs.ops.restore_rows(slabs.caches, pairs([(2, 3), (0, 1)]))
    slabs.check(snapshots={3: rows[1], 0: rows[0]}, rows={2: rows[1], 0: snapshots[1]})
    assert np.signbit(slabs.copy("rows")[2, 1])


@pytest.mark.parametrize("snapshot_type", ["bf16", "q8"])
@pytest.mark.parametrize("sizes", [(40, 2, 3, 16, 32, 80, 3), (4, 1, 1, 48, 16, 16, 1), (12, 3, 5, 16, 16, 112, 2)], ids=str)
def test_compact_snapshots(backend: KernelBackend, snapshot_type: str, sizes: tuple[int, ...]) -> None:
    """Saved and restored, recurrent states come back rounded as memory/layout.py says and everything else bit for bit, with NaN,
    infinity, zeros and tiny numbers among them. By way of the host it is the same."""
    rig = CompactSlabs(backend, snapshot_type, sizes)
    rig.ops.save_rows(rig.caches, pairs([(1, 3), (0, 0)]))
    rig.ops.restore_rows(rig.caches, pairs([(2, 3), (1, 0)]))
    restored = rig.rows()
    np.testing.assert_array_equal(restored[0].view(np.uint32), rig.before[0].view(np.uint32))
    rig.check(restored[2], rig.before[1])
    rig.check(restored[1], rig.before[0])
    out, row = MoveKind.SNAPSHOT_OUT, MoveKind.ROW_IN
    moves = [Move(out, 3, 0), Move(out, 0, 1), Move(row, 0, 0), Move(row, 1, 1), Move(row, 1, 2)]
    rig.ops.move(rig.caches, StepBatch(moves=moves))
    assert rig.ops.moves_over(all_of_them=True) == len(moves)
    np.testing.assert_array_equal(rig.rows().view(np.uint32), restored[[2, 1, 1]].view(np.uint32))


class CompactSlabs:
    """Caches whose snapshots are of a compact type, with random rows; some value columns are full of special numbers."""

    def __init__(self, backend: KernelBackend, snapshot_type: str, sizes: tuple[int, ...]) -> None:
        hidden, layers, heads, key_dim, value_dim, channels, conv_rows = sizes
        self.layout = MemoryLayout(
            hidden, 0, 1, 16, layers, heads, key_dim, value_dim, channels, conv_rows, 16, "f32", snapshot_type
        )
        self.backend, self.ops = backend, backend.make()
        self.caches = self.ops.caches(MemoryPlan(self.layout, 1, 3, 4, num_host_snapshots=2))
        random = np.random.default_rng(3)
        self.before = random.normal(0, 1, (3, self.layout.state_elements)).astype(np.float32)
        self.before *= 10 ** random.uniform(-4, 4, self.before.shape).astype(np.float32)
        for row in self.before:
            for layer in range(layers):
                states = self.states(row, layer)
                states[0, :, 0] = 0
                states[0, 1, 1] = np.inf
                states[0, 2, 2] = np.nan
                states[0, :, 3] = np.float32(1e-38)
                states[0, :, 4] = np.float32(1e-30) * states[0, :, 5]
                states[0, :, 6] = -states[0, :, 6]
        backend.write(self.caches.rows, self.before)

    def rows(self) -> np.ndarray:
        return np.array(self.backend.read(self.caches.rows))

    def states(self, row: np.ndarray, layer: int) -> np.ndarray:
        """View [H_v, D_k, D_v]."""
        layout, at = self.layout, self.layout.recurrent_offset(layer)
        shape = (layout.num_value_heads, layout.key_dim, layout.value_dim)
        if self.backend.state_order == "vk":
            return row[at : at + layout.recurrent_elements].reshape(shape[0], shape[2], shape[1], copy=False).swapaxes(1, 2)
        return row[at : at + layout.recurrent_elements].reshape(shape, copy=False)

    def check(self, after: np.ndarray, before: np.ndarray) -> None:
        after = after.copy()
        for layer in range(self.layout.num_delta_layers):
            got, was = np.array(self.states(after, layer)), self.states(before, layer)
            np.testing.assert_array_equal(got, ROUNDED[self.layout.snapshot_type](np.array(was)))
            self.states(after, layer)[...] = was
        np.testing.assert_array_equal(after.view(np.uint32), before.view(np.uint32))


def _as_bf16(states: np.ndarray) -> np.ndarray:
    """By way of the Python package of GGUF, as weights of that type are."""
    return quants.dequantize(quants.quantize(states, GGMLQuantizationType.BF16), GGMLQuantizationType.BF16).reshape(states.shape)


def _as_q8(states: np.ndarray) -> np.ndarray:
    """Value column by value column, in float64 but for the two float32 factors."""
    rounded = np.empty_like(states)
    for head, column in np.ndindex(states.shape[0], states.shape[2]):
        values = states[head, :, column]
        most = np.abs(values).max()
        if not np.isfinite(most):
            rounded[head, :, column] = np.nan
        elif most < 1e-30:
            rounded[head, :, column] = 0
        else:
            inverse, scale = np.float32(127) / most, most / np.float32(127)
            rounded[head, :, column] = np.rint(values * inverse) * scale
    return rounded


ROUNDED = {"bf16": _as_bf16, "q8": _as_q8}


def test_zero_rows(backend: KernelBackend) -> None:
    """NaN and infinity do not survive; other rows do."""
    slabs = Slabs(backend)
    slabs.before["rows"][[0, 2]] = np.nan
    slabs.before["rows"][0, 5] = np.inf
    backend.write(slabs.caches.rows, slabs.before["rows"])
    slabs.ops.zero_rows(slabs.caches, np.array([2, 0], np.int32))
    zero = np.zeros_like(slabs.before["rows"][0])
    slabs.check(rows={0: zero, 2: zero})


def test_nothing_to_do(backend: KernelBackend) -> None:
    slabs = Slabs(backend)
    for operation in (slabs.ops.copy_pages, slabs.ops.save_rows, slabs.ops.restore_rows):
        operation(slabs.caches, pairs([]))
    slabs.ops.zero_rows(slabs.caches, np.zeros(0, np.int32))
    slabs.check()


@pytest.mark.parametrize("kv_type", ["f32", "f16"])
def test_moves_between_the_tiers(backend: KernelBackend, kv_type: str) -> None:
    """Whole pages and states, bit for bit and in order: places that are left and entered again, runs forwards and backwards."""
    layout = MemoryLayout(40, 2, 3, 16, 2, 3, 16, 16, 80, 3, 16, kv_type)
    ops = backend.make()
    caches = ops.caches(MemoryPlan(layout, num_pages=6, num_rows=3, num_snapshots=4, num_host_pages=8, num_host_snapshots=5))
    slabs: dict[str, np.ndarray] = {}
    for number, name in enumerate(("kv", "rows", "snapshots", "host_kv", "host_snapshots")):
        slab = getattr(caches, name)
        values = 1000 * number + np.arange(slab.shape[0])[:, None] + np.arange(slab.shape[1]) % 251 / 256
        slabs[name] = values.astype(slab.dtype)
        slabs[name][:, ::7] = np.nan
        if name.startswith("host"):
            slab[...] = slabs[name]
        else:
            backend.write(slab, slabs[name])
    out, back, snapshot_id, row = MoveKind.PAGE_OUT, MoveKind.PAGE_IN, MoveKind.SNAPSHOT_OUT, MoveKind.ROW_IN
    steps = [
        [Move(out, 1, 2), Move(out, 2, 3), Move(out, 3, 4), Move(back, 7, 1), Move(back, 6, 2), Move(back, 5, 3)],
        [
            Move(snapshot_id, 3, 0),
            Move(snapshot_id, 2, 1),
            Move(row, 1, 2),
            Move(snapshot_id, 0, 1),
            Move(row, 1, 0),
            Move(row, 4, 1),
        ],
        [Move(out, 1, 7), Move(back, 7, 5), Move(out, 4, 7), Move(out, 0, 7), Move(back, 7, 4), Move(back, 3, 4)],
    ]
    before = 0
    for number, moves in enumerate(steps):
        ops.move(caches, StepBatch(moves=moves, moves_before=before))
        before += len(moves)
        assert ops.moves_over(all_of_them=number > 0) in ({before} if number else {0, before})
        for move in moves:
            source, target = SLABS[move.kind]
            slabs[target][move.target] = slabs[source][move.source]
    for name, expected in slabs.items():
        slab = getattr(caches, name)
        found = np.asarray(slab) if name.startswith("host") else backend.read(slab)
        np.testing.assert_array_equal(found.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("kv_type", ["f32", "f16"])
def test_blocks_as_bytes(backend: KernelBackend, kv_type: str) -> None:
    """Whole pages and states leave as bytes from either tier and come back into other places of the device, bit for bit."""
    layout = MemoryLayout(40, 2, 3, 16, 2, 3, 16, 16, 80, 3, 16, kv_type)
    ops = backend.make()
    caches = ops.caches(MemoryPlan(layout, num_pages=5, num_rows=2, num_snapshots=4, num_host_pages=3, num_host_snapshots=2))
    slabs: dict[Slab, np.ndarray] = {}
    for number, slab in enumerate(Slab):
        array = getattr(caches, slab.value)
        values = (1000 * number + np.arange(array.shape[0])[:, None] + np.arange(array.shape[1]) % 251 / 256).astype(array.dtype)
        values[:, ::7] = np.nan
        if slab.value.startswith("host"):
            array[...] = values
        else:
            backend.write(array, values)
        slabs[slab] = values
    for slab, values in slabs.items():
        places = [len(values) - 1, 0]
        blocks = ops.read_blocks(caches, slab, places)
        assert (blocks.dtype, blocks.shape) == (np.uint8, (2, values[0].nbytes))
        np.testing.assert_array_equal(blocks, values[places].view(np.uint8))
    for source, target in ((Slab.HOST_PAGES, Slab.PAGES), (Slab.SNAPSHOTS, Slab.SNAPSHOTS)):
        blocks = ops.read_blocks(caches, source, [1, 0])
        ops.write_blocks(caches, target, [2, 3], blocks)
        blocks[...] = 0  # it may be changed as soon as the call has returned
        slabs[target][[2, 3]] = slabs[source][[1, 0]]
        np.testing.assert_array_equal(backend.read(getattr(caches, target.value)).view(np.uint8), slabs[target].view(np.uint8))
