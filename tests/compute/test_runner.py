"""ModelRunner: the order within a step, what comes back, progress while loading, and its asserts."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from svc.compute.backend import Capture, Chunk, PageCopy, RowSnapshot, Sample, Score, StepBatch
from svc.compute.model_file import open_model
from svc.compute.reference import ReferenceOps
from svc.compute.runner import MAX_LOGIT_ROWS, ModelRunner
from svc.compute.sampling.params import SamplingParams
from svc.gguf import gguf_file
from svc.memory.plan import MemoryPlan
from svc.model.arch import load_model
from tests.compute.rig import GGUF, GREEDY, PAGE_TOKENS, PAGES_PER_ROW, Rig, golden, prompt
from tests.tolerances import LOGITS_GOLDEN, LOGITS_REFERENCE_SELF

MODEL = GGUF / "tiny-qwen35-hd128-bf16.gguf"


class RecordingOps:
    """The reference, noting the name of each operation."""

    name = "reference"
    asynchronous = False

    def __init__(self) -> None:
        self._ops = ReferenceOps()
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = getattr(self._ops, name)

        def recorded(*args: Any) -> Any:
            self.calls.append(name)
            return operation(*args)

        return recorded


@pytest.fixture(scope="module")
def rig() -> Rig:
    return Rig(MODEL)


def recording() -> tuple[RecordingOps, ModelRunner]:
    config, source = open_model(MODEL)
    ops = RecordingOps()
    model = load_model(source, config, ops)  # type: ignore[arg-type]
    plan = MemoryPlan(config.memory_layout(PAGE_TOKENS, "f32"), 3 * PAGES_PER_ROW, 3, 4)
    runner = ModelRunner(model, ops, plan, max_step_tokens=64)  # type: ignore[arg-type]
    ops.calls.clear()
    return ops, runner


def test_order_of_a_step(rig: Rig) -> None:
    """Copies, saves, zeros, restores, forward, scores, then samples: the list in backend.py, for any order in the batch."""
    ops, runner = recording()
    runner.run(
        StepBatch(
            samples=[Sample(0, 2, 0, GREEDY)],
            scores=[Score(chunk=0, position=1, target=6)],
            captures=[Capture(chunk=0, position=1, snapshot_id=3)],
            chunks=[rig.chunk(0, 0, [5, 6])],
            restores=[RowSnapshot(1, 0)],
            zero_rows=[0, 2],
            saves=[RowSnapshot(1, 0)],
            copies=[PageCopy(1, 2)],
        )
    )
    mixers = ["delta_mixer", "dense_ffn"] * 3 + ["attention_mixer", "dense_ffn"]
    assert ops.calls == [
        "copy_pages", "save_rows", "zero_rows", "restore_rows", "submit", "embed", *mixers, "final_hidden",
        "hidden_rows", "logits", "logprobs", "live_hidden", "logits", "sample", "mark",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("batch", "calls"),
    [
        (StepBatch(), []),
        (StepBatch(copies=[PageCopy(0, 1)]), ["copy_pages"]),
        (StepBatch(saves=[RowSnapshot(0, 1)]), ["save_rows"]),
        (StepBatch(restores=[RowSnapshot(0, 1)]), ["restore_rows"]),
        (StepBatch(zero_rows=[2]), ["zero_rows"]),
    ],
)
def test_without_chunks(batch: StepBatch, calls: list[str]) -> None:
    """Nothing more is done or waited for than the batch asks."""
    ops, runner = recording()
    runner.run(batch)
    assert ops.calls == [*calls, "mark"]


def test_a_slot_changes_hands_in_one_step(rig: Rig) -> None:
    """A row is saved, set to zero for another sequence and run; the saved state goes on in another row as if nothing were."""
    tokens = prompt("s2")
    whole = rig.prefill(tokens, row=1)
    rig.prefill(tokens[:40], row=0)
    rig.runner.run(StepBatch(saves=[RowSnapshot(0, 2)], zero_rows=[0], chunks=[rig.chunk(0, 0, [9, 9, 9])]))
    moved = Chunk(1, 40, tokens[40:], rig.pages(1))  # row 1's pages hold the same text
    logits = rig.logits(StepBatch(restores=[RowSnapshot(1, 2)], chunks=[moved]))
    np.testing.assert_allclose(logits, whole[40:], atol=1e-4)


def test_captured_snapshots_are_reported(rig: Rig) -> None:
    """Snapshots of saves and of captures: what may be published."""
    result = rig.runner.run(
        StepBatch(
            saves=[RowSnapshot(1, 3)],
            zero_rows=[0],
            chunks=[rig.chunk(0, 0, [1, 2, 3])],
            captures=[Capture(chunk=0, position=2, snapshot_id=0), Capture(chunk=0, position=3, snapshot_id=2)],
        )
    )
    assert sorted(result.captured) == [0, 2, 3]
    assert result.samples == ()
    assert result.duration_s > 0


def test_sampling_without_evaluation(rig: Rig) -> None:
    """A restored hidden row is enough for any number of choices and parameters, in the order asked for."""
    tokens, expected = prompt("s2"), golden("tiny-qwen35-hd128.hf")
    rig.runner.run(StepBatch(zero_rows=[0], chunks=[rig.chunk(0, 0, tokens)], captures=[Capture(0, len(tokens), 1)]))
    other = rig.runner.run(StepBatch(zero_rows=[2], chunks=[rig.chunk(2, 0, prompt("s1"))], samples=[Sample(2, 7, 0, GREEDY)]))
    hot = SamplingParams(temperature=1.0, seed=1)
    wanted = [Sample(1, 70, 0, GREEDY), Sample(2, 7, 0, GREEDY), Sample(1, 70, 0, hot), Sample(1, 70, 1, hot)]
    result = rig.runner.run(StepBatch(restores=[RowSnapshot(1, 1)], samples=wanted))
    assert result.samples[0].token == expected["s2.greedy"][0]
    assert result.samples[1] == other.samples[0]
    assert result.samples[1].token == expected["s1.greedy"][0]
    assert result.samples[2] != result.samples[3]


def test_more_rows_than_logits_fit() -> None:
    """Slots beyond the logits buffer are sampled in turns, each from its own row."""
    config, source = open_model(MODEL)
    ops = ReferenceOps()
    num_rows = MAX_LOGIT_ROWS + 3
    plan = MemoryPlan(config.memory_layout(PAGE_TOKENS, "f32"), num_rows, num_rows, 1)
    runner = ModelRunner(load_model(source, config, ops), ops, plan, max_step_tokens=num_rows)
    chunks = [Chunk(row, 0, np.array([row + 1], np.int32), np.array([row], np.int32)) for row in range(num_rows)]
    samples = [Sample(row, 1, 0, GREEDY) for row in range(num_rows)]
    together = runner.run(StepBatch(zero_rows=range(num_rows), chunks=chunks, samples=samples))
    for row in (0, MAX_LOGIT_ROWS - 1, MAX_LOGIT_ROWS, num_rows - 1):
        alone = runner.run(StepBatch(zero_rows=[row], chunks=[chunks[row]], samples=[samples[row]]))
        assert alone.samples[0].token == together.samples[row].token


def test_scores(rig: Rig) -> None:
    """Log probabilities of given tokens inside and behind chunks, against transformers' logits; more rows than fit at once."""
    longest, shorter = prompt("s3"), prompt("s2")
    expected = golden("tiny-qwen35-hd128.hf")
    wanted = [Score(0, position, int(longest[position])) for position in range(len(longest) - 31, len(longest))]
    wanted += [Score(1, position, int(shorter[position])) for position in range(1, len(shorter))]
    wanted += [Score(1, len(shorter), 7), Score(1, 33, 5), Score(0, len(longest), 6)]
    assert len(wanted) > MAX_LOGIT_ROWS
    chunks = [rig.chunk(2, 0, longest), rig.chunk(0, 0, shorter)]
    scores = rig.runner.run(StepBatch(zero_rows=[0, 2], chunks=chunks, scores=wanted)).scores
    for score, found in zip(wanted, scores, strict=True):
        text, rows = (longest, expected["s3.logits"]) if score.chunk == 0 else (shorter, expected["s2.logits"])
        row = rows[score.position - 1 - len(text)].astype(np.float64)
        assert found == pytest.approx(row[score.target] - np.logaddexp.reduce(row), abs=LOGITS_GOLDEN)


