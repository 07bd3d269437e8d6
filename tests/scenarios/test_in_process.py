"""Scenarios that need a look inside: the whole server in this process, clients over loopback."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

import svc.app
import svc.model_loading
from svc.compute.backend import StepBatch
from svc.compute.runner import ModelRunner, SubmittedStep
from svc.config import Config
from svc.memory.sequence_cache import SequenceCache
from tests.scenarios.server import MODEL
from tests.scenarios.test_scenarios import ids


class Log:
    """The logger's calls, of which only the address is needed."""

    def __init__(self) -> None:
        self.url: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def info(self, event: str, **fields: Any) -> None:
        if event == "serving":
            self.url.set_result(fields["url"])

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **fields: None


class Runner(ModelRunner):
    """Spoils its live rows when told to, between two steps: a step under way would write over it."""

    poison_rows = False

    def submit(self, batch: StepBatch) -> SubmittedStep:
        if self.poison_rows:
            self._caches.rows[:] = float("nan")
            self.poison_rows = False
        return super().submit(batch)


class Inside:
    """A running server: its runner (with the device memory), its cache, and a client session."""

    def __init__(self, session: aiohttp.ClientSession, runner: Runner, cache: SequenceCache) -> None:
        self.session = session
        self.runner = runner
        self.cache = cache

    async def complete(self, prompt: list[int], max_tokens: int = 6, **fields: Any) -> tuple[list[int], list[float]]:
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "logprobs": 0}
        async with self.session.post("/v1/completions", json={**body, "return_token_ids": True, **fields}) as response:
            answer = await response.json()
        assert response.status == 200, answer
        choice = answer["choices"][0]
        return choice["token_ids"], choice["logprobs"]["token_logprobs"]

    async def settled(self) -> None:
        """Until ended answers have been saved: an answer is told before its last state is."""
        while self.cache.stats().pinned_pages:
            async with self.session.get("/health") as response:
                await response.read()


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`async with serving(**settings) as inside`: ended by a real SIGTERM, as a supervisor would."""

    @asynccontextmanager
    async def start(**settings: Any) -> AsyncIterator[Inside]:
        made: dict[str, Any] = {}

        class MadeRunner(Runner):
            def __init__(self, *arguments: Any, **fields: Any) -> None:
                super().__init__(*arguments, **fields)
                made["runner"] = self

        class Cache(SequenceCache):
            def __init__(self, *arguments: Any, **fields: Any) -> None:
                super().__init__(*arguments, **fields)
                made["cache"] = self

        monkeypatch.setattr(svc.model_loading, "ModelRunner", MadeRunner)
        monkeypatch.setattr(svc.app, "SequenceCache", Cache)
        config = Config(model=str(MODEL), port=0, threads=2, kv_bytes=8 << 20, snapshot_bytes=32 << 20, **settings)
        log = Log()
        server = asyncio.create_task(svc.app.serve(config, log))  # type: ignore[arg-type]
        await asyncio.wait([server, log.url], return_when=asyncio.FIRST_COMPLETED)
        async with aiohttp.ClientSession(log.url.result()) as session:
            yield Inside(session, made["runner"], made["cache"])
        os.kill(os.getpid(), signal.SIGTERM)
        assert await server == 0

    return start


async def test_17_a_poisoned_state(serving: Any) -> None:
    """Every number in device memory that no sequence holds set to NaN, then five fresh prompts: equal to a fresh server's."""
    prompts = [ids(60, seed) for seed in range(5)]
    async with serving() as inside:
        control = [await inside.complete(prompt) for prompt in prompts]
    async with serving() as inside:
        for seed in range(10, 16):
            await inside.complete(ids(80, seed))
        await inside.settled()
        inside.cache.clear()
        caches = inside.runner._caches
        for slab in (caches.kv, caches.rows, caches.snapshots):
            slab[:] = float("nan")
        assert [await inside.complete(prompt) for prompt in prompts] == control


async def test_17_a_state_poisoned_while_it_is_used(serving: Any) -> None:
    """A NaN in a live row: that request gets a 500, the server lives, and the next ones are clean."""
    async with serving() as inside:
        control = await inside.complete(ids(40))
        body = {"prompt": ids(50, 1), "max_tokens": 3000, "stream": True, "ignore_eos": True}
        async with inside.session.post("/v1/completions", json=body) as response:
            while not (await response.content.readline()).startswith(b"data:"):
                pass  # comments that keep the connection alive come before the prompt has been evaluated
            inside.runner.poison_rows = True
            rest = await response.text()
        assert '"error"' in rest
        assert await inside.complete(ids(40), cache_prompt=False) == control
        assert await inside.complete(ids(40)) == control
