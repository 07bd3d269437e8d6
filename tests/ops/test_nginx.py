"""ops/nginx/headrace.conf, run by the real nginx: streams, clients that leave, long silences, large bodies, ids, failures."""

import asyncio
import json
import random
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from svc.http.body import AUTO_MAX_BYTES
from svc.http.sse import DONE, EventStream, event
from svc.sizes import parse_size
from tests.ops.nginx import SITE, Nginx, free_port, needs_nginx, site
from tests.scenarios.server import Server

pytestmark = needs_nginx

PATIENCE_S = 60.0  # for a slow machine; nothing waits that long in a run that passes
ENDLESS: dict[str, Any] = {"prompt": [5, 6, 7], "max_tokens": 8000, "ignore_eos": True, "temperature": 0}

# A site that says nothing about streams.
PLAIN = "server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://{upstream}; {more} }} }}"


class Upstream:
    """A server whose stream goes on only when told to."""

    def __init__(self, says_not_to_buffer: bool) -> None:
        self._says_not_to_buffer = says_not_to_buffer
        self.go_on: asyncio.Queue[int] = asyncio.Queue()

    async def stream(self, request: web.Request) -> web.StreamResponse:
        events = EventStream(request, keep_alive_s=1000, on_silence=lambda: None)
        if not self._says_not_to_buffer:
            del events.response.headers["X-Accel-Buffering"]
        await events.response.prepare(request)
        while number := await self.go_on.get():
            await events.write(event({"number": number}))
        await events.close(DONE)
        return events.response

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """The address, host:port."""
        app = web.Application()
        app.router.add_get("/stream", self.stream)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


async def _in_step(proxy: Nginx, upstream: Upstream, patience_s: float) -> list[Any]:
    """Reads a stream whose next event is not even made before the last one has arrived. TimeoutError when one is held back."""
    seen: list[Any] = []
    async with aiohttp.ClientSession() as session, asyncio.timeout(patience_s):
        upstream.go_on.put_nowait(1)
        async with session.get(f"{proxy.url}/stream", headers={"Accept-Encoding": "gzip, deflate"}) as response:
            for number in range(1, 11):
                seen.append(json.loads((await response.content.readuntil(b"\n\n")).removeprefix(b"data: ")))
                upstream.go_on.put_nowait(number + 1 if number < 10 else 0)
            assert await response.content.read() == b"data: [DONE]\n\n"
    return seen


@pytest.mark.parametrize("says_not_to_buffer", [False, True])
async def test_each_event_leaves_as_it_comes(tmp_path: Path, says_not_to_buffer: bool) -> None:
    """Ten events in lock-step, for a client that takes gzip, behind an nginx that compresses everything elsewhere.

    Without the server's header too: then it is the site that does it.
    """
    upstream = Upstream(says_not_to_buffer)
    port = free_port()
    async with upstream.serving() as address, Nginx(tmp_path, site(address, port), port) as proxy:
        assert await _in_step(proxy, upstream, PATIENCE_S) == [{"number": number} for number in range(1, 11)]


async def test_header_is_enough_for_a_site_that_knows_nothing_of_streams(tmp_path: Path) -> None:
    """`X-Accel-Buffering: no` opens any nginx that does not compress streams, as it does not by default."""
    upstream = Upstream(says_not_to_buffer=True)
    port = free_port()
    async with upstream.serving() as address:
        text = PLAIN.format(port=port, upstream=address, more="gzip off;")
        async with Nginx(tmp_path, text, port) as proxy:
            assert await _in_step(proxy, upstream, PATIENCE_S) == [{"number": number} for number in range(1, 11)]


async def test_an_event_held_back_would_be_noticed(tmp_path: Path) -> None:
    """The other way round: nginx as it comes, and no header. The first event does not arrive before the second is made."""
    upstream = Upstream(says_not_to_buffer=False)
    port = free_port()
    async with upstream.serving() as address, Nginx(tmp_path, PLAIN.format(port=port, upstream=address, more=""), port) as proxy:
        with pytest.raises(TimeoutError):
            await _in_step(proxy, upstream, 0.5)


