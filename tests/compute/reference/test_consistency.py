"""The same text gives the same logits however it is cut, batched, captured and resumed, with any content of other memory."""

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from svc.compute.backend import Capture, PageCopy, RowSnapshot, StepBatch
from tests.compute.rig import GGUF, Rig, prompt
from tests.tolerances import LOGITS_REFERENCE_SELF, LOGITS_REFERENCE_SELF_AMPLIFIED

MODELS = ["tiny-qwen35-hd128-bf16", "tiny-qwen3next-Q4_K_M", "tiny-qwen3-Q8_0"]
TEXT = np.concatenate([prompt("s2"), prompt("s3")[:60]])


@pytest.fixture(scope="module", params=MODELS)
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(GGUF / f"{request.param}.gguf")


@cache
def whole(rig: Rig) -> NDArray[np.float32]:
    """The text in one chunk on a fresh row: what every other way must give."""
    return rig.prefill(TEXT)


def close(rig: Rig, actual: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    tolerance = LOGITS_REFERENCE_SELF_AMPLIFIED if rig.config.num_experts else LOGITS_REFERENCE_SELF
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("cuts", [[1], [2, 5], [15, 16, 17], [63, 64, 65, 128], list(range(1, 8))])
def test_chunking(rig: Rig, cuts: list[int]) -> None:
    """Chunks of any length, shorter than the convolution and across pages too."""
    close(rig, rig.prefill(TEXT, cuts=cuts), whole(rig))


@pytest.mark.parametrize("position", [1, 2, 3, 32, 129])
def test_capture_and_restore(rig: Rig, position: int) -> None:
    """A state captured in mid-chunk, restored into a row that ran on with other text, goes on as the cold run did."""
    rig.runner.run(
        StepBatch(zero_rows=[0], chunks=[rig.chunk(0, 0, TEXT)], captures=[Capture(chunk=0, position=position, snapshot_id=2)])
    )
    rig.runner.run(StepBatch(chunks=[rig.chunk(0, len(TEXT), prompt("s1"))]))
    rest = rig.logits(StepBatch(restores=[RowSnapshot(0, 2)], chunks=[rig.chunk(0, position, TEXT[position:])]))
    close(rig, rest, whole(rig)[position:])


def test_captured_hidden_row_gives_the_logits(rig: Rig) -> None:
    """A snapshot alone, without evaluating a token, gives the logits at its position; so does a saved row."""
    rig.runner.run(
        StepBatch(zero_rows=[0], chunks=[rig.chunk(0, 0, TEXT)], captures=[Capture(chunk=0, position=50, snapshot_id=0)])
    )
    rig.runner.run(StepBatch(saves=[RowSnapshot(0, 1)]))
    rig.runner.run(StepBatch(restores=[RowSnapshot(1, 0), RowSnapshot(2, 1)]))
    vectors = np.empty((2, rig.config.hidden_size), np.float32)
    rig.ops.live_hidden(vectors, np.array([1, 2], np.int32), rig.caches)
    out = np.empty((2, rig.config.vocab_size), np.float32)
    rig.ops.logits(out, rig.model.output, vectors)
    close(rig, out, whole(rig)[[49, len(TEXT) - 1]])


def test_sequences_in_one_batch(rig: Rig) -> None:
    """A prefill, a decode and a chunk in one step: each as alone."""
    rig.prefill(TEXT[:40], row=1)
    rig.prefill(TEXT[:99], row=2)
    chunks = [rig.chunk(2, 99, TEXT[99:100]), rig.chunk(0, 0, TEXT[:65]), rig.chunk(1, 40, TEXT[40:43])]
    captures = [
        Capture(chunk=2, position=42, snapshot_id=0),
        Capture(chunk=1, position=64, snapshot_id=1),
        Capture(chunk=1, position=3, snapshot_id=2),
    ]
    logits = rig.logits(StepBatch(zero_rows=[0], chunks=chunks, captures=captures))
    close(rig, logits, np.concatenate([whole(rig)[99:100], whole(rig)[:65], whole(rig)[40:43]]))
    for row, snapshot_id, position in ((1, 0, 42), (0, 1, 64), (0, 2, 3)):
        more = rig.logits(
            StepBatch(restores=[RowSnapshot(row, snapshot_id)], chunks=[rig.chunk(row, position, TEXT[position : position + 2])])
        )
        close(rig, more, whole(rig)[position : position + 2])


def test_nan_in_freed_memory(rig: Rig) -> None:
    """Rows, pages and snapshots full of NaN change nothing: a row is set to zero, and masked positions are never multiplied."""
    expected = whole(rig)
    for slab in (rig.caches.kv, rig.caches.rows, rig.caches.snapshots):
        slab.fill(np.nan)
    close(rig, rig.prefill(TEXT, row=1, cuts=[33]), expected)


def test_a_nan_in_the_future_stays_there(rig: Rig) -> None:
    """A position that is NaN in the pages harms only those that may see it."""
    rig.prefill(TEXT, row=0)
    page = rig.pages(0)[64 // rig.plan.layout.page_tokens]
    rig.caches.kv[page] = np.nan
    close(rig, rig.prefill(TEXT[:64], row=0), whole(rig)[:64])


def test_copied_page(rig: Rig) -> None:
    """A second writer that copied a half-filled page goes on as the first would."""
    rig.prefill(TEXT[:40], row=0)
    first, second = rig.pages(0), rig.pages(1)
    size = rig.plan.layout.page_tokens
    shared = np.concatenate([first[: 40 // size], second[40 // size :]])  # full pages shared, the last one copied
    copy = PageCopy(source=int(first[40 // size]), target=int(second[40 // size]))
    rig.runner.run(StepBatch(copies=[copy], saves=[RowSnapshot(0, 3)], restores=[RowSnapshot(1, 3)]))
    chunk = rig.chunk(1, 40, TEXT[40:])
    logits = rig.logits(StepBatch(chunks=[type(chunk)(chunk.row, chunk.start, chunk.tokens, shared)]))
    close(rig, logits, whole(rig)[40:])


def test_f16_pages_stay_close() -> None:
    """Half-precision pages change logits a little, and really are half precision."""
    exact, half = (Rig(GGUF / "tiny-qwen35-hd128-bf16.gguf", kv_type=kind) for kind in ("f32", "f16"))
    assert half.caches.kv.dtype == np.float16
    difference = np.abs(half.prefill(TEXT) - exact.prefill(TEXT)).max()
    assert 0 < difference < 0.05


@pytest.mark.parametrize("limit", [0, 1 << 21])
def test_dequantizing_tile_by_tile(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dequantization cache that holds nothing, or only some matrices, gives the same logits."""
    expected = Rig(GGUF / "tiny-qwen3next-Q4_K_M.gguf").prefill(TEXT)
    monkeypatch.setattr("svc.compute.reference.weights.TILE_ELEMENTS", 1000)
    monkeypatch.setattr("tests.compute.rig.SpyOps.cache_bytes", limit)
    rig = Rig(GGUF / "tiny-qwen3next-Q4_K_M.gguf")
    close(rig, rig.prefill(TEXT), expected)
