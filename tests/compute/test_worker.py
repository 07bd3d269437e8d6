"""The compute thread: the loop stays free, errors travel, and a cancelled wait loses nothing."""

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from svc.compute.backend import Completed, StepBatch, StepResult
from svc.compute.worker import ComputeWorker
from svc.memory.layout import MemoryLayout
from svc.memory.plan import MemoryPlan

PLAN = MemoryPlan(MemoryLayout(8, 1, 1, 4, 0, 0, 0, 0, 0, 0, 16), 4, 1, 1)
EMPTY = StepBatch()


class GatedBackend:
    """Each step waits until the test opens the gate, and notes its thread."""

    name = "gated"
    plan = PLAN
    max_step_tokens = 8

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.started = threading.Event()
        self.threads: list[threading.Thread] = []
        self.finished = 0
        self.closed = False
        self.outcome: Callable[[], None] = lambda: None

    def run(self, batch: StepBatch) -> StepResult:
        return self.submit(batch).result()

    def submit(self, batch: StepBatch) -> Completed:
        assert not self.closed
        self.threads.append(threading.current_thread())
        self.started.set()
        assert self.gate.wait(timeout=30), "the test never opened the gate"
        self.outcome()
        self.finished += 1
        return Completed(StepResult((), (self.finished,), 0.0))

    def close(self) -> None:
        self.threads.append(threading.current_thread())
        self.closed = True


async def started(backend: GatedBackend) -> None:
    await asyncio.to_thread(backend.started.wait, 30)


async def test_the_loop_stays_free() -> None:
    """While a step runs, the loop goes on: it is the loop that opens the gate the step waits for."""
    backend = GatedBackend()
    worker = ComputeWorker(backend)
    step = asyncio.create_task(worker.run(EMPTY))
    await started(backend)
    assert "stepping" in repr(worker)
    backend.gate.set()
    assert (await step).captured == (1,)
    assert "idle" in repr(worker)
    await worker.close()


async def test_one_thread_of_its_own() -> None:
    """All steps and the closing happen on the same thread, which is not the loop's and ends."""
    backend = GatedBackend()
    backend.gate.set()
    worker = ComputeWorker(backend)
    results = [await worker.run(EMPTY) for _ in range(3)]
    await worker.close()
    assert [result.captured for result in results] == [(1,), (2,), (3,)]
    (thread,) = set(backend.threads)
    assert thread is not threading.current_thread()
    assert not thread.is_alive()


class DeviceBackend(GatedBackend):
    """Begins steps at once and notes in what order they are begun and waited for, as on a device that works by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []

    def submit(self, batch: StepBatch) -> Any:
        self.order.append("begin")
        return DeviceStep(self.order, len([one for one in self.order if one == "begin"]))


class DeviceStep:
    finished = False

    def __init__(self, order: list[str], number: int) -> None:
        self._order, self._number = order, number

    def result(self) -> StepResult:
        self._order.append(f"wait {self._number}")
        return StepResult((), (self._number,), 0.0)


async def test_the_next_step_is_begun_before_one_is_waited_for() -> None:
    """On an asynchronous device: a step submitted before the result of the previous one is asked for begins in time."""
    backend = DeviceBackend()
    worker = ComputeWorker(backend)
    steps = [worker.submit(EMPTY), worker.submit(EMPTY)]
    first = await steps.pop(0).result()
    for _ in range(2):
        steps.append(worker.submit(EMPTY))
        await steps.pop(0).result()
    assert (await steps[0].result()).captured == (await steps[0].result()).captured == (4,)
    assert first.captured == (1,)
    assert backend.order == ["begin", "begin", "wait 1", "begin", "wait 2", "begin", "wait 3", "wait 4"]
    await worker.close()


async def test_a_result_does_not_wait_for_the_next_step() -> None:
    """On the host's own processor a step's result is there as soon as it has ended, although the next one runs already."""
    backend = GatedBackend()
    worker = ComputeWorker(backend)
    backend.gate.set()
    first = worker.submit(EMPTY)
    await asyncio.wait([first._begun])
    backend.gate.clear()
    backend.started.clear()
    second = worker.submit(EMPTY)
    await started(backend)
    assert (await first.result()).captured == (1,)
    backend.gate.set()
    assert (await second.result()).captured == (2,)
    await worker.close()


async def test_the_loop_gets_a_turn_with_every_result() -> None:
    """However fast the steps are: what was called soon before the result is asked for runs before it is there."""
    backend = GatedBackend()
    backend.gate.set()
    worker = ComputeWorker(backend)
    step = worker.submit(EMPTY)
    turns: list[int] = []
    await step.result()
    for number in range(3):
        asyncio.get_running_loop().call_soon(turns.append, number)
        await step.result()
        assert turns == list(range(number + 1))
    await worker.close()


async def test_errors_travel_and_end_nothing() -> None:
    """An exception of a step is the awaiter's; the next step runs."""
    backend = GatedBackend()
    backend.gate.set()
    worker = ComputeWorker(backend)

    def fail() -> None:
        raise RuntimeError("bad page")

    backend.outcome = fail
    with pytest.raises(RuntimeError, match="bad page"):
        await worker.run(EMPTY)
    backend.outcome = lambda: None
    assert (await worker.run(EMPTY)).captured == (1,)
    await worker.close()


async def test_a_cancelled_wait_loses_no_step() -> None:
    """The step completes and gives its result, also twice."""
    backend = GatedBackend()
    worker = ComputeWorker(backend)
    step = worker.submit(EMPTY)
    wait = asyncio.create_task(step.result())
    await started(backend)
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait
    assert backend.finished == 0
    backend.gate.set()
    for _ in range(2):
        assert (await step.result()).captured == (1,)
    await worker.close()


async def test_a_step_waiting_in_line_is_not_lost_either() -> None:
    """Two calls at once run one after the other; cancelling the second, not begun yet, still lets it run."""
    backend = GatedBackend()
    worker = ComputeWorker(backend)
    first, second = worker.submit(EMPTY), worker.submit(EMPTY)
    wait = asyncio.create_task(second.result())
    await started(backend)
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait
    backend.gate.set()
    assert (await first.result()).captured == (1,)
    assert (await second.result()).captured == (2,)
    await worker.close()


@pytest.mark.parametrize("asked", [True, False])
async def test_a_step_that_fails_unwatched(asked: bool) -> None:
    """`result` raises the step's exception after a cancelled wait; the loop's exception handler sees nothing, asked or not."""
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    backend = GatedBackend()
    worker = ComputeWorker(backend)

    def fail() -> None:
        raise RuntimeError("lost device")

    backend.outcome = fail
    step = worker.submit(EMPTY)
    wait = asyncio.create_task(step.result())
    await started(backend)
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait
    backend.gate.set()
    if asked:
        with pytest.raises(RuntimeError, match="lost device"):
            await step.result()
    await worker.close()
    del worker, step, wait
    gc.collect()  # a future complains when it goes
    assert complaints == []


async def test_close_waits_for_the_step_and_is_done_once() -> None:
    """The backend is closed after its last step, once."""
    backend = GatedBackend()
    worker = ComputeWorker(backend)
    step = asyncio.create_task(worker.run(EMPTY))
    await started(backend)
    closing = asyncio.create_task(worker.close())
    await asyncio.to_thread(lambda: None)
    assert not backend.closed
    backend.gate.set()
    await closing
    assert (backend.finished, backend.closed) == (1, True)
    assert (await step).captured == (1,)
    await worker.close()
    assert "closed" in repr(worker)
    with pytest.raises(AssertionError):
        await worker.run(EMPTY)
