"""Leaving is a normal ending: wherever a client is cut off, its sequences are cancelled and nothing of it stays behind."""

import asyncio
import json
import threading
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from svc.http.text.chat_template import PromptTokens
from svc.http.text_threads import INLINE_BYTES
from svc.slots.events import FinishReason
from tests.fakes.fake_engine import FakeEngine, FakeSequence
from tests.http.harness import Harness, service_of, serving

PATIENCE_S = 10
NUM_TOKENS = 4
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 100}
PROMPT = {"prompt": "hi", "max_tokens": 100}
PATHS = {"/v1/chat/completions": CHAT, "/v1/completions": PROMPT, "/completion": PROMPT}


@asynccontextmanager
async def socket_to(at: Harness) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client without manners: it closes its socket when the block ends."""
    host, port = at.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def request_bytes(path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def tasks_of_requests() -> list[asyncio.Task[Any]]:
    """All tasks but the test's own."""
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def submitted(at: Harness, number: int) -> list[FakeSequence]:
    return [await at.engine.submitted.get() for _ in range(number)]


async def assert_all_gone(at: Harness, number: int) -> None:
    """All `number` sequences were cancelled, the request was logged as left by its client, and no task of it lives on."""
    cancelled = {id(await at.engine.cancelled.get()) for _ in range(number)}
    assert cancelled == {id(sequence) for sequence in at.engine.sequences}
    while tasks_of_requests() or not at.log_lines():  # noqa: ASYNC110
        await asyncio.sleep(0)  # a turn of the loop: the tasks are not ours to wait for
    (line,) = at.log_lines()
    assert line["status"] == 499
    assert line["finish"] == "cancelled"


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("num_events", range(NUM_TOKENS + 1))
@pytest.mark.parametrize("path", PATHS)
async def test_stream_cut_after_every_event(path: str, num_events: int, n: int) -> None:
    """A client that leaves after k events, k = 0 (queued, prefilling) included, is noticed without another token being made."""
    async with asyncio.timeout(PATIENCE_S), serving(FakeEngine()) as at:
        async with socket_to(at) as (reader, writer):
            writer.write(request_bytes(path, {**PATHS[path], "stream": True, "n": n}))
            sequences = await submitted(at, n)
            await reader.readuntil(b": keep-alive\n\n")
            for token in range(num_events):
                sequences[0].say(ord("a") + token)
                await reader.readuntil(chr(ord("a") + token).encode() + b'"')
        await assert_all_gone(at, n)
        assert len(sequences[0].generated) == num_events


@pytest.mark.parametrize("num_tokens", range(NUM_TOKENS + 1))
@pytest.mark.parametrize("path", PATHS)
async def test_whole_answer_cut_after_every_token(path: str, num_tokens: int) -> None:
    """Without streaming nothing is ever written before the end, and the client is missed all the same."""
    async with asyncio.timeout(PATIENCE_S), serving(FakeEngine()) as at:
        async with socket_to(at) as (_, writer):
            writer.write(request_bytes(path, {**PATHS[path], "n": 2}))
            sequences = await submitted(at, 2)
            for _ in range(num_tokens):
                sequences[0].say(ord("x"))
                await asyncio.sleep(0)
        await assert_all_gone(at, 2)


async def test_cut_between_the_last_token_and_the_end() -> None:
    """One choice has ended, the other has not: only the latter is cancelled."""
    async with asyncio.timeout(PATIENCE_S), serving(FakeEngine()) as at:
        async with socket_to(at) as (reader, writer):
            writer.write(request_bytes("/v1/completions", {"prompt": "hi", "n": 2, "stream": True}))
            first, second = await submitted(at, 2)
            first.end(FinishReason.STOP)
            await reader.readuntil(b'"stop"')
        assert await at.engine.cancelled.get() is second
        assert not first.cancelled


async def test_cut_inside_the_body() -> None:
    """A body that never comes to its end submits nothing."""
    async with asyncio.timeout(PATIENCE_S), serving(FakeEngine()) as at:
        async with socket_to(at) as (_, writer):
            writer.write(request_bytes("/v1/completions", {"prompt": "hi"})[:-3])
            await writer.drain()
        while not at.log_lines():  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert at.log_lines()[0]["status"] == 499
        assert at.engine.sequences == []


async def test_cut_while_the_prompt_is_encoded() -> None:
    """A long prompt is encoded off the loop; a client that leaves meanwhile never reaches the engine."""
    entered, left = threading.Event(), threading.Event()

    def template(messages: Any, **_: Any) -> PromptTokens:
        entered.set()
        assert left.wait(PATIENCE_S)
        return PromptTokens(array("i", [1]), ())

    async with asyncio.timeout(PATIENCE_S), serving(FakeEngine(), loaded=False) as at:
        service = service_of(at.engine, at.metrics)
        object.__setattr__(service, "template", SimpleNamespace(encode_chat=template))
        at.door.open(service)
        async with socket_to(at) as (_, writer):
            writer.write(request_bytes("/v1/chat/completions", CHAT | {"padding": "x" * INLINE_BYTES}))
            while not entered.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0)
        while not at.log_lines():  # noqa: ASYNC110
            await asyncio.sleep(0)
        left.set()
        assert at.log_lines()[0]["status"] == 499
        assert (await at.get("/v1/models"))[0] == 200
        assert at.engine.sequences == []


async def test_reader_that_stops_reading_does_not_stop_others() -> None:
    """A client that takes nothing more while its answer grows beyond every buffer: another one is served meanwhile, and its own
    sequence ends when it closes."""
    async with asyncio.timeout(PATIENCE_S), serving(FakeEngine(context_tokens=10**6), keep_alive_s=0.01) as at:
        async with socket_to(at) as (_, writer):
            writer.write(request_bytes("/v1/completions", {"prompt": "hi", "stream": True, "max_tokens": 10**6}))
            (stuck,) = await submitted(at, 1)
            for _ in range(50):
                for _ in range(400):
                    stuck.say(ord("x"))
                await asyncio.sleep(0)
            other = asyncio.create_task(at.post("/v1/completions", {"prompt": "a"}))
            (sequence,) = await submitted(at, 1)
            sequence.end(FinishReason.STOP)
            assert (await other)[0] == 200
            assert not stuck.ended
        assert await at.engine.cancelled.get() is stuck
