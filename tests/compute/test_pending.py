"""Steps submitted before the previous one has ended: pending tokens and skipped chunks, the same on every backend.

The control is the same steps one after the other, each with the tokens that the previous step sampled.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from svc.compute.backend import PENDING, Capture, Chunk, History, Sample, Sampled, Score, StepBatch, StepRefusedError
from svc.compute.cpu.ops import CpuOps
from svc.compute.cuda.device import Device
from svc.compute.cuda.ops import CudaOps
from svc.compute.cuda.sampler import MOST_TOP
from svc.compute.reference import ReferenceOps
from svc.compute.sampling.params import SamplingParams
from svc.compute.sampling.steps import Breakers, Dry, SamplingSteps
from tests.compute.cpu.test_models import CpuModel
from tests.compute.rig import prompt
from tests.cuda_emulator.build import have_compiler
from tests.cuda_emulator.device import EmulatedDevice

FILE = "tiny-qwen3next-Q4_K_M"
LENGTHS = (5, 3, 33)
needs_compiler = pytest.mark.skipif(not have_compiler(), reason="the CUDA emulator needs g++")


def lazy_device() -> Device:
    """It does nothing until the host waits."""
    return cast(Device, EmulatedDevice(lazy=True))


BACKENDS: dict[str, Callable[[], Any]] = {
    "reference": ReferenceOps,
    "cpu": lambda: CpuOps(2, poison=True),
    "cuda": lambda: CudaOps(lazy_device()),
    "cuda without graphs": lambda: CudaOps(lazy_device(), graphs=False),
}
GREEDY = SamplingParams(temperature=0, num_logprobs=2)
DRAWN = SamplingParams(temperature=1.0, seed=3)
PENALIZED = SamplingParams(temperature=0.9, seed=4, repetition_penalty=1.5, frequency_penalty=0.5)
ON_THE_HOST = SamplingParams(temperature=0, num_logprobs=MOST_TOP + 1)
DRY = Dry(0.8, 1.75, 0, -1, Breakers.none())
STEPS = SamplingParams(temperature=0.9, seed=5, top_k=40, num_logprobs=3, steps=SamplingSteps(typical_p=0.9, dry=DRY))
NEVER = SamplingParams(temperature=0.9, seed=3, bad_words=tuple((first, second) for first in range(40) for second in range(60)))


def in_backend(name: str, *values: object, slow: bool = False) -> Any:
    """A test parameter: the backend, and others."""
    marks = [*([needs_compiler] if name.startswith("cuda") else []), *([pytest.mark.slow] if slow else [])]
    return pytest.param(name, *values, marks=marks)


@pytest.fixture
def model(backend: str) -> CpuModel:
    return CpuModel(FILE, BACKENDS[backend]())


class Texts:
    """Three texts in rows 0 to 2, and the tokens sampled after them so far; a chunk or a sample is for the next token of each."""

    def __init__(self, model: CpuModel, params: SamplingParams = GREEDY) -> None:
        self.model, self.params = model, params
        self.tokens = [prompt("s2", "qwen2")[:length].tolist() for length in LENGTHS]

    def chunk(self, row: int) -> Chunk:
        return self.model.chunk(row, len(self.tokens[row]) - 1, self.tokens[row][-1:])

    def sample(self, row: int, stops: Sequence[int] = ()) -> Sample:
        known = np.array(self.tokens[row], np.int32)
        history = History(known, LENGTHS[row]) if self.params.needs_history else None
        return Sample(row, len(known), 0, self.params, history=history, stops=frozenset(stops))

    def prefill(self, rows: Sequence[int] = (0, 1, 2), stops: Sequence[int] = ()) -> StepBatch:
        chunks = [self.model.chunk(row, 0, self.tokens[row]) for row in rows]
        return StepBatch(zero_rows=rows, chunks=chunks, samples=[self.sample(row, stops) for row in rows])

    def decode(self, rows: Sequence[int] = (0, 1, 2)) -> StepBatch:
        pending = any(self.tokens[row][-1] == PENDING for row in rows)
        return StepBatch(chunks=[self.chunk(row) for row in rows], samples=[self.sample(row) for row in rows], ahead=pending)

    def grow(self, rows: Sequence[int], tokens: Sequence[int]) -> None:
        for row, token in zip(rows, tokens, strict=True):
            self.tokens[row].append(token)

    def learn(self, rows: Sequence[int], samples: Sequence[Sampled], back: int) -> None:
        """The token `back` from the end was pending and is known now."""
        for row, sampled in zip(rows, samples, strict=True):
            assert self.tokens[row][-back] == PENDING
            self.tokens[row][-back] = sampled.token


def in_turn(model: CpuModel, params: SamplingParams, num_steps: int) -> list[tuple[Sampled, ...]]:
    texts, found = Texts(model, params), []
    for step in range(num_steps):
        found.append(model.runner.run(texts.decode() if step else texts.prefill()).samples)
        texts.grow((0, 1, 2), [sampled.token for sampled in found[-1]])
    return found


@pytest.mark.parametrize(
    ("backend", "params"),
    [
        in_backend(backend, params, slow=backend.startswith("cuda") and params not in (GREEDY, PENALIZED))
        for backend in BACKENDS
        for params in (GREEDY, DRAWN, PENALIZED, ON_THE_HOST, STEPS, NEVER)
        if params is GREEDY or backend != "cuda without graphs"
    ],
)
def test_the_same_as_in_turn(model: CpuModel, params: SamplingParams) -> None:
    """Four steps, each submitted before the result of the one before is asked for: the same tokens and log probabilities."""
    expected = in_turn(model, params, 4)
    texts, found = Texts(model, params), []
    steps = [model.runner.submit(texts.prefill())]
    for _ in range(3):
        texts.grow((0, 1, 2), [PENDING] * 3)
        steps.append(model.runner.submit(texts.decode()))
        found.append(steps[-2].result().samples)
        texts.learn((0, 1, 2), found[-1], back=1)
    found.append(steps[-1].result().samples)
    assert found == expected
    assert steps[1].result().samples == expected[1]  # asked again


class Mixed(Texts):
    """Each text has its own parameters."""

    def sample(self, row: int, stops: Sequence[int] = ()) -> Sample:
        self.params = (DRAWN, STEPS, GREEDY)[row]
        return super().sample(row, stops)


@pytest.mark.parametrize("backend", [in_backend(backend) for backend in BACKENDS])
def test_steps_beside_others(model: CpuModel) -> None:
    """A sample with steps of its own is drawn as it is alone, and so are its neighbours; the next step goes on from all of them."""
    texts = Mixed(model)
    first = model.runner.submit(texts.prefill())
    texts.grow((0, 1, 2), [PENDING] * 3)
    second = model.runner.submit(texts.decode())
    found = [first.result().samples, second.result().samples]
    for row, params in enumerate((DRAWN, STEPS, GREEDY)):
        assert [samples[row].token for samples in found] == [samples[row].token for samples in in_turn(model, params, 2)]


def slabs(model: CpuModel) -> tuple[NDArray[Any], NDArray[Any]]:
    """Copies of the live rows and of the pages."""
    caches = model.runner._caches
    return model.ops.to_numpy(caches.rows).copy(), model.ops.to_numpy(caches.kv).copy()


@pytest.mark.parametrize("beside", ["a decode", "a prefill"])
@pytest.mark.parametrize("backend", [in_backend(backend) for backend in BACKENDS])
def test_a_token_that_ends_the_answer(model: CpuModel, beside: str) -> None:
    """Row 0's chunk is skipped: its live row and its pages stay as they are; its neighbour and the row that is prefilled in the
    same step go on as if it were not there, also in the step after."""
    texts = Texts(model)
    first = model.runner.run(texts.prefill((0, 1))).samples
    texts.grow((0, 1), [sampled.token for sampled in first])
    others = texts.prefill((2,)) if beside == "a prefill" else StepBatch()
    both = replace(texts.decode((1,)), zero_rows=others.zero_rows)
    both = replace(both, chunks=[*both.chunks, *others.chunks], samples=[*both.samples, *others.samples])
    second = model.runner.run(both).samples
    texts.grow((1,), [second[0].token])
    third = model.runner.run(texts.decode((1,))).samples

    texts = Texts(model)
    step = model.runner.submit(texts.prefill((0, 1), stops=[99, first[0].token]))
    before = slabs(model)
    texts.grow((0, 1), [PENDING, PENDING])
    ahead = texts.decode((0, 1))
    ahead = replace(
        ahead, zero_rows=others.zero_rows, chunks=[*ahead.chunks, *others.chunks], samples=[*ahead.samples, *others.samples]
    )
    next_step = model.runner.submit(ahead)
    assert step.result().samples == first
    texts.learn((1,), first[1:], back=1)
    texts.grow((1,), [PENDING])
    last = model.runner.submit(texts.decode((1,)))
    assert [sampled.token for sampled in next_step.result().samples[1:]] == [sampled.token for sampled in second]
    assert [sampled.token for sampled in last.result().samples] == [sampled.token for sampled in third]
    after = slabs(model)
    np.testing.assert_array_equal(after[0][0], before[0][0])
    np.testing.assert_array_equal(after[1][texts.chunk(0).pages], before[1][texts.chunk(0).pages])


@pytest.mark.parametrize("backend", [in_backend(backend) for backend in BACKENDS])
def test_a_token_that_is_not_finite(model: CpuModel) -> None:
    """The row with a NaN samples -1 and is skipped; its neighbour goes on."""
    texts = Texts(model)
    model.runner.run(texts.prefill((0, 1)))
    texts.grow((0, 1), [7, 8])
    rows = model.ops.to_numpy(model.runner._caches.rows).copy()
    rows[0] = np.nan
    write(model, rows)
    step = model.runner.submit(texts.decode((0, 1)))
    texts.grow((0, 1), [PENDING, PENDING])
    ahead = model.runner.submit(texts.decode((0, 1)))
    assert step.result().samples[0].token == -1
    texts.learn((1,), step.result().samples[1:], back=1)
    found = ahead.result().samples[1].token

    texts = Texts(model)
    model.runner.run(texts.prefill((1,)))
    texts.grow((1,), [8])
    texts.grow((1,), [model.runner.run(texts.decode((1,))).samples[0].token])
    assert model.runner.run(texts.decode((1,))).samples[0].token == found


def write(model: CpuModel, rows: NDArray[np.float32]) -> None:
    there = model.runner._caches.rows
    if isinstance(there, np.ndarray):
        there[:] = rows
    else:
        model.ops.device.copy_in(there, rows)


@pytest.mark.parametrize("backend", [in_backend("cpu"), in_backend("cuda")])
def test_refused_behind_a_failure(model: CpuModel) -> None:
    """A step that was planned ahead of one that failed does not run; the next one that was not, does."""
    texts = Texts(model)
    model.runner.run(texts.prefill())
    with pytest.raises(AssertionError):
        model.runner.submit(StepBatch(zero_rows=[1000]))
    texts.grow((0, 1, 2), [PENDING] * 3)
    with pytest.raises(StepRefusedError):
        model.runner.submit(texts.decode())
    with pytest.raises(StepRefusedError):
        model.runner.submit(texts.decode())
    assert model.runner.run(Texts(model).prefill()).samples


def test_what_cannot_be_pending() -> None:
    """Only the one token of a chunk without captures and scores, in a step that says so."""
    model = CpuModel(FILE, ReferenceOps())
    texts = Texts(model)
    model.runner.run(texts.prefill())
    texts.grow((0,), [PENDING])
    good = texts.decode((0,))
    chunk = good.chunks[0]
    for bad in (
        replace(good, ahead=False),
        replace(good, captures=[Capture(0, chunk.end, 0)]),
        replace(good, scores=[Score(0, chunk.end, 5)]),
        replace(good, chunks=[chunk._replace(tokens=np.array([PENDING, 5], np.int32))]),
    ):
        with pytest.raises(AssertionError):
            model.runner.submit(bad)


@pytest.mark.parametrize("backend", [in_backend("reference"), in_backend("cuda")])
def test_duration_counts_no_step_twice(model: CpuModel) -> None:
    """A step that waited in line behind another one has lasted since that one ended."""
    ticks = iter(range(1000))
    model.runner._clock = lambda: float(next(ticks))
    model.runner._idle_since = 0.0
    texts = Texts(model)
    steps = [model.runner.submit(texts.prefill())]
    texts.grow((0, 1, 2), [PENDING] * 3)
    steps.append(model.runner.submit(texts.decode()))
    durations = [step.result().duration_s for step in steps]
    assert sum(durations) <= next(ticks)
    assert all(duration > 0 for duration in durations)
