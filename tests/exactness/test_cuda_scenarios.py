"""Scenarios 1-5, 9, 10 and 13 (docs/scenarios.md) on the CUDA backend, its device emulated or real: exact counts of reuse,
answers equal to cold ones.

Conversations are token ids: messages, each with a role header of two tokens, and boundaries at the headers. Resumed
results must have the same bits. Results from other batches, or from a state that decoding left, may be rounded differently on this
backend: there the greedy tokens must be equal, up to a place where the two best tokens are closer than rounding.
"""

import random
from collections.abc import Callable, Iterator
from itertools import accumulate, zip_longest
from typing import cast

import pytest

from svc.compute.cuda.device import Device
from svc.compute.cuda.ops import CudaOps
from svc.compute.model_file import open_model
from svc.compute.runner import ModelRunner
from svc.compute.sampling.params import SamplingParams
from svc.memory.placement import Boundary, BoundaryKind
from svc.memory.plan import MemoryPlan
from svc.model.arch import load_model
from svc.slots.events import TokenEvent
from tests.compute.cuda.test_models import FloatOps
from tests.cuda_emulator.build import have_compiler
from tests.cuda_emulator.device import EmulatedDevice
from tests.exactness.conftest import MODELS
from tests.kernels.cuda import GPU, have_gpu
from tests.slots.harness import Answer, Driver
from tests.tolerances import LOGITS_GOLDEN

pytestmark = pytest.mark.skipif(not have_compiler(), reason="the CUDA emulator needs g++")
GREEDY = SamplingParams(temperature=0, num_logprobs=2)
HEADER = [1, 2]
Fresh = Callable[..., Driver]
Message = list[int]


@pytest.fixture(scope="module", params=["eager", "lazy", *(["cuda"] if have_gpu() else [])])
def device(request: pytest.FixtureRequest) -> Device:
    """Lazy: the device does nothing until the host waits, which reveals a missing synchronisation."""
    return GPU.device if request.param == "cuda" else cast(Device, EmulatedDevice(lazy=request.param == "lazy"))


@pytest.fixture
def fresh(device: Device) -> Iterator[Fresh]:
    """`fresh(...)`: a new server's worth of memory around the model, nothing cached. `exact`: float activations, whose results are
    closer to each other than the tokens are."""
    runners: list[ModelRunner] = []

    def make(*, rows: int = 4, pages: int = 200, snapshots: int = 64, chunk: int = 128, exact: bool = True) -> Driver:
        ops = FloatOps(device) if exact else CudaOps(device)
        config, source = open_model(MODELS / "tiny-qwen3next-Q4_K_M.gguf")
        plan = MemoryPlan(config.memory_layout(16, "f16"), pages, rows, snapshots)
        runners.append(ModelRunner(load_model(source, config, ops), ops, plan, chunk))
        return Driver(runners[-1])

    yield make
    for runner in runners:
        runner.close()


def message(length: int, seed: int) -> Message:
    return HEADER + random.Random(seed).choices(range(10, 2000), k=length)


def conversation(turns: int) -> list[Message]:
    """System, then user and assistant in turn, a user message last."""
    return [message(12 if seed else 20, seed) for seed in range(2 * turns)]


def starts(messages: list[Message]) -> list[int]:
    return [0, *accumulate(len(each) for each in messages)]


def ask(
    driver: Driver,
    messages: list[Message],
    max_tokens: int = 4,
    *,
    opening: Message = HEADER,
    submit: bool = False,
    **fields: object,
) -> Answer:
    """The messages and what the answer opens with."""
    marks = tuple(Boundary(start, BoundaryKind.MESSAGE_START) for start in starts(messages) if start)
    prompt = [*(token for each in messages for token in each), *opening]
    fields = {"params": GREEDY, "boundaries": marks, **fields}
    return (driver.submit if submit else driver.ask)(prompt, max_tokens, **fields)  # type: ignore[arg-type]


def bits(answer: Answer) -> list[tuple[int, float, object]]:
    return [(event.token, event.logprob, event.top) for event in answer.events if isinstance(event, TokenEvent)]


def assert_same_tokens(found: Answer, wanted: Answer) -> None:
    """Equal as far as the margins are clear."""
    for (token, _, _), (expected, _, top) in zip_longest(bits(found), bits(wanted), fillvalue=(None, None, None)):
        if token != expected:
            assert top is not None
            assert top[0][1] - top[1][1] < LOGITS_GOLDEN, f"{found.tokens} instead of {wanted.tokens}"  # type: ignore[index]
            return


def assert_as_cold(answer: Answer, fresh: Fresh, messages: list[Message], max_tokens: int = 4, **fields: object) -> None:
    control = ask(fresh(), messages, max_tokens, **fields)  # type: ignore[arg-type]
    assert control.cached == 0
    assert_same_tokens(answer, control)


