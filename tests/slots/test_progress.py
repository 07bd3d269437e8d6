"""`Engine.last_progress_s`, on which readiness and the watchdog rest."""

from svc.memory.plan import MemoryPlan
from svc.memory.sequence_cache import SequenceCache
from svc.slots.budget import ChunkBudget
from svc.slots.engine import Engine
from svc.slots.request import Request
from svc.slots.scheduler import Scheduler
from tests.fakes.event_reader import EventReader
from tests.fakes.fake_backend import FakeBackend
from tests.slots.harness import GREEDY, layout
from tests.slots.test_engine import LoopWorker


async def test_idle_time_is_no_stall() -> None:
    """Progress is counted from the first request after an idle time, and no more until a step has completed."""
    now = 0.0
    plan = MemoryPlan(layout(), num_pages=128, num_rows=4, num_snapshots=32)
    cache = SequenceCache(plan)
    worker = LoopWorker(FakeBackend(plan, max_step_tokens=32))
    scheduler = Scheduler(cache, context_tokens=1000, budget=ChunkBudget(32, 10.0))
    engine = Engine(scheduler, worker, cache, clock=lambda: now)
    await engine.start()

    def submit(name: str) -> EventReader:
        return EventReader(engine, Request(id=name, prompt=tuple(range(20)), max_tokens=2, params=GREEDY))

    worker.gate.clear()
    now = 1000.0
    first = submit("first")
    assert engine.last_progress_s == 1000.0
    await worker.asked.wait()
    now = 1010.0
    submit("second")  # an arrival is no progress: the device has not answered
    assert engine.last_progress_s == 1000.0
    worker.gate.set()
    await first.wait()
    assert engine.last_progress_s == 1010.0
    await engine.stop()