def test_scores_of_a_later_chunk(rig: Rig) -> None:
    """Positions are absolute: a chunk with a past scores from its own first token on."""
    tokens, expected = prompt("s2"), golden("tiny-qwen35-hd128.hf")["s2.logits"].astype(np.float64)
    rig.runner.run(StepBatch(zero_rows=[1], chunks=[rig.chunk(1, 0, tokens[:40])]))
    batch = StepBatch(chunks=[rig.chunk(1, 40, tokens[40:60])], scores=[Score(0, 60, 9), Score(0, 41, 3)])
    rows = expected[[59, 40]]
    right = rows[[0, 1], [9, 3]] - np.logaddexp.reduce(rows, axis=1)
    np.testing.assert_allclose(rig.runner.run(batch).scores, right, atol=LOGITS_GOLDEN)


def test_scores_of_nonsense_are_nan(rig: Rig) -> None:
    """Logits that are not finite give no number that could be taken for one; the neighbour's score is as ever."""
    tokens = prompt("s1")
    alone = rig.runner.run(StepBatch(zero_rows=[0], chunks=[rig.chunk(0, 0, tokens)], scores=[Score(0, 7, 4)]))
    rig.caches.rows[1] = np.nan
    chunks = [rig.chunk(1, 0, tokens), rig.chunk(0, 0, tokens)]
    result = rig.runner.run(StepBatch(zero_rows=[0], chunks=chunks, scores=[Score(0, 7, 4), Score(1, 7, 4)]))
    assert np.isnan(result.scores[0])
    assert result.scores[1] == pytest.approx(alone.scores[0], abs=LOGITS_REFERENCE_SELF)


