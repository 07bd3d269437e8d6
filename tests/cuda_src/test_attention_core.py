"""The attention kernels against float64: outputs, pages, and bits that must not change."""

from dataclasses import replace

import numpy as np
import pytest

from svc.compute.cuda import attention
from svc.compute.cuda.attention import AttentionPlan, plan_attention
from svc.compute.cuda.device import Device
from svc.compute.cuda.launch_limits import TESTED_ARCHS, shared_limit_bytes
from tests.cuda_src.attention_case import Case, Shape
from tests.tolerances import KERNEL

# Of the largest magnitude. Far below what float16 operands give (some 1e-4): the low halves must be there.
TOLERANCE = 3e-6
CONTRACT = 1e-4  # tolerance of every CUDA kernel, of the largest magnitude
ALL_PREFILL = 0  # most_decode_tokens: nothing is decoded

# Where numbers matter and the order of threads does not, or where each case compiles its own kernels.
one_device = pytest.mark.parametrize("device", ["forward"], indirect=True)
random_order = pytest.mark.parametrize("device", ["random"], indirect=True)
checked = pytest.mark.parametrize("device", ["checked reverse"], indirect=True)

SHAPES = [
    Shape(4, 4, 64, 64, gated=False, page_tokens=48),
    Shape(8, 2, 64, 16, kv_type="f32"),
    Shape(8, 1, 128, 32, page_tokens=32),
    Shape(4, 1, 256, 64),
    Shape(2, 2, 256, 64, page_tokens=48, kv_type="f32"),
    Shape(6, 2, 48, 20, page_tokens=32),  # three heads a group: tokens cross tiles
    Shape(40, 2, 16, 16, gated=False),  # more rows at one token than a warp has
    Shape(4, 2, 64, 64, gated=False, normed=False, biased=True),  # qwen2
    Shape(3, 1, 48, 36, gated=False, normed=False, interleaved=True),  # llama, and partly rotary
]
SMALL = Shape(4, 2, 64, 16)
BATCHES = {
    "first token": [(0, 1)],
    "decodes": [(15, 1), (14, 1), (16, 1), (62, 1), (256, 1)],
    "long decode": [(599, 1), (255, 1)],
    "drafts": [(254, 4), (0, 3), (61, 8)],
    "prefill": [(0, 63)],
    "prefill off the grid": [(17, 40), (250, 9)],
    "mixed": [(63, 1), (0, 17), (62, 2), (16, 33), (14, 1)],
}


def check(case: Case, device: Device, plan: AttentionPlan | None = None, tolerance: float = TOLERANCE) -> None:
    out, slab = case.run(device, plan)
    expected = case.expected_slab()
    rounding = 2.0**-10 if case.shape.kv_type == "f16" else 0  # a value near the middle may go either way
    np.testing.assert_allclose(slab.astype(np.float64), expected.astype(np.float64), rtol=KERNEL + rounding, atol=KERNEL)
    expected_out = case.expected_out(slab)
    np.testing.assert_allclose(out, expected_out, rtol=0, atol=tolerance * np.abs(expected_out).max())


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_batches(device: Device, batch: list[tuple[int, int]]) -> None:
    """Any mix of decodes, drafts and prefill pieces; rows of pages that are not written are NaN, before and after."""
    check(Case(SMALL, batch), device)


@random_order
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(device: Device, shape: Shape) -> None:
    """Ratios of heads, head sizes, partial and full rotary, page sizes and types, with and without gate, norms and biases; both
    kernels."""
    check(Case(shape, [(15, 1), (30, 21), (62, 3)]), device)


@checked
@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[5], SHAPES[7], SHAPES[8]], ids=str)
def test_shapes_checked(device: Device, shape: Shape) -> None:
    """No race, no access out of bounds: float32 pages, and rows of a token in two tiles."""
    check(Case(shape, [(15, 1), (30, 21), (62, 3)]), device)


