"""The real scheduler and cache, with a device that only counts, on a virtual clock."""

from dataclasses import dataclass

from svc.compute.backend import Sampled, StepResult
from svc.compute.sampling.params import SamplingParams
from svc.memory.layout import MemoryLayout
from svc.memory.plan import MemoryPlan
from svc.memory.scoring import Scorer
from svc.memory.sequence_cache import SequenceCache
from svc.memory.stats import CacheStats
from svc.slots.batch import StepPlan
from svc.slots.budget import ChunkBudget
from svc.slots.request import Request, Sequence
from svc.slots.scheduler import Scheduler
from tests.bench.replay.traces import Ask, Trace

PAGE_TOKENS, ROWS, STEP_TOKENS = 16, 8, 512
STEP_S, TOKEN_S = 0.01, 0.0002  # of a step, and of each token in it: 5,000 prompt tokens a second

LAYOUT = MemoryLayout(
    hidden_size=8,
    num_attention_layers=1,
    num_kv_heads=1,
    head_dim=8,
    num_delta_layers=1,
    num_value_heads=1,
    key_dim=8,
    value_dim=8,
    conv_channels=24,
    conv_rows=3,
    page_tokens=PAGE_TOKENS,
)


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of a trace."""

    evaluated: int  # prompt tokens, those evaluated again after a preemption counted
    pages: int  # kept at the end
    snapshots: int
    preemptions: int
    cache: CacheStats


class Replay:
    """One run of a trace on a cache with so many pages and snapshots."""

    def __init__(self, trace: Trace, num_pages: int, num_snapshots: int, scorer: Scorer | None = None) -> None:
        self._trace = trace
        self.cache = SequenceCache(MemoryPlan(LAYOUT, num_pages, ROWS, num_snapshots), scorer)
        budget = ChunkBudget(STEP_TOKENS, 10.0)
        self.scheduler = Scheduler(self.cache, context_tokens=100_000, budget=budget, max_queue=10_000, plan_ahead=False)
        self._asks: dict[Sequence, Ask] = {}
        self._now = 0.0

    def run(self) -> Replayed:
        """The whole trace, to the end of its last answer."""
        due = 0
        while True:
            while due < len(self._trace) and self._trace[due].at_s <= self._now:
                self._submit(self._trace[due], due)
                due += 1
            if self._step():
                continue
            if due == len(self._trace):
                break
            self._now = max(self._now, self._trace[due].at_s)
        assert self.scheduler.idle
        counters = self.scheduler.counters
        stats = self.cache.stats()
        pages, snapshots = stats.num_pages - stats.free_pages, stats.num_snapshots - stats.free_snapshots
        return Replayed(counters.prefill_tokens, pages, snapshots, counters.preemptions, stats)

    def _submit(self, ask: Ask, number: int) -> None:
        params = SamplingParams(temperature=0)
        request = Request(f"r{number}", ask.prompt, len(ask.answer), params, boundaries=ask.boundaries, text_ends=False)
        self._asks[self.scheduler.submit(request, self._now)] = ask

    def _step(self) -> bool:
        """One step; False when there is nothing to do."""
        plan = self.scheduler.plan(self._now)
        if plan is None:
            return False
        self._now += STEP_S + TOKEN_S * (plan.num_prefill + plan.num_decodes)
        moves_over = plan.batch.moves_before + len(plan.batch.moves)
        result = StepResult(self._samples(plan), (), STEP_S + TOKEN_S * plan.num_prefill, (), moves_over)
        self.scheduler.commit(plan, result, self._now)
        for slot in self.scheduler.slots:
            ask = self._asks[slot.sequence]
            if ask.leaves_at is not None and slot.position >= ask.leaves_at:
                self.scheduler.cancel(slot.sequence, self._now)
        return True

    def _samples(self, plan: StepPlan) -> tuple[Sampled, ...]:
        """The answers that the trace says."""
        given = [self._asks[slot.sequence].answer[slot.sequence.generated] for slot in plan.sampling]
        return tuple(Sampled(int(token)) for token in given)


def most_tokens(trace: Trace) -> int:
    """Positions of the longest sequence."""
    return max(len(ask.prompt) + len(ask.answer) for ask in trace)


def ample(trace: Trace) -> tuple[int, int]:
    """Pages and snapshots that no policy can fill."""
    tokens = sum(len(ask.prompt) + len(ask.answer) for ask in trace)
    return tokens // PAGE_TOKENS + 200, 40 * len(trace) + 100
