"""The loop that turns plans into steps: plan -> (compute thread) step -> commit -> events into streams.

Everything here runs on the event loop; only the worker's steps leave it. The loop never waits for a reader. While a step runs, the
next one is planned and submitted if the scheduler can tell what it will be, so that the device does not wait for the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from svc.compute.backend import StepBatch, StepResult
from svc.errors import DrainingError
from svc.memory.sequence_cache import SequenceCache
from svc.slots.batch import StepPlan
from svc.slots.disk_tier import DiskTier
from svc.slots.events import NOT_ADMITTED, Event, Finished, FinishReason, Timing, Usage
from svc.slots.idle_check import IdleCheck
from svc.slots.operator_pins import OperatorPins
from svc.slots.request import Request, Sequence
from svc.slots.scheduler import Emitted, Scheduler
from svc.slots.slot_files import SlotFiles
from svc.slots.stats import EngineStats, Flushed, SlotView
from svc.slots.stream import TokenStream

MAX_FAILED_STEPS = 3  # in a row: then a probe decides whether the device is broken or what it was asked to do was at fault
FLUSH_WAIT_S = 10.0  # for the states of answers that have ended, which would be kept behind a flush


class EngineState(enum.Enum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"  # the device fails every step; nothing is accepted any more


class Step(Protocol):
    """A batch on its way."""

    async def result(self) -> StepResult:
        """Waits for its end. Raises what made it fail."""


class Worker(Protocol):
    """Runs batches off the loop, one after the other (compute/worker.py)."""

    def submit(self, batch: StepBatch) -> Step: ...


class Engine:
    """Owner of the step loop's task and of the open streams."""

    def __init__(
        self,
        scheduler: Scheduler,
        worker: Worker,
        cache: SequenceCache,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_finished: Callable[[Request, Finished], None] | None = None,
        on_error: Callable[[BaseException], None] | None = None,
        probe: StepBatch | None = None,
        idle_check: IdleCheck | None = None,
        disk: DiskTier | None = None,
        slot_files: SlotFiles | None = None,
    ) -> None:
        """`on_finished` is called once per request as it ends; `on_error` with each exception a step raised.

        `probe` is a harmless step (it may write row and page 0) that is tried after MAX_FAILED_STEPS before the device is given up.
        """
        self.state = EngineState.STARTING
        self._wake = asyncio.Event()
        self.last_progress_s = clock()
        self.on_finished = on_finished
        self.on_error = on_error
        self._probe = probe
        self._idle_check = idle_check
        self.slot_files = slot_files
        if slot_files is not None:
            slot_files.states_saved = self.states_saved
            slot_files.copies.wake_engine = self._wake.set
        self._disk = disk
        if disk is not None:
            disk.wake_engine = disk.copies.wake_engine = self._wake.set
        self._scheduler = scheduler
        self._worker = worker
        self._cache = cache
        self._clock = clock
        self._streams: dict[Sequence, TokenStream] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self._failed_steps = 0
        self._stepped: list[asyncio.Future[None]] = []  # of those who wait for the next step to end
        self._steps: deque[tuple[StepPlan, Step]] = deque()  # under way, oldest first

    # -- requests ---------------------------------------------------------------------------------------------------------------
    @property
    def context_tokens(self) -> int:
        return self._scheduler.context_tokens

    def validate(self, prompt_tokens: int, max_tokens: int | None) -> int:
        """The number of tokens the answer may have. RequestError when the prompt does not fit the context."""
        return self._scheduler.answer_tokens(prompt_tokens, max_tokens)

    def max_requests(self, queue_share: float = 1.0) -> int:
        return self._scheduler.max_requests(queue_share)

    def check_capacity(self, newcomers: int, tenant: str = "", queue_share: float = 1.0) -> None:
        """Raises QueueFullError or DrainingError unless a tenant could submit as many requests now."""
        self._check_open()
        self._scheduler.check_capacity(newcomers, tenant, queue_share)

    def _check_open(self) -> None:
        if self.state in (EngineState.DRAINING, EngineState.STOPPED):
            raise DrainingError("the server is shutting down and takes no new requests")
        if self.state is EngineState.FAILED:
            raise DrainingError("the compute device has failed; the server needs a restart")

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> TokenStream:
        """Queues a request; `on_event` is called with each of its events. Raises QueueFullError, DrainingError or RequestError."""
        self._check_open()
        now = self._clock()
        sequence = self._scheduler.submit(request, now)
        if self._idle.is_set():
            self.last_progress_s = now  # what was idle until now has not been stalled
        stream = TokenStream(request.id, on_event, lambda: self._cancel(sequence))
        self._streams[sequence] = stream
        self._idle.clear()
        if self._disk is not None:
            self._disk.consider(sequence)
        if self._idle_check is not None:
            self._idle_check.busy()
        self._wake.set()
        return stream

    def _cancel(self, sequence: Sequence) -> None:
        finished = self._scheduler.cancel(sequence, self._clock())
        if finished is not None:
            self._deliver([(sequence, finished)])
        self._wake.set()  # its state may want saving

    # -- loop -------------------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        assert self._task is None
        self._task = asyncio.get_running_loop().create_task(self._run(), name="engine")
        self.state = EngineState.READY

    async def _run(self) -> None:
        try:
            while True:
                self._wake.clear()
                while (plan := self._scheduler.plan(self._clock())) is not None:
                    self._steps.append((plan, self._worker.submit(plan.batch)))
                if self._steps:
                    await self._finish_step(*self._steps.popleft())
                else:
                    if self._disk is None or not self._disk.num_fetching:  # else requests wait for the disk
                        self._note_idle()
                    await self._wake.wait()
        except Exception as error:  # a bug of ours in plan or commit: all streams and the supervisor are told
            self._fail(error)

    async def _finish_step(self, plan: StepPlan, step: Step) -> None:
        try:
            result = await step.result()
        except Exception as error:  # the device failed: its requests end with an error, the server goes on
            self._report(error)
            await self._sweep()
            self._deliver(self._scheduler.abort(plan, f"the compute step failed: {error}", self._clock()))
            self._failed_steps += 1
            if self._failed_steps >= MAX_FAILED_STEPS:
                await self._probe_device(str(error))
        else:
            self._failed_steps = 0
            self._deliver(self._scheduler.commit(plan, result, self._clock()))
            if self._disk is not None:
                self._disk.note_published()
        self.last_progress_s = self._clock()
        while self._stepped:
            stepped = self._stepped.pop()
            if not stepped.done():
                stepped.set_result(None)

    async def _sweep(self) -> None:
        """Waits for what was planned ahead of a step that failed. Its outcome is worth nothing; mostly it was refused."""
        while self._steps:
            with contextlib.suppress(Exception):
                await self._steps[0][1].result()
            self._steps.popleft()

    def _note_idle(self) -> None:
        assert self._scheduler.idle, "nothing planned although requests wait"
        self.last_progress_s = self._clock()
        self._idle.set()
        if self._idle_check is not None:
            self._idle_check.idle()

    def _fail(self, error: Exception) -> None:
        self.state = EngineState.FAILED
        self._report(error)
        for stream in self._streams.values():
            stream.push(failed_internally())
        self._streams.clear()
        self._idle.set()

    async def _probe_device(self, error: str) -> None:
        """A device that fails a harmless step too is given up. For that nothing may be in its memory that anybody needs."""
        self._deliver(self._scheduler.fail_all(f"the compute device is suspected: {error}", self._clock()))
        try:
            if self._probe is not None:
                await self._worker.submit(self._probe).result()
                self._failed_steps = 0
                return
        except Exception as failure:
            self._report(failure)
        self.state = EngineState.FAILED

    def _report(self, error: BaseException) -> None:
        if self.on_error is not None:
            self.on_error(error)

    def _deliver(self, emitted: Emitted) -> None:
        for sequence, event in emitted:
            self._streams[sequence].push(event)
            if isinstance(event, Finished):
                del self._streams[sequence]
                if self.slot_files is not None and sequence.had_slot:
                    slot = sequence.request.slot
                    tokens = None if sequence.request.space else sequence.tokens.copy()
                    self.slot_files.note(sequence.row if slot is None else slot, tokens)
                if self.on_finished is not None:
                    self.on_finished(sequence.request, event)

    async def states_saved(self) -> None:
        """Waits until the states of all answers that have ended are in snapshots."""
        while self._scheduler.closing and self.state in (EngineState.READY, EngineState.DRAINING):
            stepped = asyncio.get_running_loop().create_future()
            self._stepped.append(stepped)
            await stepped

    # -- the operator's ---------------------------------------------------------------------------------------------------------
    @property
    def pins(self) -> OperatorPins:
        return self._scheduler.joins.pins

    async def flush(self) -> Flushed:
        """Forgets everything that is known, pins and the disk included. Running requests go on; what they compute is kept anew."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_WAIT_S):
                await self.states_saved()
        stats, num_pins = self.stats(), self.pins.release_all()
        self._cache.transfers.release_all()
        self._cache.clear()
        if self.slot_files is not None:
            self.slot_files.forget_all()
        if self._disk is not None:
            await self._disk.clear()
        disk_bytes = 0 if stats.disk is None else stats.disk.store.used_bytes
        return Flushed(stats.cache.published_snapshots, stats.cache.cached_pages, num_pins, disk_bytes)

    # -- shutdown ---------------------------------------------------------------------------------------------------------------
    async def drain(self, deadline_s: float) -> None:
        """Takes nothing new, lets what runs and waits finish for at most `deadline_s` seconds, cancels the rest."""
        self.state = EngineState.DRAINING
        try:
            async with asyncio.timeout(deadline_s):
                await self._idle.wait()
        except TimeoutError:
            for stream in list(self._streams.values()):
                stream.cancel()
            await self._idle.wait()

    async def stop(self) -> None:
        """Ends the loop. Requests still open are cancelled; call `drain` first to let them finish."""
        self.state = EngineState.STOPPED
        for stream in list(self._streams.values()):
            stream.cancel()
        if self._task is not None:
            await self._idle.wait()
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        if self._idle_check is not None:
            self._idle_check.busy()

    # -- views ------------------------------------------------------------------------------------------------------------------
    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self._scheduler.slots),
            num_waiting=self._scheduler.num_waiting,
            num_slots=self._cache.plan.num_rows,
            counters=self._scheduler.counters,
            cache=self._cache.stats(),
            disk=self._disk.stats() if self._disk is not None else None,
            pins=self.pins.stats(),
        )

    def slots(self) -> list[SlotView]:
        return [
            SlotView(
                row=slot.lease.row,
                request_id=slot.sequence.request.id,
                state="decode" if slot.sequence.generated and slot.position + 1 == len(slot.sequence.tokens) else "prefill",
                prompt_tokens=slot.sequence.num_prompt,
                cached_tokens=slot.sequence.cached_tokens or 0,
                position=slot.position,
                generated=slot.sequence.generated,
                max_tokens=slot.sequence.request.max_tokens,
                cache=slot.sequence.cache,
                tokens=slot.sequence.tokens,
            )
            for slot in self._scheduler.slots
        ]


def failed_internally() -> Finished:
    """The end of a request whose counts are lost to a bug of ours."""
    return Finished(FinishReason.ERROR, Usage(0, 0, 0), Timing(0, 0, 0), NOT_ADMITTED, "internal error")
