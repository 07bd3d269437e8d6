"""The compute thread: the one thread that talks to a Backend, and how the event loop waits for it.

A running step cannot be stopped. Cancelling a wait for it therefore cancels the waiting only: the step completes, the backend stays
consistent, and `ComputeStep.result` still gives the result (or raises the step's exception) for the bookkeeping.

The thread never waits for the loop: a step submitted while another runs begins right behind it. On an asynchronous device the
thread only queues a step; it waits for the end when the result is asked for, and by then the next step has been queued, if there is
one.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from svc.compute.backend import Backend, StepBatch, StepResult, Submitted

Value = TypeVar("Value")


class ComputeStep:
    """A batch that was submitted to the thread."""

    def __init__(self, executor: ThreadPoolExecutor, begun: "asyncio.Future[Submitted]") -> None:
        self._executor = executor
        self._begun = begun
        self._ended: asyncio.Future[StepResult] | None = None

    @property
    def begun(self) -> bool:
        return self._begun.done()

    async def result(self) -> StepResult:
        """Waits without blocking the loop. Calls after the first give the same result. Raises the backend's exception."""
        submitted = await _outcome(self._begun)
        if submitted.finished:
            return submitted.result()
        if self._ended is None:
            self._ended = _queued(self._executor, submitted.result)
        return await _outcome(self._ended)


class ComputeWorker:
    """Runs the steps of one backend on one dedicated thread. Used from one event loop; owner of the backend from then on."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")
        self._step: ComputeStep | None = None  # the last one submitted
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "idle" if self._step is None or self._step.begun else "stepping"
        return f"ComputeWorker({self.backend.name}, {state})"

    def submit(self, batch: StepBatch) -> ComputeStep:
        """Queues a step. Steps take effect in the order of the calls."""
        assert not self._closed, "submit after close"
        self._step = ComputeStep(self._executor, _queued(self._executor, self.backend.submit, batch))
        return self._step

    async def run(self, batch: StepBatch) -> StepResult:
        """Submits one step and waits for it. Cancelling this call does not cancel the step."""
        return await self.submit(batch).result()

    def call(self, function: Callable[..., Value], *args: Any) -> "Awaitable[Value]":
        """Calls something of the backend on its thread, after all steps submitted so far and before all others: at once, not when
        the outcome is awaited. Cancelling the wait does not cancel the call."""
        assert not self._closed, "call after close"
        return _outcome(_queued(self._executor, function, *args))

    async def close(self) -> None:
        """Completes the steps under way, closes the backend on its thread and ends the thread. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(self._executor, self.backend.close)
        self._executor.shutdown()


def _queued(executor: ThreadPoolExecutor, call: Callable[..., Value], *args: Any) -> "asyncio.Future[Value]":
    """The outcome of a call on the thread. As `run_in_executor`, but one future instead of two: this is done for every step."""
    loop = asyncio.get_running_loop()
    job: asyncio.Future[Value] = loop.create_future()
    # A step may fail after its awaiter was cancelled. Retrieving the exception keeps it out of the loop's log.
    job.add_done_callback(_retrieve)

    def run() -> None:
        try:
            outcome = call(*args)
        except BaseException as error:
            _tell(loop, job.set_exception, error)
        else:
            _tell(loop, job.set_result, outcome)

    executor.submit(run)
    return job


def _tell(loop: asyncio.AbstractEventLoop, settle: Callable[[Any], None], outcome: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(settle, outcome)


async def _outcome(job: "asyncio.Future[Value]") -> Value:
    """Not `await job`: cancelling the wait does not cancel the job, not even one that has not begun.

    The loop gets a turn even where the outcome is known: streams are written there.
    """
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_: object) -> None:
        if not waiter.done():
            waiter.set_result(None)

    job.add_done_callback(wake)
    try:
        await waiter
    finally:
        job.remove_done_callback(wake)
    return job.result()


def _retrieve(job: "asyncio.Future[Any]") -> None:
    if not job.cancelled():
        job.exception()
