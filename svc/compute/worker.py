"""The compute thread: the one thread that talks to a Backend, and how the event loop waits for it.

A step cannot be stopped half way. So cancelling whoever awaits `run` cancels the waiting, not the step: the step completes, the
backend stays consistent, and `settle()` gives its result (or raises its exception) to whoever has to do the bookkeeping.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from svc.compute.backend import Backend, StepBatch, StepResult


class ComputeWorker:
    """Runs the steps of one backend on one dedicated thread. Used from one event loop; owner of the backend from then on."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")
        self._step: asyncio.Future[StepResult] | None = None  # the last step submitted
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "idle" if self._step is None or self._step.done() else "stepping"
        return f"ComputeWorker({self.backend.name}, {state})"

    async def run(self, batch: StepBatch) -> StepResult:
        """Runs one step without blocking the loop; an exception of the backend is raised here.

        Steps run one after the other in the order of the calls. Cancelling this call does not cancel the step: see `settle`.
        """
        assert not self._closed, "run after close"
        self._step = asyncio.get_running_loop().run_in_executor(self._executor, self.backend.run, batch)
        # A step whose awaiter was cancelled may fail with nobody asking: that is for settle(), not for the loop's log.
        self._step.add_done_callback(_retrieve)
        return await _result(self._step)

    async def settle(self) -> StepResult | None:
        """Waits for the last step submitted -> its result (again, if it was given before), or None when there was none.

        Raises what the step raised.
        """
        return None if self._step is None else await _result(self._step)

    async def close(self) -> None:
        """Lets the steps under way complete, closes the backend on its own thread and ends the thread. Again: does nothing."""
        if self._closed:
            return
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(self._executor, self.backend.close)
        self._executor.shutdown()


async def _result(step: "asyncio.Future[StepResult]") -> StepResult:
    """`asyncio.wait` and not `await step`: cancelling the wait leaves the step alone, even one still in line for the thread."""
    await asyncio.wait([step])
    return step.result()


def _retrieve(step: "asyncio.Future[StepResult]") -> None:
    if not step.cancelled():
        step.exception()