@one_device
@pytest.mark.parametrize("seed", range(6))
def test_random_steps(device: Device, seed: int) -> None:
    """Contexts and lengths at the edges of pages, tiles and splits."""
    random = np.random.default_rng(seed)
    edges = [1, 15, 16, 17, 63, 64, 257]
    batch = [(int(random.choice(edges)) - 1, int(random.choice([1, 1, 2, *edges[1:-1]]))) for _ in range(random.integers(1, 6))]
    check(Case(SMALL, batch, seed=seed), device)


@pytest.mark.parametrize("most_decode_tokens", [attention.MOST_DECODE_TOKENS, ALL_PREFILL])
def test_padding(device: Device, most_decode_tokens: int) -> None:
    """Sequences with a negative row, tokens after the last sequence, and a plan made for larger steps: no page is touched for
    padding, its outputs are zero, and the others are what they are without."""
    batch = [(40, 1), (7, 1), (3, 10), (0, 12), (260, 1)]
    case = Case(SMALL, batch, padding=frozenset({1, 3}), extra_tokens=3)
    exact = plan_attention(case.cu_seqlens, case.positions, most_decode_tokens=most_decode_tokens)
    larger = AttentionPlan(exact.decode_tokens and 5, exact.max_splits + 3, exact.long_tokens + 300, exact.num_long + 2)
    check(case, device, larger)
    out, _ = case.run(device, larger)
    assert not out[[*range(1, 2), *range(12, 24), *range(25, 28)]].any()
    np.testing.assert_array_equal(out, case.run(device, exact)[0])