def test_not_finite_row_fails_alone(rig: Rig) -> None:
    """A row whose state is NaN samples -1; its neighbour in the batch is not touched."""
    tokens = prompt("s1")
    alone = rig.runner.run(StepBatch(zero_rows=[0], chunks=[rig.chunk(0, 0, tokens)], samples=[Sample(0, 7, 0, GREEDY)]))
    rig.caches.rows[1] = np.nan
    chunks = [rig.chunk(1, 0, tokens), rig.chunk(0, 0, tokens)]
    samples = [Sample(1, 7, 0, GREEDY), Sample(0, 7, 0, GREEDY)]
    result = rig.runner.run(StepBatch(zero_rows=[0], chunks=chunks, samples=samples))
    assert [sampled.token for sampled in result.samples] == [-1, alone.samples[0].token]


def test_progress() -> None:
    """Bytes rise to the whole file's tensors and end there."""
    config, source = open_model(MODEL)
    seen: list[tuple[int, int]] = []
    load_model(source, config, ReferenceOps(), progress=lambda done, total: seen.append((done, total)))
    total = sum(tensor.nbytes for tensor in source.file.tensors.values())
    done = [step for step, _ in seen]
    assert done == sorted(done)
    assert len(set(done)) > 50
    assert seen[-1] == (total, total)
    assert {whole for _, whole in seen} == {total}


