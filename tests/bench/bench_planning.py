"""What planning costs: thread CPU of `plan` and `commit`, per step, on a device that does nothing.

    python -m tests.bench.bench_planning

Two cases: eight conversations that go on at 200,000 tokens, all admitted in one step; and edits of one text at 150,000 tokens, one
in each step, with 64 slots taken and 4,096 snapshots kept. Prints the most expensive and the median step of each. The garbage
collector is set as the server sets it: what is there once all is warm is excluded.
"""

import gc
import random
import time
from array import array
from statistics import median

import numpy as np

from svc.compute.backend import Sampled, StepResult
from svc.compute.sampling.params import SamplingParams
from svc.memory.layout import MemoryLayout
from svc.memory.plan import MemoryPlan
from svc.memory.sequence_cache import SequenceCache
from svc.slots.budget import ChunkBudget
from svc.slots.request import Boundary, BoundaryKind, Request
from svc.slots.scheduler import Scheduler

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
    page_tokens=16,
)


class NullDevice:
    """A scheduler whose steps end at once; notes the thread CPU of every plan and commit."""

    def __init__(self, num_pages: int, num_rows: int, num_snapshots: int) -> None:
        self.cache = SequenceCache(MemoryPlan(LAYOUT, num_pages, num_rows, num_snapshots))
        budget = ChunkBudget(65_536, 10.0)
        self.scheduler = Scheduler(self.cache, context_tokens=300_000, budget=budget, max_queue=10_000, plan_ahead=False)
        self.plan_ms: list[float] = []
        self.commit_ms: list[float] = []
        self._now = 0.0
        self._count = 0

    def submit(self, prompt: "array[int]", max_tokens: int, boundaries: tuple[Boundary, ...] = ()) -> None:
        self._count += 1
        self.scheduler.submit(
            Request(f"r{self._count}", prompt, max_tokens, SamplingParams(temperature=0), boundaries=boundaries), self._now
        )

    def run(self, num_steps: int = 10**9) -> None:
        """Steps until idle, at most `num_steps`."""
        for _ in range(num_steps):
            self._now += 1.0
            started = time.thread_time()
            plan = self.scheduler.plan(self._now)
            self.plan_ms.append(1000 * (time.thread_time() - started))
            if plan is None:
                self.plan_ms.pop()
                return
            moves_over = plan.batch.moves_before + len(plan.batch.moves)
            result = StepResult(tuple(Sampled(7) for _ in plan.batch.samples), (), 0.01, (), moves_over)
            started = time.thread_time()
            self.scheduler.commit(plan, result, self._now)
            self.commit_ms.append(1000 * (time.thread_time() - started))

    def forget_times(self) -> None:
        gc.collect()
        gc.freeze()
        self.plan_ms, self.commit_ms = [], []

    def report(self, name: str) -> None:
        total = [a + b for a, b in zip(self.plan_ms, self.commit_ms, strict=True)]
        print(
            f"{name}: {len(total)} steps, plan {median(self.plan_ms):.2f} ms median {max(self.plan_ms):.2f} max, "
            f"commit {median(self.commit_ms):.2f} median {max(self.commit_ms):.2f} max, "
            f"both {median(total):.2f} median {max(total):.2f} max"
        )


def tokens(count: int, seed: int) -> "array[int]":
    return array("i", np.random.default_rng(seed).integers(0, 150_000, count, np.int32).tobytes())


def eight_at_200k() -> None:
    device = NullDevice(num_pages=8 * 13_000 + 1000, num_rows=8, num_snapshots=512)
    texts = [tokens(200_000, seed) for seed in range(8)]
    for text in texts:
        device.submit(text, 0)
    device.run()
    device.forget_times()
    for seed, text in enumerate(texts):
        device.submit(text + tokens(100, 100 + seed), 20)
    device.run()
    device.report("8 slots resuming at 200k")


def edits_at_150k() -> None:
    device = NullDevice(num_pages=40_000, num_rows=64, num_snapshots=4096)
    text = tokens(200_000, 1)
    starts = tuple(Boundary(start, BoundaryKind.MESSAGE_START) for start in range(0, 200_000, 50) if start)
    device.submit(text, 0, starts)
    device.run()
    device.forget_times()
    rng = random.Random(1)
    for seed in range(128):  # the first 64 fill the slots; each of the others comes when one is free
        cut = 150_000 + rng.randrange(0, 50)
        device.submit(text[:cut] + tokens(300, 1000 + seed), 64)
        device.run(1)
        if seed == 64:
            device.forget_times()
    device.run()
    device.report("64 slots, edits at 150k one by one, 4,096 snapshots")


if __name__ == "__main__":
    eight_at_200k()
    edits_at_150k()