@one_device
@pytest.mark.parametrize("shape", [SMALL, replace(SMALL, kv_type="f32")], ids=str)
def test_decode_keeps_its_bits_in_company(device: Device, shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row alone and among others, with a block for every split and with one for all: the same bits."""
    together = Case(shape, [(10, 1), (599, 1), (3, 20), (257, 2)])
    out, _ = together.run(device)
    for sequence in (0, 1, 3):
        alone = part(together, sequence, 0, together.batch[sequence][1], together.slab)
        np.testing.assert_array_equal(alone.run(device)[0], out[together.span(sequence)])
    monkeypatch.setattr(attention, "WANTED_BLOCKS", 1)
    np.testing.assert_array_equal(together.run(device)[0], out)


@checked
def test_one_block_for_all_splits(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that takes split after split finishes with one before it begins the next."""
    monkeypatch.setattr(attention, "WANTED_BLOCKS", 1)
    check(Case(SMALL, [(599, 1), (257, 2)]), device)


@one_device
@pytest.mark.parametrize("cuts", [[1, 16, 30], [7], [40]])
def test_prefill_keeps_its_bits_however_it_is_cut(device: Device, cuts: list[int]) -> None:
    """A prompt in pieces, when nothing goes through the decode kernel: the same bits as in one piece."""
    whole = Case(SMALL, [(9, 41)])
    plan = plan_attention(whole.cu_seqlens, whole.positions, most_decode_tokens=ALL_PREFILL)
    out, _ = whole.run(device, plan)
    slab = whole.slab
    for first, end in zip([0, *cuts], [*cuts, 41], strict=True):
        piece = part(whole, 0, first, end, slab)
        got, slab = piece.run(device, plan_attention(piece.cu_seqlens, piece.positions, most_decode_tokens=ALL_PREFILL))
        np.testing.assert_array_equal(got, out[first:end])


@one_device
def test_one_bad_sequence_stays_alone(device: Device) -> None:
    """NaN keys and values in one sequence's past spoil that sequence only."""
    case = Case(SMALL, [(40, 1), (33, 1), (20, 30)])
    clean, _ = case.run(device)
    case.put(case.slab, 1, 5, *(np.full((1, SMALL.kv_heads, SMALL.size), np.nan) for _ in range(2)))
    out, _ = case.run(device)
    assert np.isnan(out[case.span(1)]).all()
    np.testing.assert_array_equal(out[case.span(0)], clean[case.span(0)])
    np.testing.assert_array_equal(out[case.span(2)], clean[case.span(2)])


BAD = {
    "key": (np.nan, None),
    "value": (None, np.nan),
    "both": (np.nan, np.nan),
    "overflow": (None, 1e6),  # beyond float16: infinite in a page, or on its way from a float32 one
}


@pytest.mark.parametrize(("device", "bad"), [*(("forward", bad) for bad in BAD), ("checked reverse", "both")], indirect=["device"])
@pytest.mark.parametrize("shape", [SMALL, SHAPES[5], replace(SMALL, kv_type="f32")], ids=str)
@pytest.mark.parametrize("most_decode_tokens", [attention.MOST_DECODE_TOKENS, ALL_PREFILL])
def test_a_bad_token_does_not_spoil_the_ones_before(device: Device, shape: Shape, bad: str, most_decode_tokens: int) -> None:
    """Keys or values of tokens of the step itself that are not finite, anywhere in a tile: earlier tokens of
    the sequence keep their bits, though they meet them in one tile, and later ones have a NaN in every head."""
    batch, places = [(40, 41), (250, 8), (7, 3), (0, 20), (63, 1)], (25, 6, 1, 0, 0)
    case = Case(shape, batch)
    plan = plan_attention(case.cu_seqlens, case.positions, most_decode_tokens=most_decode_tokens)
    clean, _ = case.run(device, plan)
    for sequence, place in enumerate(places[:4]):
        for array, value in zip((case.key, case.value), BAD[bad], strict=True):
            if value is not None:
                array[case.span(sequence).start + place, :, 3] = value
    out, _ = case.run(device, plan)
    for sequence, place in enumerate(places[:4]):
        span = case.span(sequence)
        np.testing.assert_array_equal(out[span][:place], clean[span][:place])
        assert np.isnan(out[span][place:]).any(axis=-1).all()
    np.testing.assert_array_equal(out[case.span(4)], clean[case.span(4)])


@one_device
def test_large_and_small_scores(device: Device) -> None:
    """Scores in the hundreds and values in the thousands: nothing overflows. A score is as exact as its own size allows."""
    case = Case(replace(SMALL, kv_type="f32", gated=False), [(70, 1), (5, 30)])
    case.query_norm *= 10
    case.key_norm *= 10
    case.value *= 1000
    check(case, device, tolerance=CONTRACT)


def test_shared_memory_fits_everywhere() -> None:
    """The geometry of every architecture and head size within what a block may have there."""
    for arch in TESTED_ARCHS:
        for head_dim in range(16, 257, 16):
            for kv in (attention.KvType.F16, attention.KvType.F32):
                for geometry in (attention.prefill_geometry, attention.decode_geometry):
                    assert geometry(arch, head_dim, kv).shared_bytes <= shared_limit_bytes(arch)


def test_plan() -> None:
    """Which sequences are decoded, and how many splits their contexts have."""
    cu_seqlens, positions = np.array([0, 1, 10, 12], np.int32), np.array([256, *range(9), 510, 511], np.int32)
    assert plan_attention(cu_seqlens, positions) == AttentionPlan(decode_tokens=2, max_splits=2, long_tokens=9, num_long=1)
    assert plan_attention(cu_seqlens, positions, most_decode_tokens=ALL_PREFILL) == AttentionPlan(0, 0, 12, 3)


def part(whole: Case, sequence: int, first: int, end: int, slab: np.ndarray) -> Case:
    """Tokens first .. end - 1 of one sequence of a step, as a step of their own on these pages."""
    start = whole.span(sequence).start
    tokens = slice(start + first, start + end)
    case = Case(whole.shape, [(whole.batch[sequence][0] + first, end - first)])
    case.query, case.key, case.value = (array[tokens] for array in (whole.query, whole.key, whole.value))
    case.query_norm, case.key_norm, case.slab = whole.query_norm, whole.key_norm, slab
    case.block_table = whole.block_table[sequence : sequence + 1]
    return case
