"""A scheduler stepped by hand: over the fake device (`Harness`) or any other backend (`Driver`)."""

from collections import deque
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import Any

from svc.compute.backend import Backend, StepRefusedError, StepResult, Submitted
from svc.compute.sampling.params import SamplingParams
from svc.memory.layout import MemoryLayout
from svc.memory.plan import MemoryPlan
from svc.memory.sequence_cache import SequenceCache
from svc.slots.batch import StepPlan
from svc.slots.budget import ChunkBudget
from svc.slots.events import Event, Finished, TokenEvent
from svc.slots.request import Request, Sequence
from svc.slots.scheduler import Scheduler
from svc.slots.speculator import Speculator
from tests.fakes.fake_backend import FakeBackend

GREEDY = SamplingParams(temperature=0)


def layout(*, hybrid: bool = True, page_tokens: int = 16) -> MemoryLayout:
    return MemoryLayout(
        hidden_size=8,
        num_attention_layers=1,
        num_kv_heads=1,
        head_dim=8,
        num_delta_layers=1 if hybrid else 0,
        num_value_heads=1,
        key_dim=8,
        value_dim=8,
        conv_channels=24,
        conv_rows=3,
        page_tokens=page_tokens,
    )


@dataclass
class Answer:
    """Events of one request, as they came."""

    sequence: Sequence
    events: list[Event] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [event.token for event in self.events if isinstance(event, TokenEvent)]

    @property
    def end(self) -> Finished:
        assert isinstance(self.events[-1], Finished), self.events
        return self.events[-1]

    @property
    def ended(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], Finished)

    @property
    def cached(self) -> int:
        return self.end.usage.cached_tokens


class Driver:
    """A scheduler over any backend, stepped by hand on a fake clock; every step ends with `SequenceCache.check()`.

    `ahead`: a step is submitted as soon as it can be planned, so that between two `step` calls one may be under way, as with the
    engine. Otherwise each is planned once the one before has been committed.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        context: int = 2048,
        max_queue: int = 2000,
        capture_every: int = 0,
        ahead: bool = True,
        speculator: Speculator | None = None,
    ) -> None:
        self.plan = backend.plan
        self.cache = SequenceCache(self.plan)
        self.scheduler = Scheduler(
            self.cache,
            context_tokens=context,
            budget=ChunkBudget(backend.max_step_tokens, max_step_s=10.0),
            max_queue=max_queue,
            capture_every_tokens=capture_every,
            plan_ahead=ahead,
            speculator=speculator,
        )
        self.num_ahead = 0  # steps that were submitted while another was under way
        self._under_way: deque[tuple[StepPlan, Submitted | RuntimeError]] = deque()
        self.now = 0.0
        self.answers: dict[Sequence, Answer] = {}
        self._backend = backend
        self._count = 0

    def submit(self, prompt: Tokens[int], max_tokens: int = 4, params: SamplingParams = GREEDY, **fields: Any) -> Answer:
        self._count += 1
        request = Request(id=f"r{self._count}", prompt=tuple(prompt), max_tokens=max_tokens, params=params, **fields)
        sequence = self.scheduler.submit(request, self.now)
        answer = self.answers[sequence] = Answer(sequence)
        return answer

    def cancel(self, answer: Answer) -> None:
        finished = self.scheduler.cancel(answer.sequence, self.now)
        if finished is not None:
            answer.events.append(finished)

    def step(self) -> bool:
        """One step; False when there was nothing to do."""
        self.now += 1.0
        while (plan := self.scheduler.plan(self.now)) is not None:
            self.num_ahead += bool(self._under_way)
            self._under_way.append((plan, self._submitted(plan)))
        if not self._under_way:
            return False
        plan, outcome = self._under_way.popleft()
        result = _result(outcome)
        if isinstance(result, RuntimeError):
            assert not isinstance(result, StepRefusedError)
            assert all(isinstance(_result(later), RuntimeError) for _, later in self._under_way)
            self._under_way.clear()
            emitted = self.scheduler.abort(plan, str(result), self.now)
        else:
            emitted = self.scheduler.commit(plan, result, self.now)
        for sequence, event in emitted:
            assert not self.answers[sequence].ended, "an event after the end"
            self.answers[sequence].events.append(event)
        self.cache.check()
        return True

    def _submitted(self, plan: StepPlan) -> Submitted | RuntimeError:
        try:
            return self._backend.submit(plan.batch)
        except RuntimeError as error:
            return error

    def run(self, limit: int = 10_000) -> int:
        """Steps until idle; the number of steps."""
        for count in range(limit):
            if not self.step():
                assert self.scheduler.idle, "stalled"
                return count
        raise AssertionError("no end in sight")

    def ask(self, prompt: Tokens[int], max_tokens: int = 4, **fields: Any) -> Answer:
        """One request, run to its end, everything else too."""
        answer = self.submit(prompt, max_tokens, **fields)
        self.run()
        return answer

    def assert_nothing_leaked(self) -> None:
        """Idle: no slot is held, and dropping the prefix cache gives every page and snapshot back."""
        assert self.scheduler.idle
        self.cache.clear()
        self.cache.check()
        stats = self.cache.stats()
        counters = stats.counters
        assert sum(counters.published.values()) == counters.num_published
        assert sum(counters.evicted.values()) == counters.num_evicted_snapshots
        assert stats.free_rows == self.plan.num_rows
        assert stats.free_pages == self.plan.num_pages
        assert stats.free_snapshots == self.plan.num_snapshots
        assert (stats.free_host_pages, stats.free_host_snapshots) == (self.plan.num_host_pages, self.plan.num_host_snapshots)


def _result(outcome: Submitted | RuntimeError) -> StepResult | RuntimeError:
    try:
        return outcome if isinstance(outcome, RuntimeError) else outcome.result()
    except RuntimeError as error:
        return error


class Harness(Driver):
    """A driver with the fake device, whose batches can be looked at and whose steps can be made to fail."""

    def __init__(
        self,
        *,
        hybrid: bool = True,
        num_pages: int = 256,
        num_rows: int = 4,
        num_snapshots: int = 64,
        chunk: int = 64,
        page_tokens: int = 16,
        host_pages: int = 0,
        host_snapshots: int = 0,
        moves_lag: int = 0,
        journal: int = 0,
        **settings: Any,
    ) -> None:
        plan = MemoryPlan(
            layout(hybrid=hybrid, page_tokens=page_tokens), num_pages, num_rows, num_snapshots, host_pages, host_snapshots, journal
        )
        self.backend = FakeBackend(plan, max_step_tokens=chunk, moves_lag=moves_lag)
        super().__init__(self.backend, **settings)
