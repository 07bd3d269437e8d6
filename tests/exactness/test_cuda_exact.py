"""The CUDA backend with `exact` (docs/architecture.md, Exactness): the same tokens give the same bits, however they were computed.

As in test_bit_for_bit.py, token ids *and* log probabilities are compared with a control from a fresh server that ran the request
alone. Weights are quantized as the files have them, so activations go through 8 bits, and decode steps through recorded graphs.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import cast

import pytest

from svc.compute.cuda.device import Device
from svc.compute.cuda.ops import CudaOps
from svc.compute.model_file import open_model
from svc.compute.runner import ModelRunner
from svc.memory.plan import MemoryPlan
from svc.model.arch import load_model
from svc.slots.speculator import Speculator
from tests.cuda_emulator.build import have_compiler
from tests.cuda_emulator.device import EmulatedDevice
from tests.exactness.conftest import model_file
from tests.exactness.test_bit_for_bit import GREEDY, SAMPLED, bits, prompt
from tests.exactness.test_drafts import MOST, told
from tests.kernels.cuda import GPU, have_gpu
from tests.slots.harness import Driver

pytestmark = pytest.mark.skipif(not have_compiler(), reason="the CUDA emulator needs g++")
Bits = list[tuple[int, float, tuple[tuple[int, float], ...]]]
Fresh = Callable[..., Driver]
QUICK = "tiny-qwen3next-Q4_K_M"
# One of each kind of layer and weight: experts, a head size of 128 and floats, attention alone.
HYBRIDS = [QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in ("tiny-qwen35moe-Q4_K_M", "tiny-qwen35-hd128-bf16"))]
OTHERS = ["qwen2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("llama", "tiny-qwen3-Q8_0"))]
FILES = [*HYBRIDS, *OTHERS]
LENGTH = 75  # of a prompt: more than a chunk of the delta rule, five pages, several tiles of keys


@pytest.fixture(scope="module", params=["emulated", *(["cuda"] if have_gpu() else [])])
def device(request: pytest.FixtureRequest) -> Device:
    return GPU.device if request.param == "cuda" else cast(Device, EmulatedDevice())


@pytest.fixture
def fresh(device: Device) -> Iterator[Fresh]:
    """`fresh(file, ...)`: a new server's worth of memory around the model, nothing cached."""
    runners: list[ModelRunner] = []

    def make(
        file: str,
        *,
        graphs: bool = True,
        rows: int = 4,
        pages: int = 40,
        snapshots: int = 64,
        chunk: int = 128,
        speculator: Speculator | None = None,
    ) -> Driver:
        journal = MOST + 1 if speculator is not None else 0
        sizes = {"rows": rows, "pages": pages, "snapshots": snapshots, "chunk": chunk, "journal": journal}
        runners.append(made(device, file, graphs=graphs, **sizes))
        return Driver(runners[-1], speculator=speculator)

    yield make
    for runner in runners:
        runner.close()


def made(
    device: Device, file: str, *, graphs: bool, rows: int, pages: int, snapshots: int, chunk: int, journal: int = 0
) -> ModelRunner:
    ops = CudaOps(device, graphs=graphs, exact=True)
    config, source = open_model(model_file(file))
    plan = MemoryPlan(config.memory_layout(16, "f16"), pages, rows, snapshots, journal_tokens=journal)
    return ModelRunner(load_model(source, config, ops), ops, plan, chunk)


@cache
def solo(device: Device, file: str, tokens: tuple[int, ...], max_tokens: int = 4, params: object = GREEDY) -> Bits:
    """Alone, the prompt in one chunk, launches instead of graphs."""
    runner = made(device, file, graphs=False, rows=1, pages=40, snapshots=64, chunk=128)
    answer = Driver(runner).ask(tokens, max_tokens, params=params)
    runner.close()
    assert answer.cached == 0
    return cast(Bits, bits(answer))