@asynccontextmanager
async def _both(tmp_path: Path, *flags: str, **directives: str) -> AsyncIterator[tuple[Server, aiohttp.ClientSession]]:
    """A real server, and a client of the nginx before it."""
    port = free_port()
    async with Server(*flags) as server:
        text = site(server.url.removeprefix("http://"), port, **directives)
        async with Nginx(tmp_path, text, port) as proxy, aiohttp.ClientSession(proxy.url) as client:
            async with asyncio.timeout(PATIENCE_S):
                yield server, client


async def _until_admitted(server: Server) -> None:
    while True:
        if await server.metric("num_requests_running") == 1:
            return
        await asyncio.sleep(0.01)  # another process: there is nothing to wait on


async def test_client_that_leaves_a_stream_frees_its_slot(tmp_path: Path) -> None:
    """The first token arrives long before the answer has its length; closing the connection to nginx ends the answer."""
    async with _both(tmp_path, "--ctx", "8192") as (server, client):
        async with client.post("/v1/completions", json={**ENDLESS, "stream": True}) as response:
            await response.content.readuntil(b"data: {")
            assert await server.metric("num_requests_running") == 1
        await server.until_idle()
        assert 1 <= await server.metric("generation_tokens_total") < ENDLESS["max_tokens"]


async def test_client_that_leaves_a_silent_answer_frees_its_slot(tmp_path: Path) -> None:
    """Not streamed: nothing has been sent yet when the client goes, and nginx still tells the server."""
    async with _both(tmp_path, "--ctx", "8192") as (server, client):
        request = asyncio.create_task(client.post("/v1/completions", json=ENDLESS))
        await _until_admitted(server)
        request.cancel()
        await server.until_idle()
        assert await server.metric("generation_tokens_total") < ENDLESS["max_tokens"]


# nginx's timers are lazy by 0.3 s, so it has no shorter timeouts than about 1 s. A comment is sent after 0.05 s of silence: who has
# seen 25 of them has seen more silence than nginx bears. The reference needs far longer for this prompt, on any machine.
SHORT_TIMEOUT = {"proxy_read_timeout": "1s"}
COMMENT = b": keep-alive\n\n"
SLOW_PREFILL = ("--device", "reference", "--max-step-tokens", "16")
SILENT = {"prompt": random.Random(3).choices(range(300, 1500), k=3000), "max_tokens": 3, "ignore_eos": True, "stream": True}


async def _read_comments(response: aiohttp.ClientResponse) -> None:
    assert response.status == 200, await response.text()
    for _ in range(25):
        assert await response.content.readuntil(b"\n\n") == COMMENT


async def test_silent_prefill_survives_a_short_timeout(tmp_path: Path) -> None:
    """A prefill longer than nginx waits for a byte: comments keep the connection."""
    async with (
        _both(tmp_path, "--keep-alive-s", "0.05", *SLOW_PREFILL, **SHORT_TIMEOUT) as (server, client),
        client.post("/v1/completions", json=SILENT) as response,
    ):
        await _read_comments(response)
        assert await server.metric("num_requests_running") == 1
        assert await server.metric("generation_tokens_total") == 0


async def test_answer_comes_after_a_long_wait(tmp_path: Path) -> None:
    """The same in the queue, until the only slot is free; then the whole answer arrives."""
    flags = ("--keep-alive-s", "0.05", "--max-slots", "1", "--ctx", "8192")
    async with (
        _both(tmp_path, *flags, **SHORT_TIMEOUT) as (server, client),
        client.post("/v1/completions", json={**ENDLESS, "stream": True}) as first,
    ):
        await first.content.readuntil(b"data: {")  # has the slot now
        async with client.post("/v1/completions", json={**ENDLESS, "max_tokens": 3, "stream": True}) as second:
            await _read_comments(second)
            assert await server.metric("num_requests_waiting") == 1
            first.close()
            assert (await second.content.read()).endswith(b"data: [DONE]\n\n")