@pytest.mark.parametrize("exact", [True, False], ids=["float", "8-bit"])
def test_01_the_identical_prompt_twice(fresh: Fresh, exact: bool) -> None:
    """cached == n, same bits."""
    driver = fresh(exact=exact)
    first, again = ask(driver, conversation(2)), ask(driver, conversation(2))
    assert (first.cached, again.cached) == (0, again.sequence.num_prompt)
    assert bits(again) == bits(first)
    assert bits(ask(fresh(exact=exact), conversation(2))) == bits(first)
    driver.assert_nothing_leaked()


def test_02_last_user_message_edited(fresh: Fresh) -> None:
    """Everything before that message is reused: cached is the index of its role header."""
    messages = conversation(6)
    edited = [*messages[:-1], message(15, 77)]
    driver = fresh()
    ask(driver, messages)
    reply = ask(driver, edited)
    assert reply.cached == starts(messages)[-2]
    assert_as_cold(reply, fresh, edited)
    driver.assert_nothing_leaked()


def test_03_regenerate_three_times(fresh: Fresh) -> None:
    """cached == n each time, other sampling parameters included; greedy again gives the same bits."""
    driver = fresh()
    first = ask(driver, conversation(2))
    for seed in (1, 2, 3):
        again = ask(driver, conversation(2), params=SamplingParams(temperature=1.0, seed=seed))
        assert again.cached == first.sequence.num_prompt
    assert bits(ask(driver, conversation(2))) == bits(first)


def test_04_branch_and_back(fresh: Fresh) -> None:
    """Conversation A, a branch B from its third message, then A again: A still whole."""
    messages = conversation(3)
    branch = [*messages[:3], message(30, 5)]
    driver = fresh()
    first, aside = ask(driver, messages), ask(driver, branch)
    assert aside.cached == starts(messages)[3]
    again = ask(driver, messages)
    assert again.cached == again.sequence.num_prompt
    assert bits(again) == bits(first)
    assert_as_cold(aside, fresh, branch)
    driver.assert_nothing_leaked()


def test_05_four_agents_at_once_on_one_system_prompt(fresh: Fresh) -> None:
    """Cold: the first computes the common prefix, the rest join exactly there."""
    system = message(150, 0)
    agents = [[system, [*HEADER, 10 + seed, *message(10, seed)]] for seed in range(4)]
    driver = fresh()
    replies = [ask(driver, messages, submit=True) for messages in agents]
    driver.run()
    assert [reply.cached for reply in replies] == [0, *(len(system) + len(HEADER),) * 3]
    for reply, messages in zip(replies, agents, strict=True):
        assert_as_cold(reply, fresh, messages)
    driver.assert_nothing_leaked()


def test_09_nothing_of_one_conversation_in_another(fresh: Fresh) -> None:
    """A finished, a cancelled and evicted conversations, then another one: its bits are those of a fresh server."""
    small = {"rows": 2, "pages": 14, "snapshots": 4}
    driver = fresh(**small)
    ask(driver, [message(40, 9)], 8)
    cut = ask(driver, [message(40, 9), message(10, 8)], 50, submit=True)
    for _ in range(4):
        driver.step()
    driver.cancel(cut)
    driver.run()
    for seed in range(20, 23):
        ask(driver, [message(90, seed)], 1)
    curious = [[5, *message(30, 30)]]
    reply = ask(driver, curious, 8)
    assert reply.cached == 0
    assert bits(reply) == bits(ask(fresh(**small), curious, 8))
    driver.assert_nothing_leaked()


@pytest.mark.parametrize("k", [3, pytest.param(17, marks=pytest.mark.slow)])
def test_10_conversations_at_once(fresh: Fresh, k: int) -> None:
    """Each answer equals its solo run; every prompt is really evaluated."""
    prompts = [[[10 + seed, *message(random.Random(seed).choice([1, 2, 17, 40, 63]), seed)]] for seed in range(k)]
    driver = fresh(rows=17, pages=300)
    replies = [ask(driver, messages, 5, submit=True) for messages in prompts]
    driver.run()
    for reply, messages in zip(replies, prompts, strict=True):
        assert reply.cached == 0
        assert_as_cold(reply, fresh, messages, 5)


def test_13_history_comes_back_without_the_reasoning(fresh: Fresh) -> None:
    """The answer comes back shortened: reused up to the start of that answer."""
    question = [message(20, 0), message(15, 1)]
    later = [*question, [*HEADER, 7], message(10, 2)]
    driver = fresh()
    thinking = [*HEADER, 9]
    ask(driver, question, 8, opening=thinking)
    reply = ask(driver, later, opening=thinking)
    assert reply.cached == starts(question)[-1]
    assert_as_cold(reply, fresh, later, opening=thinking)
    driver.assert_nothing_leaked()