@pytest.mark.parametrize("file", FILES)
def test_drafts(device: Device, fresh: Fresh, file: str) -> None:
    """Checked many at a step, some of them wrong, two answers at once: the bits of those without drafts; so the next turn."""
    requests = [(prompt(19, seed=1), GREEDY), (prompt(6, seed=2), SAMPLED)]
    expected = [solo(device, file, tuple(tokens), 12, params) for tokens, params in requests]
    answers = [[token for token, *_ in answer] for answer in expected]
    known = {f"{tuple(tokens)} {params}": answer for (tokens, params), answer in zip(requests, answers, strict=True)}
    driver = fresh(file, speculator=told(known))
    found = [driver.submit(tokens, 12, params) for tokens, params in requests]
    driver.run()
    assert [bits(answer) for answer in found] == expected
    counters = driver.scheduler.counters
    assert 3 < counters.accepted_drafts < counters.drafts
    turn = (*requests[0][0], *answers[0], 7, 8, 9)
    again = driver.ask(turn, 4, params=GREEDY)
    assert again.cached == len(turn) - 4
    assert bits(again) == solo(device, file, turn)


@pytest.mark.parametrize("file", FILES)
def test_batched(device: Device, fresh: Fresh, file: str) -> None:
    """Scenario 10: conversations at once, prefilled and decoded together in steps of all mixtures, padded to a graph's size."""
    prompts = [prompt(length, seed=length) for length in (LENGTH, 1, 17, 3, 40)]
    driver = fresh(file, rows=5, pages=60, chunk=48)
    answers = [driver.submit(tokens, 4, params=GREEDY) for tokens in prompts]
    driver.run()
    for answer, tokens in zip(answers, prompts, strict=True):
        assert answer.cached == 0
        assert bits(answer) == solo(device, file, tuple(tokens))


@pytest.mark.parametrize("chunk", [7, pytest.param(16, marks=pytest.mark.slow), pytest.param(33, marks=pytest.mark.slow)])
@pytest.mark.parametrize("file", FILES)
def test_chunked_otherwise(device: Device, fresh: Fresh, file: str, chunk: int) -> None:
    """However a prompt is cut into steps."""
    answer = fresh(file, chunk=chunk).ask(prompt(LENGTH), 4, params=GREEDY)
    assert bits(answer) == solo(device, file, tuple(prompt(LENGTH)))


@pytest.mark.parametrize("known", [17, *(pytest.param(known, marks=pytest.mark.slow) for known in (1, 16, 64, 74, 75))])
@pytest.mark.parametrize("file", FILES)
def test_resumed(device: Device, fresh: Fresh, file: str, known: int) -> None:
    """From a snapshot at any place, and really from there."""
    driver = fresh(file)
    driver.ask(prompt(LENGTH)[:known], 0)
    answer = driver.ask(prompt(LENGTH), 4, params=GREEDY)
    assert answer.cached == known
    assert bits(answer) == solo(device, file, tuple(prompt(LENGTH)))


@pytest.mark.parametrize("file", FILES)
def test_resumed_behind_an_answer(device: Device, fresh: Fresh, file: str) -> None:
    """A state made by decoding equals the one a cold prefill of the same text makes."""
    driver = fresh(file)
    first = driver.ask(prompt(20), 12, params=GREEDY)
    turn = (*prompt(20), *first.tokens, *prompt(10, seed=1))
    second = driver.ask(turn, 4, params=GREEDY)
    assert second.cached == 31
    assert bits(second) == solo(device, file, turn)


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_preempted(device: Device, fresh: Fresh, file: str) -> None:
    """Preempted in mid-answer and brought back, drawing tokens at random."""
    driver = fresh(file, pages=19)
    prompts = [prompt(30, seed=seed) for seed in range(3)]
    answers = [driver.submit(tokens, 100, params=SAMPLED) for tokens in prompts]
    driver.run()
    assert driver.scheduler.counters.preemptions > 0
    for answer, tokens in zip(answers, prompts, strict=True):
        assert bits(answer) == solo(device, file, tuple(tokens), 100, SAMPLED)


def test_graphs_are_used(fresh: Fresh) -> None:
    """Decode steps are recorded and replayed in this mode too."""
    driver = fresh(QUICK, chunk=16)
    driver.ask(prompt(5), 6, params=GREEDY)
    assert len(driver._backend._ops._graphs) == 1  # type: ignore[attr-defined]
