"""The loop around the scheduler: events reach their streams, leaving is a normal ending at every await, a failure is contained."""

import asyncio
import random

import numpy as np
import pytest

from svc.compute.backend import Chunk, StepBatch
from svc.errors import DrainingError
from svc.memory.plan import MemoryPlan
from svc.memory.sequence_cache import SequenceCache
from svc.slots.budget import ChunkBudget
from svc.slots.engine import MAX_FAILED_STEPS, Engine, EngineState
from svc.slots.events import Finished, FinishReason, TokenText
from svc.slots.idle_check import IdleCheck
from svc.slots.request import Request
from svc.slots.scheduler import Scheduler
from tests.fakes.event_reader import EventReader
from tests.fakes.fake_backend import FakeBackend, expected_answer
from tests.slots.harness import GREEDY, layout
from tests.slots.loop_worker import LoopWorker

PROBE = StepBatch(zero_rows=(0,), chunks=(Chunk(row=0, start=0, tokens=np.zeros(1, np.int32), pages=np.zeros(1, np.int32)),))


class Bench:
    """An engine over the fake device."""

    def __init__(self, chunk: int = 32, idle_check: IdleCheck | None = None) -> None:
        plan = MemoryPlan(layout(), num_pages=128, num_rows=4, num_snapshots=32)
        self.plan = plan
        self.cache = SequenceCache(plan)
        self.backend = FakeBackend(plan, max_step_tokens=chunk)
        self.worker = LoopWorker(self.backend)
        self.ended: list[tuple[Request, Finished]] = []
        self.errors: list[BaseException] = []
        scheduler = Scheduler(self.cache, context_tokens=1000, budget=ChunkBudget(chunk, 10.0))
        self.engine = Engine(
            scheduler,
            self.worker,
            self.cache,
            on_finished=lambda request, finished: self.ended.append((request, finished)),
            on_error=self.errors.append,
            probe=PROBE,
            idle_check=idle_check,
        )

    def submit(self, length: int = 50, max_tokens: int = 5, seed: int = 0) -> EventReader:
        prompt = tuple(random.Random(seed).choices(range(1000), k=length))
        return EventReader(self.engine, Request(id=f"r{seed}", prompt=prompt, max_tokens=max_tokens, params=GREEDY))

    async def settle(self) -> None:
        """Drains, stops and proves that nothing is held."""
        await self.engine.drain(60)
        await self.engine.stop()
        self.cache.check()
        self.cache.clear()
        stats = self.cache.stats()
        assert (stats.free_rows, stats.free_pages, stats.free_snapshots) == (4, 128, 32)


def expected(length: int = 50, max_tokens: int = 5, seed: int = 0) -> list[int]:
    return expected_answer(random.Random(seed).choices(range(1000), k=length), max_tokens)


async def test_streams_carry_their_own_answers() -> None:
    """Several at once: each stream gets its tokens in order and one end; on_finished is called once for each."""
    bench = Bench()
    await bench.engine.start()
    streams = [bench.submit(40 + seed, seed=seed) for seed in range(7)]
    answers = await asyncio.gather(*(stream.tokens() for stream in streams))
    assert answers == [expected(40 + seed, seed=seed) for seed in range(7)]
    assert len(bench.ended) == 7
    await bench.settle()


async def test_an_idle_engine_checks_its_cache() -> None:
    """After the last answer, never beside one; the engine that stops leaves no timer behind."""
    checked = asyncio.Event()

    def check() -> None:
        assert bench.engine.stats().num_running == 0
        assert not bench.engine._streams
        bench.cache.check()

    def report(error: Exception | None) -> None:
        assert error is None
        checked.set()

    idle_check = IdleCheck(check, report, lambda: 0.0, idle_s=0, every_s=0)
    bench = Bench(idle_check=idle_check)
    await bench.engine.start()
    for seed in range(3):
        checked.clear()
        assert await bench.submit(seed=seed).tokens() == expected(seed=seed)
        async with asyncio.timeout(60):
            await checked.wait()
    await bench.submit().tokens()
    await bench.settle()
    assert idle_check._timer is None


@pytest.mark.parametrize("turns", range(0, 30, 2))
async def test_cancel_at_every_await(turns: int) -> None:
    """The reader is cancelled after any number of turns of the loop; its `finally` cancels the stream; nothing is held."""
    bench = Bench(chunk=16)
    await bench.engine.start()

    async def read() -> None:
        stream = bench.submit(60)
        try:
            await stream.tokens()
        finally:
            stream.cancel()

    reader = asyncio.create_task(read())
    other = asyncio.create_task(bench.submit(30, seed=1).tokens())
    for _ in range(turns):
        await asyncio.sleep(0)
    reader.cancel()
    await asyncio.wait([reader])
    assert await other == expected(30, seed=1)
    await bench.settle()
    assert [finished.reason for request, finished in bench.ended if request.id == "r0"] in (
        [] if turns == 0 else [FinishReason.CANCELLED],
        [FinishReason.LENGTH],
    )


async def test_a_cancelled_stream_ends_at_once() -> None:
    """Its end does not wait for the step under way."""
    bench = Bench()
    bench.worker.gate.clear()
    await bench.engine.start()
    stream = bench.submit()
    await bench.worker.asked.wait()
    stream.cancel()
    assert stream.finished is not None
    assert stream.finished.reason is FinishReason.CANCELLED
    stream.cancel()  # again: nothing
    bench.worker.gate.set()
    await bench.settle()
    assert len(bench.ended) == 1


