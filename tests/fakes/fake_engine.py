"""An engine without a model: it says what a script tells it to say, and remembers who was submitted and who was cancelled."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from random import Random

import numpy as np

from svc.errors import context_exceeded
from svc.memory.placement import WantedKind
from svc.memory.plan import MemoryPlan
from svc.memory.sequence_cache import SequenceCache
from svc.memory.stats import CacheCounters, CacheStats
from svc.slots.disk_tier import DiskTierStats
from svc.slots.engine import EngineState
from svc.slots.events import CacheReport, Difference, Event, Finished, FinishReason, Progress, Timing, TokenEvent, Usage
from svc.slots.operator_pins import OperatorPins
from svc.slots.request import Request
from svc.slots.slot_files import SlotFiles
from svc.slots.stats import EngineStats, Flushed, SchedulerCounters, SlotView
from svc.slots.stream import TokenStream
from tests.slots.harness import layout

Script = Callable[[Request], Iterable[int | TokenEvent]]
CACHE = CacheReport(3, 2, "no_snapshot", "host", Difference(3, tuple(b"tic")))
"""Of every request."""


def saying(text: str) -> Script:
    """A script: the bytes of `text` (a byte is a token of the test vocabulary), then the end of the answer."""
    return lambda request: [*text.encode(), *sorted(request.stop_ids)[:1]]


def allowed_tokens(request: Request) -> list[int] | None:
    """What the request's constraint lets come next; None: anything."""
    words = request.constraint.mask() if request.constraint is not None else None
    return None if words is None else [i for i in range(32 * len(words)) if words[i // 32] >> np.uint32(i % 32) & np.uint32(1)]


def obedient(seed: int, start: str = "") -> Script:
    """A script: `start`, then random tokens of those that the constraint allows; the end as soon as that may come."""

    def script(request: Request) -> Iterator[int]:
        random = Random(seed)
        yield from start.encode()
        while True:
            allowed = allowed_tokens(request)
            assert allowed, "a constraint that allows nothing, or none"
            ends = request.stop_ids.intersection(allowed)
            yield min(ends) if ends else random.choice(allowed)

    return script


@dataclass(eq=False)
class FakeSequence:
    """One submitted request, driven by hand (`say`, `end`, `fail`) or by the engine's script."""

    request: Request
    stream: TokenStream
    cached_tokens: int
    on_end: Callable[["FakeSequence", Finished], None]
    cancelled: bool = False
    generated: list[int] = field(default_factory=list)

    def say(self, event: int | TokenEvent) -> None:
        """One sampled token, with the engine's own rules for where an answer ends."""
        token = event if isinstance(event, TokenEvent) else TokenEvent(event, -1.0, ())
        if token.token in self.request.stop_ids:
            return self.end(FinishReason.STOP)
        if self.request.progress and not self.generated:
            total = len(self.request.prompt)
            for processed in dict.fromkeys((self.cached_tokens, total)):
                self.stream.push(Progress(total, self.cached_tokens, processed, 0.5 * (processed != self.cached_tokens)))
        self.generated.append(token.token)
        if self.request.constraint is not None:
            self.request.constraint.accept(token.token)
        text, ends = self.request.on_token(token.token) if self.request.on_token else (None, False)
        self.stream.push(token._replace(text=text))
        if ends:
            self.end(FinishReason.STOP)
        elif len(self.generated) >= self.request.max_tokens:
            self.end(FinishReason.LENGTH)

    def end(self, reason: FinishReason, error: str | None = None) -> None:
        usage = Usage(len(self.request.prompt), self.cached_tokens, len(self.generated))
        finished = Finished(reason, usage, Timing(0.25, 0.5, 1.0), CACHE, error)
        self.stream.push(finished)
        self.on_end(self, finished)

    @property
    def ended(self) -> bool:
        return self.stream.finished is not None


class FakeEngine:
    """The part of Engine that http uses. With a script it answers by itself, one token per turn of the loop."""

    slot_files: SlotFiles | None = None

    def __init__(
        self, script: Script | None = None, *, context_tokens: int = 4096, cached: Callable[[Request], int] | None = None
    ) -> None:
        """Without a script every sequence is driven by hand: `await engine.submitted.get()`."""
        self.state = EngineState.READY
        self.last_progress_s = 0.0
        self.context_tokens = context_tokens
        self.room = 10_000
        self.pins = OperatorPins(SequenceCache(MemoryPlan(layout(), num_pages=16, num_rows=2, num_snapshots=8)))
        self.num_flushed = 0
        self.disk: DiskTierStats | None = None
        self.script = script
        self.refusal: Exception | None = None  # raised by the next submits
        self.on_finished: Callable[[Request, Finished], None] | None = None
        self.sequences: list[FakeSequence] = []
        self.submitted: asyncio.Queue[FakeSequence] = asyncio.Queue()
        self.cancelled: asyncio.Queue[FakeSequence] = asyncio.Queue()
        self._cached = cached or (lambda request: 0)
        self._playing: set[asyncio.Task[None]] = set()

    def validate(self, prompt_tokens: int, max_tokens: int | None) -> int:
        if prompt_tokens > self.context_tokens:
            raise context_exceeded(self.context_tokens, "the prompt", prompt_tokens, param="prompt")
        room = self.context_tokens - prompt_tokens + 1
        return room if max_tokens is None else min(max_tokens, room)

    def max_requests(self, queue_share: float) -> int:
        return int(self.room * queue_share)

    def check_capacity(self, newcomers: int, tenant: str, queue_share: float) -> None:
        """There is room; see `refusal`."""

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> TokenStream:
        if self.refusal is not None:
            raise self.refusal
        stream = TokenStream(request.id, on_event, lambda: self._cancel(sequence))
        sequence = FakeSequence(request, stream, self._cached(request), self._ended)
        self.sequences.append(sequence)
        self.submitted.put_nowait(sequence)
        if self.script is not None:
            task = asyncio.get_running_loop().create_task(self._play(sequence, iter(self.script(request))))
            self._playing.add(task)
            task.add_done_callback(self._playing.discard)
        return stream

    async def _play(self, sequence: FakeSequence, script: Iterator[int | TokenEvent]) -> None:
        while not sequence.ended:
            await asyncio.sleep(0)
            if sequence.ended:
                return
            event = next(script, None)
            if event is None or sequence.request.max_tokens == 0:
                sequence.end(FinishReason.LENGTH)
            else:
                sequence.say(event)

    async def flush(self) -> Flushed:
        self.num_flushed += 1
        return Flushed(num_snapshots=3, num_pages=4, num_pins=1, disk_bytes=500)

    def _cancel(self, sequence: FakeSequence) -> None:
        sequence.cancelled = True
        sequence.end(FinishReason.CANCELLED)
        self.cancelled.put_nowait(sequence)

    def _ended(self, sequence: FakeSequence, finished: Finished) -> None:
        if self.on_finished is not None:
            self.on_finished(sequence.request, finished)

    @property
    def num_open(self) -> int:
        return sum(not sequence.ended for sequence in self.sequences)

    def slots(self) -> list[SlotView]:
        """Open sequences are seated in the order of their coming, decoding."""
        return [
            SlotView(
                row=row,
                request_id=sequence.request.id,
                state="decode",
                prompt_tokens=len(sequence.request.prompt),
                cached_tokens=sequence.cached_tokens,
                position=len(sequence.request.prompt) + len(sequence.generated),
                generated=len(sequence.generated),
                max_tokens=sequence.request.max_tokens,
                cache=CACHE,
                tokens=np.array([*sequence.request.prompt, *sequence.generated], np.int32),
            )
            for row, sequence in enumerate(sequence for sequence in self.sequences if not sequence.ended)
        ]

    def stats(self) -> EngineStats:
        cache = CacheStats(
            num_pages=10, free_pages=4, cached_pages=4, pinned_pages=2, num_rows=2, free_rows=1, num_snapshots=8, free_snapshots=5,
            reserved_snapshots=0, published_snapshots=3, stranded_snapshots=1, pinned_snapshots=0, num_nodes=3,
            num_host_pages=20, free_host_pages=15, num_host_snapshots=6, free_host_snapshots=2, page_bytes=1000, state_bytes=100,
            counters=CacheCounters(
                num_published=7, num_evicted_snapshots=4, pages_moved_out=9, pages_moved_in=8, snapshots_moved_out=5,
                rows_moved_in=3, num_host_resumes=2, published={WantedKind.JOIN: 7}, resumed={WantedKind.JOIN: 6},
                evicted={WantedKind.SYSTEM_END: 4},
            ),
        )  # fmt: skip
        counters = SchedulerCounters(steps=11, generated_tokens=42, prompt_tokens=100, cached_tokens=60, restores=5)
        return EngineStats(num_running=self.num_open, num_waiting=3, num_slots=2, counters=counters, cache=cache, disk=self.disk)
