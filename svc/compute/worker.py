"""The compute thread: the one thread that talks to a Backend, and how the event loop waits for it.

A step cannot be stopped half way. So cancelling whoever awaits it cancels the waiting, not the step: the step completes, the
backend stays consistent, and `settle()` gives its result (or raises its exception) to whoever has to do the bookkeeping.

The thread never waits for the loop: a step that was submitted while another ran begins at once behind it. On a device that works
by itself the thread begins a step, and waits for its end only when somebody asks for the result: by then the next one has been
begun, if there is one.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from svc.compute.backend import Backend, StepBatch, StepResult, Submitted

Value = TypeVar("Value")


class ComputeStep:
    """A batch on its way through the thread."""

    def __init__(self, executor: ThreadPoolExecutor, begun: "asyncio.Future[Submitted]") -> None:
        self._executor = executor
        self._begun = begun
        self._ended: asyncio.Future[StepResult] | None = None

    @property
    def begun(self) -> bool:
        return self._begun.done()

    async def result(self) -> StepResult:
        """Waits without blocking the loop; again: gives the same. An exception of the backend is raised here."""
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
        """Queues a step. Steps take effect one after the other in the order of the calls."""
        assert not self._closed, "submit after close"
        self._step = ComputeStep(self._executor, _queued(self._executor, self.backend.submit, batch))
        return self._step

    async def run(self, batch: StepBatch) -> StepResult:
        """Submits one step and waits for it. Cancelling this call does not cancel the step: see `settle`."""
        return await self.submit(batch).result()

    async def settle(self) -> StepResult | None:
        """Waits for the last step submitted -> its result (again, if it was given before), or None when there was none.

        Raises what the step raised.
        """
        return None if self._step is None else await self._step.result()

    async def close(self) -> None:
        """Lets the steps under way complete, closes the backend on its own thread and ends the thread. Again: does nothing."""
        if self._closed:
            return
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(self._executor, self.backend.close)
        self._executor.shutdown()


def _queued(executor: ThreadPoolExecutor, call: Callable[..., Value], *args: Any) -> "asyncio.Future[Value]":
    job = asyncio.get_running_loop().run_in_executor(executor, call, *args)
    # A step whose awaiter was cancelled may fail with nobody asking: that is for settle(), not for the loop's log.
    job.add_done_callback(_retrieve)
    return job


async def _outcome(job: "asyncio.Future[Value]") -> Value:
    """`asyncio.wait` and not `await job`: cancelling the wait leaves the job alone, even one still in line for the thread."""
    await asyncio.wait([job])
    return job.result()


def _retrieve(job: "asyncio.Future[Any]") -> None:
    if not job.cancelled():
        job.exception()
