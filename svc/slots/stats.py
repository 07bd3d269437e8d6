"""Counters of the scheduler and views of its slots: where things happen they are counted, `metrics.py` publishes them."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from svc.memory.stats import CacheStats
from svc.slots.disk_tier import DiskTierStats
from svc.slots.events import CacheReport, FinishReason
from svc.slots.operator_pins import PinStats


@dataclass(slots=True)
class SchedulerCounters:
    """Since start. Owner: the scheduler."""

    steps: int = 0
    step_s: float = 0.0  # seconds the device worked
    prefill_tokens: int = 0  # evaluated
    decode_tokens: int = 0  # evaluated
    generated_tokens: int = 0
    forced_tokens: int = 0  # of those generated: they had to come, so no step sampled them
    drafts: int = 0  # evaluated, of `decode_tokens`
    accepted_drafts: int = 0
    prompt_tokens: int = 0  # of ended requests
    cached_tokens: int = 0  # of ended requests
    preemptions: int = 0
    restores: int = 0
    most_step_tokens: int = 0
    finished: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(FinishReason, 0))

    def stepped(self, prefill_tokens: int, decode_tokens: int, restores: int, duration_s: float) -> None:
        self.steps += 1
        self.prefill_tokens += prefill_tokens
        self.decode_tokens += decode_tokens
        self.step_s += duration_s
        self.restores += restores
        self.most_step_tokens = max(self.most_step_tokens, prefill_tokens + decode_tokens)

    def ended(self, reason: FinishReason, prompt_tokens: int, cached_tokens: int) -> None:
        self.finished[reason] += 1
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens


@dataclass(frozen=True, slots=True, eq=False)
class SlotView:
    """One taken slot. `tokens` is a view that is good until the engine's next step: use it at once."""

    row: int
    request_id: str
    state: str  # "prefill" or "decode"
    prompt_tokens: int
    cached_tokens: int
    position: int
    generated: int
    max_tokens: int
    cache: CacheReport
    tokens: NDArray[np.int32]  # [prompt_tokens + generated]


@dataclass(frozen=True, slots=True)
class EngineStats:
    num_running: int
    num_waiting: int
    num_slots: int
    counters: SchedulerCounters
    cache: CacheStats
    disk: DiskTierStats | None = None  # without a cache on disk
    pins: PinStats | None = None


@dataclass(frozen=True, slots=True)
class Flushed:
    """What has been forgotten."""

    num_snapshots: int
    num_pages: int  # that no request used
    num_pins: int
    disk_bytes: int
