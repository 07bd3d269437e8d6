"""Request bodies: bounded in size, in time, and in how many of them are in memory at once."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from svc.http.body import AUTO_MAX_BYTES, BODIES_HELD, UNCOUNTED_BYTES, Bodies, body_limit
from svc.http.errors import ApiError
from tests.fakes.fake_engine import FakeEngine, saying
from tests.http.harness import Harness, serving

LIMIT = 2**20
PATIENCE_S = 10


@asynccontextmanager
async def sending(at: Harness, declared: int, sent: int, path: str = "/v1/completions") -> AsyncIterator[Any]:
    """A client that says how long its body is and sends its beginning: (reader, writer)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(at.url.rsplit(":", 1)[1]))
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {declared}\r\n\r\n"
    writer.write(head.encode() + (b'{"prompt":"a","padding":"' + b"x" * declared)[:sent])
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], dict[str, Any]]:
    """(status, headers, error)."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:] if line)
    body = json.loads(await reader.readexactly(int(headers["Content-Length"])))
    return int(lines[0].split()[1]), headers, body.get("error", {})


def held(at: Harness) -> int:
    return at.server.bodies.held_bytes


async def test_body_that_does_not_arrive() -> None:
    """408 in the usual shape after the time it may take, and the connection is closed; nothing is held for it any more."""
    async with asyncio.timeout(PATIENCE_S), serving(FakeEngine(saying("x")), body_timeout_s=0.02) as at:
        async with sending(at, 500_000, 300_000) as (reader, _):
            status, headers, error = await answer(reader)
        assert (status, headers["Connection"], error["code"]) == (408, "close", "body_timeout")
        assert held(at) == 0
        assert (await at.post("/v1/completions", {"prompt": "a"}))[0] == 200


@pytest.mark.parametrize("chunked", [False, True])
async def test_too_large_is_said_before_the_body_has_come(chunked: bool) -> None:
    """413 at the header where that tells the length, else at the first byte too many; the rest is not waited for."""
    async with asyncio.timeout(PATIENCE_S), serving(FakeEngine(saying("x")), max_body_bytes=LIMIT) as at:
        async with sending(at, LIMIT + 1, 0) if not chunked else _chunks(at, LIMIT + 1) as (reader, _):
            status, headers, error = await answer(reader)
        assert (status, headers["Connection"], error["code"]) == (413, "close", "body_too_large")
        assert str(LIMIT) in error["message"]
        assert held(at) == 0


@asynccontextmanager
async def _chunks(at: Harness, sent: int) -> AsyncIterator[Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(at.url.rsplit(":", 1)[1]))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    writer.write(f"{sent:x}\r\n".encode() + b" " * sent)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def test_bodies_together_have_a_bound() -> None:
    """One large body too many gets a 503 that says when to come back, and its connection is closed; ordinary requests pass
    meanwhile, and large ones again when those have ended."""
    async with asyncio.timeout(PATIENCE_S), serving(FakeEngine(saying("x")), max_body_bytes=LIMIT) as at:
        async with AsyncExitStack() as clients:
            for number in range(1, BODIES_HELD + 1):
                await clients.enter_async_context(sending(at, LIMIT, LIMIT - 1))
                while held(at) < number * (LIMIT - 1 - UNCOUNTED_BYTES):  # noqa: ASYNC110
                    await asyncio.sleep(0)
            async with sending(at, LIMIT, LIMIT - 1) as (reader, _):
                status, headers, error = await answer(reader)
            assert (status, headers["Connection"], error["code"]) == (503, "close", "too_many_bodies")
            assert int(headers["Retry-After"]) > 0
            assert (await at.post("/v1/completions", {"prompt": "a" * 1000}))[0] == 200
        while held(at):  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert (await at.post("/v1/completions", {"prompt": "a", "padding": "x" * (LIMIT - 100)}))[0] == 200


@pytest.mark.parametrize("status", [200, 400, 413, 404])
async def test_nothing_is_held_after_an_answer(status: int) -> None:
    """Whatever the answer was."""
    body = {"prompt": "a" if status == 200 else 5, "padding": "x" * (2 * LIMIT if status == 413 else 200_000)}
    async with serving(FakeEngine(saying("x")), max_body_bytes=LIMIT, strict_name=True) as at:
        if status == 404:
            body = {**body, "prompt": "a", "model": "other"}
        assert (await at.post("/v1/completions", body))[0] == status
        assert held(at) == 0


def test_counting() -> None:
    """What each body has beyond its free part is counted once, and given back however the block ends."""
    bodies = Bodies(1.0)
    with bodies.hold(LIMIT) as first:
        for _ in range(4):
            first.add(b"x" * UNCOUNTED_BYTES)
        assert bodies.held_bytes == 3 * UNCOUNTED_BYTES
        with bodies.hold(LIMIT) as second:
            second.add(b"x" * LIMIT)
            assert bodies.held_bytes == 2 * UNCOUNTED_BYTES + LIMIT
            with pytest.raises(ApiError):
                second.add(b"x")
        assert bodies.held_bytes == 3 * UNCOUNTED_BYTES
    assert bodies.held_bytes == 0


def test_automatic_limit() -> None:
    """Every prompt of the context fits, also with each character escaped; what is configured is taken as it is."""
    assert body_limit(5, 4096) == 5
    assert body_limit("auto", 4096) > 4096 * len(r"\u00e9")
    assert body_limit("auto", 262_144) > 262_144 * 2 * len(r"\u00e9")
    assert body_limit("auto", 2**24) == AUTO_MAX_BYTES