async def test_silence_without_comments_would_be_cut(tmp_path: Path) -> None:
    """The other way round: without comments that nginx cuts the same prefill off, and the server notices."""
    async with _both(tmp_path, "--keep-alive-s", "600", *SLOW_PREFILL, **SHORT_TIMEOUT) as (server, client):
        async with client.post("/v1/completions", json=SILENT) as response:
            assert response.status == 200, await response.text()
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.content.read()
        await server.until_idle()
        assert await server.metric("generation_tokens_total") == 0


async def test_bodies_ids_and_errors_pass(tmp_path: Path) -> None:
    """A body of 30 MB arrives; ids go both ways; what the server refuses is refused in its own words."""
    async with _both(tmp_path, "--max-body-bytes", "32MB") as (_, client):
        body = {"prompt": [5, 6, 7], "max_tokens": 1, "padding": "x" * 30_000_000}  # fields that nobody knows are ignored
        async with client.post("/v1/completions", json=body, headers={"X-Request-Id": "from-the-client"}) as response:
            assert (response.status, response.headers["X-Request-Id"]) == (200, "from-the-client")
        async with client.post("/v1/completions", json={"prompt": [5], "padding": "x" * 32_000_000}) as response:
            assert (response.status, response.content_type) == (413, "application/json")
            assert "error" in await response.json()
        async with client.get("/v1/models") as response:
            assert re.fullmatch("[0-9a-f]{32}", response.headers["X-Request-Id"])
        async with client.get("/metrics") as response:
            assert response.status == 404
        async with client.get("/readyz") as response:
            assert response.status == 200


def test_nginx_takes_more_than_the_server() -> None:
    """The limit that clients meet is the server's, whose answer they can read."""
    limit = re.search(r"client_max_body_size (\d+)m;", SITE)
    assert limit is not None
    assert parse_size(f"{limit[1]}MiB") > AUTO_MAX_BYTES


@pytest.mark.parametrize("chunked", [False, True])
async def test_body_beyond_what_nginx_takes(tmp_path: Path, chunked: bool) -> None:
    """JSON there too, whether the length was told or not; the server hears nothing of it."""
    port = free_port()
    async with (
        Nginx(tmp_path, site(f"127.0.0.1:{free_port()}", port, client_max_body_size="1k"), port) as proxy,
        aiohttp.ClientSession(proxy.url) as client,
    ):
        body = b"x" * 5000
        data: Any = _pieces(body) if chunked else body
        async with client.post("/v1/completions", data=data, headers={"X-Request-Id": "mine"}) as response:
            assert (response.status, response.content_type) == (413, "application/json")
            assert response.headers["X-Request-Id"] == "mine"
            error = (await response.json())["error"]
    assert (set(error), error["code"]) == ({"message", "type", "param", "code"}, "body_too_large")


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 1000):
        yield body[start : start + 1000]


async def test_server_that_is_not_there(tmp_path: Path) -> None:
    """While the server restarts clients get JSON and a time to come back after, not a page."""
    port = free_port()
    async with (
        Nginx(tmp_path, site(f"127.0.0.1:{free_port()}", port), port) as proxy,
        aiohttp.ClientSession(proxy.url) as client,
        client.post("/v1/chat/completions", json={}, headers={"X-Request-Id": "mine"}) as response,
    ):
        assert (response.status, response.content_type) == (503, "application/json")
        assert (response.headers["Retry-After"], response.headers["X-Request-Id"]) == ("5", "mine")
        assert set((await response.json())["error"]) == {"message", "type", "param", "code"}


async def test_server_that_does_not_answer(tmp_path: Path) -> None:
    """A silence longer than nginx waits for, before the first byte: JSON again."""
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel takes connections, nobody reads them
        text = site(f"127.0.0.1:{silent.getsockname()[1]}", port, proxy_read_timeout="100ms")
        async with (
            Nginx(tmp_path, text, port) as proxy,
            aiohttp.ClientSession(proxy.url) as client,
            client.get("/v1/models") as response,
        ):
            assert (response.status, response.content_type) == (504, "application/json")
            assert (await response.json())["error"]["code"] == "timeout"
