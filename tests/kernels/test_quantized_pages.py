"""Keys and values in blocks of 8 and 4 bits: written as the GGUF package quantizes, and read by attention as it dequantizes."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

from svc.compute.backend import StepBatch
from svc.compute.step_inputs import pairs
from svc.memory.layout import KV_BLOCK_BYTES
from svc.memory.plan import MemoryPlan
from svc.memory.tiers import Move, MoveKind
from tests.kernels import oracle
from tests.kernels.backends import KernelBackend
from tests.kernels.op_rig import BATCH_IDS, BATCHES, PAGE_TOKENS, attention_layout
from tests.kernels.test_attention_mixer import EPSILON, LAYER, SHAPES, Case, Float64, Shape
from tests.tolerances import QUANTIZED_PAGES

LEVELS = {"q8_0": 127, "q4_0": 8}  # of the largest magnitude of a block
KINDS = {"q8_0": GGMLQuantizationType.Q8_0, "q4_0": GGMLQuantizationType.Q4_0}
WIDE = [shape for shape in SHAPES if shape.size % 32 == 0] + [Shape(6, 2, 96, 40, True), Shape(2, 1, 256, 64, True)]
SOME = [0, 6, 9]


class QuantizedCase(Case):
    """The past is quantized by the GGUF package; what the step adds is checked against exact values and read for its outputs."""

    def __init__(self, backend: KernelBackend, shape: Shape, batch: list[tuple[int, int]], kv_type: str) -> None:
        self.kv_type = kv_type
        self.written: list[tuple[int, Float64]] = []  # (sequence, exact keys and values [2, start + count, H_kv, D])
        super().__init__(backend, shape, batch, kv_type)

    def fill(self, sequence: int, slab: NDArray[np.uint8]) -> None:  # type: ignore[override]
        shape, w, (start, _) = self.shape, self.exact, self.rig.batch[sequence]
        past = self.rig.random.normal(0, 1, (2, start, shape.kv_heads, shape.size)).astype(np.float32)
        blocks = self.blocks(slab)
        for position in range(start):
            page = self.rig.pages[sequence][position // PAGE_TOKENS]
            blocks[page, LAYER, :, :, position % PAGE_TOKENS] = quants.quantize(past[:, position], KINDS[self.kv_type])
        x = oracle.norm(self.values[self.rig.spans()[sequence]], w["input_norm"], EPSILON)
        key, value = (self.projected(x, name, shape.kv_heads) for name in ("key", "value"))
        fresh = np.stack([self.turned(key, w["key_norm"], start), value])
        self.written.append((sequence, np.concatenate([past, fresh], axis=1)))

    def blocks(self, slab: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """[pages, layer, K or V, H_kv, row in the page, bytes of a row]"""
        return slab.reshape(len(slab), 2, 2, self.shape.kv_heads, PAGE_TOKENS, -1)

    def check(self, tolerance: float) -> None:
        """Each written number is within half a step of its block, and rounding of the scale; outputs follow from the pages."""
        shape, w = self.shape, self.exact
        slab = np.array(self.rig.backend.read(self.rig.caches.kv))
        blocks = self.blocks(slab)
        expected, untouched = self.expected_hidden, np.ones(blocks.shape[:5], bool)
        for sequence, exact in self.written:
            (start, count), span = self.rig.batch[sequence], self.rig.spans()[sequence]
            positions = np.arange(start + count)
            pages = self.rig.pages[sequence][positions // PAGE_TOKENS]
            untouched[pages, LAYER, :, :, positions % PAGE_TOKENS] = False
            rows = np.ascontiguousarray(np.moveaxis(blocks[pages, LAYER, :, :, positions % PAGE_TOKENS], 0, 1))
            kept = quants.dequantize(rows, KINDS[self.kv_type]).reshape(exact.shape).astype(np.float64)
            step = np.abs(exact.reshape(-1, 32)).max(axis=1, keepdims=True) / LEVELS[self.kv_type]
            # The last level of q4_0 on the other side is 7, not 8: there the error is up to a whole step.
            most = 1.002 if self.kv_type == "q4_0" else 0.562
            assert (np.abs(kept - exact).reshape(-1, 32) <= most * step + tolerance).all()
            query = self.projected(oracle.norm(self.values[span], w["input_norm"], EPSILON), "query", shape.heads)
            gate = oracle.sigmoid(query[..., shape.size :]) if shape.gated else 1.0
            query = self.turned(query[..., : shape.size], w["query_norm"], start)
            out = np.empty((count, shape.heads, shape.size))
            for t in range(count):
                for head in range(shape.heads):
                    kv_head = head // (shape.heads // shape.kv_heads)
                    out[t, head] = oracle.attend(query[t, head], *kept[:, : start + t + 1, kv_head])
            expected[span] += (out * gate).reshape(count, -1) @ w["output"].T
        assert (blocks[untouched] == 0xFF).all()
        np.testing.assert_allclose(self.rig.backend.read(self.hidden), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kv_type", list(KINDS))
@pytest.mark.parametrize("batch", [BATCHES[i] for i in SOME], ids=[BATCH_IDS[i] for i in SOME])
@pytest.mark.parametrize("shape", WIDE, ids=str)
def test_against_float64(backend: KernelBackend, shape: Shape, batch: list[tuple[int, int]], kv_type: str) -> None:
    """Head sizes of one block and of several, grouped heads, a past that was quantized elsewhere; positions that are not written
    are NaN before and untouched afterwards."""
    case = QuantizedCase(backend, shape, batch, kv_type)
    case.run()
    case.check(backend.tolerance("F32"))


@pytest.mark.parametrize("kv_type", list(KINDS))
def test_blocks_are_those_of_gguf(backend: KernelBackend, kv_type: str) -> None:
    """The bytes of values (which no norm or rotation touches) are the package's, but where rounding is a matter of the last bit."""
    case = QuantizedCase(backend, SHAPES[0], [(0, 40)], kv_type)
    case.run()
    blocks = case.blocks(np.array(backend.read(case.rig.caches.kv)))
    positions = np.arange(40)
    pages = case.rig.pages[0][positions // PAGE_TOKENS]
    got = blocks[pages, LAYER, :, :, positions % PAGE_TOKENS][:, 1].reshape(-1, KV_BLOCK_BYTES[kv_type])
    wanted = quants.quantize(case.written[0][1][1].astype(np.float32), KINDS[kv_type]).reshape(got.shape)
    assert (got != wanted).mean() < QUANTIZED_PAGES
    assert (got[:, 2:].astype(int) != wanted[:, 2:]).mean() < QUANTIZED_PAGES


@pytest.mark.parametrize("kv_type", list(KINDS))
def test_pages_move_whole(backend: KernelBackend, kv_type: str) -> None:
    """Copied on the device, out to the host and back: byte for byte."""
    layout = attention_layout(3, 32, kv_type)
    ops = backend.make()
    caches = ops.caches(MemoryPlan(layout, 4, 1, 1, num_host_pages=2))
    pages = np.random.default_rng(0).integers(0, 256, (4, layout.page_elements)).astype(np.uint8)
    assert pages.nbytes == 4 * layout.page_bytes
    backend.write(caches.kv, pages)
    ops.copy_pages(caches, pairs([(0, 3)]))
    ops.move(caches, StepBatch(moves=[Move(MoveKind.PAGE_OUT, 1, 1), Move(MoveKind.PAGE_IN, 1, 2)]))
    assert ops.moves_over(all_of_them=True) == 2
    np.testing.assert_array_equal(backend.read(caches.kv), pages[[0, 1, 1, 0]])
