"""A compute thread that is none: batches and calls run on the loop, in order, a few turns after they were asked for."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from svc.compute.backend import StepBatch, StepResult
from tests.fakes.fake_backend import FakeBackend


class LoopWorker:
    """Runs each batch on the loop, a few turns after it was asked to; can be held."""

    def __init__(self, backend: FakeBackend) -> None:
        self.backend = backend
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()
        self.num_submitted = self.most_at_once = 0
        self._at_once = 0
        self._last: asyncio.Task[Any] | None = None

    def submit(self, batch: StepBatch) -> "LoopStep":
        self.asked.set()
        self.num_submitted += 1
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        self._last = asyncio.get_running_loop().create_task(self._run(batch, self._last))
        return LoopStep(self._last)

    async def _run(self, batch: StepBatch, before: "asyncio.Task[Any] | None") -> StepResult:
        result: StepResult = await self._call(before, self.backend.run, batch)
        self._at_once -= 1
        return result

    def call(self, function: Callable[..., Any], *args: Any) -> "asyncio.Task[Any]":
        self._last = asyncio.get_running_loop().create_task(self._call(self._last, function, *args))
        return self._last

    async def _call(self, before: "asyncio.Task[Any] | None", function: Callable[..., Any], *args: Any) -> Any:
        if before is not None:
            await asyncio.wait([before])
        await self.gate.wait()
        await asyncio.sleep(0)
        return function(*args)


@dataclass
class LoopStep:
    task: "asyncio.Task[StepResult]"

    async def result(self) -> StepResult:
        return await self.task