def test_what_progress_raises_ends_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a tensor too: a large one takes seconds to come from the disk."""
    monkeypatch.setattr(gguf_file, "READ_BYTES", 10_000)
    config, source = open_model(MODEL)
    seen: list[int] = []

    def progress(done: int, total: int) -> None:
        seen.append(done)
        if len(seen) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        load_model(source, config, ReferenceOps(), progress)
    assert seen == [10_000, 20_000, 30_000]
    assert source.file.tensors["token_embd.weight"].nbytes > 30_000


def test_a_model_too_large_to_be_read_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """No page of a weight is touched beforehand; the bytes are counted all the same."""

    def refuse(tensor: gguf_file.GgufTensor) -> None:
        raise AssertionError(f"{tensor.name} was read in")

    monkeypatch.setattr(gguf_file.GgufTensor, "read_in", refuse)
    config, source = open_model(MODEL)
    seen: list[tuple[int, int]] = []
    load_model(source, config, ReferenceOps(), lambda done, total: seen.append((done, total)), read_in=False)
    assert len(set(seen)) > 50
    assert seen[-1][0] == seen[-1][1] > 0


def test_close_closes_the_ops() -> None:
    """The runner owns the operations: their threads end with it."""
    ops, runner = recording()
    runner.close()
    assert ops.calls == ["close"]


TOKENS = np.array([1, 2, 3], np.int32)
PAGES = np.arange(2, dtype=np.int32)


@pytest.mark.parametrize(
    "batch",
    [
        StepBatch(chunks=[Chunk(3, 0, TOKENS, PAGES)]),
        StepBatch(chunks=[Chunk(0, 0, TOKENS[:0], PAGES)]),
        StepBatch(chunks=[Chunk(0, 0, np.array([2048], np.int32), PAGES)]),
        StepBatch(chunks=[Chunk(0, 0, np.array([-1], np.int32), PAGES)]),
        StepBatch(chunks=[Chunk(0, 30, TOKENS, PAGES)]),  # pages for 32 positions only
        StepBatch(chunks=[Chunk(0, 0, TOKENS, np.array([-1], np.int32))]),
        StepBatch(chunks=[Chunk(0, 0, TOKENS, np.array([3 * PAGES_PER_ROW], np.int32))]),
        StepBatch(chunks=[Chunk(0, 0, TOKENS, PAGES), Chunk(0, 3, TOKENS, PAGES)]),
        StepBatch(chunks=[Chunk(0, 0, np.ones(513, np.int32), np.arange(64, dtype=np.int32))]),
        StepBatch(chunks=[Chunk(0, 2, TOKENS, PAGES)], captures=[Capture(0, 2, 0)]),
        StepBatch(chunks=[Chunk(0, 2, TOKENS, PAGES)], captures=[Capture(0, 6, 0)]),
        StepBatch(chunks=[Chunk(0, 0, TOKENS, PAGES)], captures=[Capture(0, 1, 4)]),
        StepBatch(chunks=[Chunk(0, 0, TOKENS, PAGES)], captures=[Capture(0, 1, 0), Capture(0, 2, 0)]),
        StepBatch(chunks=[Chunk(0, 2, TOKENS, PAGES)], scores=[Score(0, 2, 0)]),
        StepBatch(chunks=[Chunk(0, 2, TOKENS, PAGES)], scores=[Score(0, 6, 0)]),
        StepBatch(chunks=[Chunk(0, 2, TOKENS, PAGES)], scores=[Score(0, 3, 2048)]),
        StepBatch(saves=[RowSnapshot(0, 4)]),
        StepBatch(restores=[RowSnapshot(-1, 0)]),
        StepBatch(zero_rows=[3]),
        StepBatch(copies=[PageCopy(0, 3 * PAGES_PER_ROW)]),
        StepBatch(samples=[Sample(3, 0, 0, GREEDY)]),
    ],
)
def test_numbers_outside_the_plan(rig: Rig, batch: StepBatch) -> None:
    """A wrong row, snapshot, page, position or token is an assertion before anything is written."""
    before = [slab.copy() for slab in (rig.caches.kv, rig.caches.rows, rig.caches.snapshots)]
    with pytest.raises(AssertionError):
        rig.runner.run(batch)
    for slab, copy in zip((rig.caches.kv, rig.caches.rows, rig.caches.snapshots), before, strict=True):
        np.testing.assert_array_equal(slab, copy)