async def test_drain_lets_running_ones_finish_and_refuses_new_ones() -> None:
    """SIGTERM: what was accepted is answered in full, waiting ones too."""
    bench = Bench()
    await bench.engine.start()
    streams = [bench.submit(seed=seed) for seed in range(9)]  # more than there are slots
    draining = asyncio.create_task(bench.engine.drain(60))
    await asyncio.sleep(0)
    with pytest.raises(DrainingError):
        bench.submit()
    assert bench.engine.state is EngineState.DRAINING
    await draining
    assert [await stream.tokens() for stream in streams] == [expected(seed=seed) for seed in range(9)]
    await bench.settle()


async def test_drain_cancels_at_its_deadline() -> None:
    """Those still running at the deadline end as cancelled; drain returns."""
    bench = Bench()
    bench.worker.gate.clear()
    await bench.engine.start()
    stream = bench.submit(max_tokens=500)
    await bench.worker.asked.wait()
    draining = asyncio.create_task(bench.engine.drain(0))
    await stream.wait()
    assert stream.finished is not None
    assert stream.finished.reason is FinishReason.CANCELLED
    bench.worker.gate.set()
    await draining
    await bench.settle()


async def test_a_failing_step_ends_its_requests_with_an_error() -> None:
    """The error is reported, the requests end with it, the engine goes on."""
    bench = Bench()
    await bench.engine.start()
    bench.backend.fail_next = RuntimeError("device lost")
    stream = bench.submit()
    await stream.tokens()
    assert stream.finished is not None
    assert (stream.finished.reason, "device lost" in (stream.finished.error or "")) == (FinishReason.ERROR, True)
    assert await bench.submit().tokens() == expected()
    assert [str(error) for error in bench.errors] == ["device lost"]
    assert bench.engine.state is EngineState.READY
    await bench.settle()


@pytest.mark.parametrize("moment", range(1, 13))
async def test_a_step_that_fails_at_any_moment(moment: int) -> None:
    """Also while the next one is under way, which is refused: reported once, whoever was in it ends with an error, the others and
    later requests are answered, nothing is held."""
    bench = Bench()
    count = 0

    def fail(batch: StepBatch) -> bool:
        nonlocal count
        count += 1
        return count == moment

    bench.backend.fail_when = fail
    await bench.engine.start()
    streams = [bench.submit(20 + seed, max_tokens=4 + seed, seed=seed) for seed in range(6)]  # more than there are slots
    answers = await asyncio.gather(*(stream.tokens() for stream in streams))
    for seed, (stream, answer) in enumerate(zip(streams, answers, strict=True)):
        assert stream.finished is not None
        whole = expected(20 + seed, 4 + seed, seed)
        assert answer == (whole if stream.finished.reason is FinishReason.LENGTH else whole[: len(answer)])
    assert [str(error) for error in bench.errors] == ["device lost"]
    assert 1 <= sum(finished.reason is FinishReason.ERROR for _, finished in bench.ended) <= 4
    assert await bench.submit().tokens() == expected()
    assert bench.engine.state is EngineState.READY
    await bench.settle()


async def test_the_next_step_is_submitted_while_one_runs() -> None:
    """A stream's steps follow each other without the loop: two are with the worker at once, and never more."""
    bench = Bench()
    bench.worker.gate.clear()
    await bench.engine.start()
    stream = bench.submit(20, max_tokens=6)
    await bench.worker.asked.wait()
    for _ in range(10):
        await asyncio.sleep(0)
    assert bench.worker.num_submitted == 2
    bench.worker.gate.set()
    assert await stream.tokens() == expected(20, 6)
    assert bench.worker.most_at_once == 2
    await bench.settle()


async def test_a_device_that_fails_every_step_is_given_up() -> None:
    """After MAX_FAILED_STEPS in a row and a failed probe the engine is FAILED and refuses."""
    bench = Bench()
    bench.backend.fail_when = lambda batch: True
    await bench.engine.start()
    for _ in range(MAX_FAILED_STEPS):
        await bench.submit().tokens()
    for _ in range(5):
        await asyncio.sleep(0)  # the probe
    with pytest.raises(DrainingError, match="failed"):
        bench.submit()
    assert len(bench.errors) == MAX_FAILED_STEPS + 1
    await bench.engine.stop()


async def test_requests_that_fail_every_time_do_not_take_the_server_down() -> None:
    """The same bad request again and again: the probe shows that the device works, and the next one is served."""
    bench = Bench()
    bench.backend.fail_when = lambda batch: batch.num_tokens > 20
    await bench.engine.start()
    for _ in range(2 * MAX_FAILED_STEPS):
        assert await bench.submit(50).tokens() == []
    assert await bench.submit(20).tokens() == expected(20)
    assert bench.engine.state is EngineState.READY
    await bench.settle()


async def test_a_bug_in_the_bookkeeping_ends_all_streams() -> None:
    """An exception of ours in commit: nobody waits for ever, the engine says FAILED."""
    bench = Bench()
    await bench.engine.start()

    def explode(token: int) -> TokenText:
        raise ZeroDivisionError

    request = Request(id="bad", prompt=(1, 2, 3), max_tokens=3, params=GREEDY, on_token=explode)
    bad, other = EventReader(bench.engine, request), bench.submit(300)
    for stream in (bad, other):
        await stream.tokens()
        assert stream.finished is not None
        assert stream.finished.reason is FinishReason.ERROR
    assert bench.engine.state is EngineState.FAILED
    await bench.engine.stop()
