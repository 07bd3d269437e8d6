"""A scheduler and a device, stepped by hand: the work of a server for the same requests, without event loop, threads and HTTP."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from svc.cli.bench.cases import Case

if TYPE_CHECKING:
    from svc.compute.runner import ModelRunner

SPARE_SNAPSHOTS = 8  # beyond one per slot: for the pasts of the depth sweep, and for captures inside prompts

Clock = Callable[[], float]


@dataclass(frozen=True)
class Round:
    """One measurement: tokens of all sequences together, and their steps. `kernel_s`: the part of `seconds` inside kernels."""

    tokens: int
    steps: int
    seconds: float
    kernel_s: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


@dataclass(frozen=True)
class _Mark:
    seconds: float
    kernel_s: float
    steps: int


@dataclass(frozen=True)
class _Run:
    began: _Mark
    all_generate: _Mark  # when the last of the sequences had its first token
    ended: _Mark
    cached_tokens: int  # of the prompt that ended last


def slots(cases: list[Case], page_tokens: int) -> tuple[int, int, int]:
    """(slots, KV pages, snapshots) that the cases need."""
    num_rows = max(case.batch for case in cases)
    # Twice: pages of an earlier round are evicted only when they are needed.
    num_pages = max(2 * case.batch * (-(-case.row_tokens // page_tokens) + 1) for case in cases)
    return num_rows, num_pages, num_rows + SPARE_SNAPSHOTS


class Loop:
    """Owner of scheduler and device."""

    def __init__(
        self,
        runner: "ModelRunner",
        vocab_size: int,
        context_tokens: int,
        max_step_s: float,
        clock: Clock = time.perf_counter,
    ) -> None:
        from svc.memory.sequence_cache import SequenceCache
        from svc.slots.budget import ChunkBudget
        from svc.slots.scheduler import Scheduler

        self.runner = runner
        self.kernel_clock: Clock = lambda: 0.0  # seconds inside kernels so far
        self._clock = clock
        self._vocab_size = vocab_size
        self._random = random.Random(0)
        budget = ChunkBudget(runner.max_step_tokens, max_step_s)
        self._scheduler = Scheduler(SequenceCache(runner.plan), context_tokens=context_tokens, budget=budget)
        self._pasts: dict[int, tuple[int, ...]] = {}
        self._steps = 0

    def close(self) -> None:
        self.runner.close()

    def measure(self, case: Case) -> Round:
        """One round. All sequences share the past, which is in the cache; the rest of each is new text."""
        past = self._pasts.setdefault(case.depth, self._text(case.depth))
        if past:
            self._run([past], 0)  # evaluates only what the cache has lost
        if case.prompt:
            run = self._run([past + self._text(case.prompt)], 0)
            assert run.cached_tokens == case.depth, f"{run.cached_tokens} tokens of a past of {case.depth} were known"
            return _between(run.began, run.ended, case.prompt)
        run = self._run([past + self._text(1) for _ in range(case.batch)], case.generate + 1)
        return _between(run.all_generate, run.ended, case.generate * case.batch)

    def _text(self, length: int) -> tuple[int, ...]:
        return tuple(self._random.choices(range(self._vocab_size), k=length))

    def _run(self, prompts: list[tuple[int, ...]], max_tokens: int) -> _Run:
        """Steps until all sequences have ended and their states are saved. There must be a slot for each prompt."""
        from svc.slots.events import Finished, FinishReason, TokenEvent
        from svc.slots.request import Request, SamplingParams

        began = all_generate = ended = mark = self._mark()
        cached = 0
        for number, prompt in enumerate(prompts):
            self._scheduler.submit(Request(str(number), prompt, max_tokens, SamplingParams(temperature=0.0)), began.seconds)
        silent = len(prompts)
        while (plan := self._scheduler.plan(mark.seconds)) is not None:
            result = self.runner.run(plan.batch)
            self._steps += 1
            mark = self._mark()
            for sequence, event in self._scheduler.commit(plan, result, mark.seconds):
                if isinstance(event, TokenEvent) and sequence.generated == 1:
                    silent -= 1
                    all_generate = all_generate if silent else mark
                elif isinstance(event, Finished):
                    assert event.reason is FinishReason.LENGTH, event
                    ended, cached = mark, event.usage.cached_tokens
        return _Run(began, all_generate, ended, cached)

    def _mark(self) -> _Mark:
        return _Mark(self._clock(), self.kernel_clock(), self._steps)


def _between(start: _Mark, end: _Mark, tokens: int) -> Round:
    return Round(tokens, end.steps - start.steps, end.seconds - start.seconds, end.kernel_s - start.kernel_s)
