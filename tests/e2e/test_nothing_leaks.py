"""A thousand requests, one in five cut off at a random moment, through the whole stack in one process: nothing of them stays."""

import asyncio
import os
import random
import signal
from typing import Any

import aiohttp
import pytest
import structlog
from structlog.testing import LogCapture

from svc import app
from svc.config import Config
from svc.slots.engine import Engine
from svc.slots.events import FinishReason
from tests.e2e.server_process import GGUF

NUM_REQUESTS, AT_ONCE, CUT = 1000, 32, 0.2
# Far too little memory for all that comes: pages and snapshots are evicted, sequences preempted, all the time.
CONFIG = Config(
    model=str(GGUF / "tiny-qwen35moe-Q4_K_M.gguf"),
    port=0,
    ctx=512,
    kv_bytes=512 * 2**10,
    snapshot_bytes=3 * 2**20,
    threads=2,
    max_queue=10_000,
    capture_every_tokens=4,
)
WORDS = ["river", "stone", "the", "a", "of"]


def random_request(dice: random.Random) -> tuple[str, dict[str, Any]]:
    """A path and a body; beginnings are shared by many, tails by few."""
    text = " ".join(dice.choice(WORDS) for _ in range(dice.choice([1, 4, 30])))
    body: dict[str, Any] = {"max_tokens": dice.choice([0, 1, 3, 8]), "stream": dice.random() < 0.5, "seed": dice.randrange(5)}
    body |= {"n": dice.choice([1, 1, 1, 2]), "cache_prompt": dice.random() < 0.9, "ignore_eos": dice.random() < 0.5}
    if dice.random() < 0.5:
        return "/v1/completions", {**body, "prompt": text}
    system = {"role": "system", "content": "Be brief. " * dice.choice([1, 12])}
    return "/v1/chat/completions", {**body, "messages": [system, {"role": "user", "content": text}]}


async def ask(session: aiohttp.ClientSession, path: str, body: dict[str, Any], events: int | None) -> None:
    """Sends a request and reads the answer to its end, or leaves after so many `data:` lines."""
    async with session.post(path, json=body) as response:
        assert response.status == 200, await response.text()
        if events is None or not body["stream"]:
            raw = await response.read()
            assert raw.endswith(b"data: [DONE]\n\n" if body["stream"] else b"}")
            return
        async for line in response.content:
            events -= line.startswith(b"data:")
            if events < 0:
                return


async def one_of_many(session: aiohttp.ClientSession, dice: random.Random, gate: asyncio.Semaphore) -> None:
    """A request that is read to its end, cut after some events, or given up after some turns of the loop."""
    path, body = random_request(dice)
    cut = dice.random() < CUT
    turns, events = dice.randrange(2000), dice.randrange(8)
    async with gate:
        if not cut or body["stream"]:
            await ask(session, path, body, events if cut else None)
            return
        task = asyncio.create_task(ask(session, path, body, None))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until_idle(engine: Engine) -> None:
    """Nobody runs, waits or has a state to be saved."""
    while not engine._scheduler.idle:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def test_a_thousand_requests_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards: no slot, page, snapshot or pin is held, no task is left, and no error was logged."""
    engines: list[Engine] = []
    build = app._engine

    def noted(*args: Any) -> Any:
        built = build(*args)
        engines.append(built[0])
        return built

    monkeypatch.setattr(app, "_engine", noted)
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    logs, own_task = LogCapture(), asyncio.current_task()
    logger: Any = structlog.wrap_logger(None, processors=[logs], wrapper_class=structlog.stdlib.BoundLogger)
    serving = asyncio.create_task(app.serve(CONFIG, logger))
    try:
        while not (urls := [line["url"] for line in logs.entries if line["event"] == "serving"]):
            assert not serving.done(), serving.exception()
            await asyncio.sleep(0.001)
        idle_tasks = {task.get_name() for task in asyncio.all_tasks()}
        dice, gate = random.Random(16), asyncio.Semaphore(AT_ONCE)
        async with aiohttp.ClientSession(urls[0], connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(*(one_of_many(session, random.Random(dice.random()), gate) for _ in range(NUM_REQUESTS)))
        (engine,) = engines
        await until_idle(engine)
        finished = engine.stats().counters.finished
        assert finished[FinishReason.CANCELLED] > 50
        assert finished[FinishReason.ERROR] == 0
        engine._cache.check()
        stats = engine.stats().cache
        assert (stats.pinned_pages, stats.pinned_snapshots, stats.reserved_snapshots) == (0, 0, 0)
        assert stats.free_rows == stats.num_rows
        assert stats.counters.num_evicted_snapshots > 100
        engine._cache.clear()
        assert engine.stats().cache.free_pages == stats.num_pages
        assert engine.stats().cache.free_snapshots == stats.num_snapshots
        assert not engine._streams
        assert {task.get_name() for task in asyncio.all_tasks() if not task.get_name().startswith("Task-")} <= idle_tasks
        os.kill(os.getpid(), signal.SIGTERM)
        assert await serving == 0
        assert asyncio.all_tasks() == {own_task}
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert [line for line in logs.entries if line["log_level"] not in ("info", "debug")] == []
    assert sum(line["event"] == "request" for line in logs.entries) >= NUM_REQUESTS - finished[FinishReason.CANCELLED]
