"""Below the handlers: what is no proper HTTP, half-closed clients and expectations, on both event loops that a server may run on.

This is also what holds `svc/http/protocol.py`, which leans on the insides of aiohttp, against the installed version.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
import uvloop
from aiohttp import web

from svc.http import protocol
from svc.http.api_keys import ApiKeys
from svc.http.connections import Connections
from svc.http.protocol import CONTINUE, MAX_PIPELINED, BodyWriter, Runner
from svc.slots.events import FinishReason
from tests.fakes.fake_engine import FakeEngine, saying
from tests.http.harness import Harness, parse_sse, serving

PATIENCE_S = 20
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
KEYS = ApiKeys(["key"])
LIVE = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
READY = b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"
BODY = b'{"prompt":"a"}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Api-Key: key\r\nContent-Length: %d\r\n"
ASK = HEAD % len(BODY) + b"\r\n" + BODY
MARK = b"SECRET"

Scenario = Callable[[], Awaitable[None]]


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """Runs a coroutine function on one of the loops."""

    def run(scenario: Scenario) -> None:
        async def in_time() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await scenario()

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(in_time())

    return run


class Response(NamedTuple):
    version: str
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error


class Client:
    """A socket and what comes out of it."""

    def __init__(self, at: Harness) -> None:
        self._port = int(at.url.rsplit(":", 1)[1])

    async def __aenter__(self) -> "Client":
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    def send(self, raw: bytes, *, half_close: bool = False) -> None:
        self.writer.write(raw)
        if half_close:
            self.writer.write_eof()

    async def response(self) -> Response:
        """The next one; interim ones are looked for by `interim`."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        version, status, _ = lines[0].split(" ", 2)
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        body = await self.reader.readexactly(int(headers.get("Content-Length", 0)))
        return Response(version, int(status), headers, body)

    async def interim(self) -> None:
        assert await self.reader.readexactly(len(CONTINUE)) == CONTINUE

    async def closed(self) -> bool:
        return await self.reader.read() == b""


def check_refusal(response: Response, status: int) -> None:
    """In the usual shape, with the usual headers, and without a word of what was sent or of what the server is made of."""
    assert (response.version, response.status) == ("HTTP/1.1", status)
    assert set(response.error) == {"message", "type", "param", "code"}
    assert response.headers["Content-Type"].startswith("application/json")
    assert response.headers["Server"] == "headrace"
    assert response.headers["Connection"] == "close"
    assert len(response.headers["X-Request-Id"]) == 32
    assert MARK not in response.body
    assert b"aiohttp" not in repr(response.headers).encode() + response.body


NOT_HTTP = {
    "no method": b"SECRET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "binary": b"\x00\x01SECRET\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03SECRET",
    "HTTP/2 without asking": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nSECRET",
    "version": b"GET /SECRET HTTP/1.7\r\nHost: x\r\n\r\n",
    "no host": b"GET /SECRET HTTP/1.1\r\n\r\n",
    "header": b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer SECRET\x01\r\n\r\n",
    "header name": b"GET / HTTP/1.1\r\nHost: x\r\nSEC RET: x\r\n\r\n",
    "long header": b"GET / HTTP/1.1\r\nHost: x\r\nA: " + MARK * 2000 + b"\r\n\r\n",
    "long target": b"GET /" + MARK * 2000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\nHost: x\r\n" + b"SECRET: x\r\n" * 200 + b"\r\n",
    "target": b"GET http:///SECRET HTTP/1.1\r\nHost: x\r\n\r\n",
    "target in UTF-8": b"GET /%ff%zz?\xff=SECRET HTTP/1.1\r\nHost: x\r\n\r\n",
    "length": HEAD % 5 + b"Content-Length: SECRET\r\n\r\n",
    "two lengths": HEAD % 5 + b"Content-Length: 6\r\n\r\nSECRET",
    "length and chunks": HEAD % 5 + b"Transfer-Encoding: chunked\r\n\r\nSECRET",
    "chunk": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nSECRET\r\n",
}


@pytest.mark.parametrize("raw", NOT_HTTP.values(), ids=NOT_HTTP)
def test_what_is_no_http(raw: bytes, run: Callable[[Scenario], None], caplog: pytest.LogCaptureFixture) -> None:
    """400 in the usual shape; the log has one line, with the class of the error and nothing of what was sent."""

    async def scenario() -> None:
        async with serving(FakeEngine(saying("x"))) as at, Client(at) as client:
            client.send(raw)
            response = await client.response()
            check_refusal(response, 400)
            assert response.error["code"] == "invalid_http"
            assert await client.closed()
            (line,) = at.log_lines()
            assert (line["status"], line["error"], line["path"]) == (400, "invalid_http", "unknown")
            assert line["cause"].isidentifier()
            assert "SECRET" not in at.log.getvalue()
            assert (await at.post("/v1/completions", {"prompt": "a"}))[0] == 200

    run(scenario)
    assert caplog.records == []


REFUSED = {
    "HTTP/2.0": (
        b"POST /v1/completions HTTP/2.0\r\nHost: x\r\nContent-Length: 14\r\n\r\n" + BODY,
        505,
        "http_version_not_supported",
    ),
    "CONNECT": (b"CONNECT SECRET.org:443 HTTP/1.1\r\nHost: x\r\n\r\n", 405, "method_not_allowed"),
    "CONNECT and more": (b"CONNECT SECRET.org:443 HTTP/1.1\r\nHost: x\r\n\r\n\x16\x03\x01" + MARK, 405, "method_not_allowed"),
    "expectation": (HEAD % 14 + b"Expect: SECRET\r\n\r\n", 417, "expectation_failed"),
}


@pytest.mark.parametrize(("raw", "status", "code"), REFUSED.values(), ids=REFUSED)
def test_http_that_is_not_served(raw: bytes, status: int, code: str, run: Callable[[Scenario], None]) -> None:
    """Well-formed, but of another version, for a proxy, or asking for what there is not."""

    async def scenario() -> None:
        async with serving(FakeEngine(saying("x")), keys=KEYS) as at, Client(at) as client:
            client.send(raw)
            response = await client.response()
            check_refusal(response, status)
            assert response.error["code"] == code
            assert at.engine.sequences == []
            assert "SECRET" not in at.log.getvalue()

    run(scenario)


@pytest.mark.parametrize("number", [1, 2, MAX_PIPELINED, 3 * MAX_PIPELINED])
@pytest.mark.parametrize("packets", [1, 2, 1000])
def test_garbage_behind_requests_takes_no_answer_away(number: int, packets: int, run: Callable[[Scenario], None]) -> None:
    """However many requests come before it, and however it all is cut into packets: their answers, then the refusal."""
    raw = (LIVE + ASK) * number + b"SECRET\r\n\r\n"
    size = -(-len(raw) // packets)

    async def scenario() -> None:
        async with serving(FakeEngine(saying("x")), keys=KEYS) as at, Client(at) as client:
            for start in range(0, len(raw), size):
                client.send(raw[start : start + size])
                await asyncio.sleep(0)
            for _ in range(number):
                assert json.loads((await client.response()).body) == {"status": "ok"}
                assert json.loads((await client.response()).body)["choices"][0]["text"] == "x"
            check_refusal(await client.response(), 400)
            assert await client.closed()

    run(scenario)


def test_garbage_inside_a_body(run: Callable[[Scenario], None]) -> None:
    """Chunks that are none, once the handler waits for them: it is told, and its answer is a 400."""

    async def scenario() -> None:
        async with serving(FakeEngine(saying("x"))) as at, Client(at) as client:
            client.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n")
            await client.interim()
            client.send(b"SECRET\r\n")
            response = await client.response()
            assert (response.status, response.error["code"]) == (400, "invalid_body")
            assert await client.closed()

    run(scenario)


@pytest.mark.parametrize("protocol_name", [b"websocket", b"h2c"])
@pytest.mark.parametrize("size", [1, 7, 2**16])
def test_upgrades_are_declined(protocol_name: bytes, size: int, run: Callable[[Scenario], None]) -> None:
    """Each request is answered as if it had not asked for it, and so are those behind it, however all are cut into packets."""
    upgrade = b"Connection: keep-alive, Upgrade\r\nuPgrade: " + protocol_name + b"\r\n"
    live = LIVE.replace(b"Host: x\r\n", b"Host: x\r\n" + upgrade)
    ask = HEAD % len(BODY) + upgrade + b"\r\n" + BODY
    raw = live + LIVE + ask + ask + live + ASK + (live + ask) * MAX_PIPELINED

    async def scenario() -> None:
        async with serving(FakeEngine(saying("x")), keys=KEYS) as at, Client(at) as client:
            for start in range(0, len(raw), size):
                client.send(raw[start : start + size])
                await asyncio.sleep(0)
            for number in range(6 + 2 * MAX_PIPELINED):
                response = await client.response()
                assert (response.version, response.status) == ("HTTP/1.1", 200)
                is_live = number in (0, 1, 4) or (number >= 6 and number % 2 == 0)
                assert (json.loads(response.body) == {"status": "ok"}) == is_live
            client.send(LIVE)
            assert (await client.response()).status == 200

    run(scenario)


# -- half-closed clients ---------------------------------------------------------------------------------------------------------


def test_half_closed_client_gets_its_answers(run: Callable[[Scenario], None]) -> None:
    """Several requests, then the end of what the client sends: all of them are answered, then the connection is closed."""

    async def scenario() -> None:
        async with serving(FakeEngine(saying("x")), keys=KEYS) as at, Client(at) as client:
            client.send(LIVE + READY, half_close=True)
            assert [(await client.response()).status for _ in range(2)] == [200, 200]
            assert await client.closed()

    run(scenario)


@pytest.mark.parametrize("probes", [1, 3])
def test_half_closed_client_waits_for_a_whole_answer(
    probes: int, run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked now and then whether it still listens, by responses that mean nothing."""
    monkeypatch.setattr(protocol, "PROBE_EVERY_S", 0.0)

    async def scenario() -> None:
        async with serving(FakeEngine(), keys=KEYS) as at, Client(at) as client:
            client.send(ASK, half_close=True)
            sequence = await at.engine.submitted.get()
            for _ in range(probes):
                await client.interim()
            sequence.say(ord("x"))
            sequence.end(FinishReason.STOP)
            raw = await client.reader.read()
            assert json.loads(raw.rpartition(b"\r\n\r\n")[2])["choices"][0]["text"] == "x"
            assert at.log_lines()[-1]["status"] == 200

    run(scenario)


def test_half_closed_client_gets_its_stream(run: Callable[[Scenario], None]) -> None:
    """With a comment more, and to the end."""

    async def scenario() -> None:
        async with serving(FakeEngine(), keys=KEYS) as at, Client(at) as client:
            body = b'{"prompt":"a","stream":true}'
            client.send(HEAD % len(body) + b"\r\n" + body, half_close=True)
            sequence = await at.engine.submitted.get()
            await client.reader.readuntil(b": keep-alive\n\n")
            await client.reader.readuntil(b": keep-alive\n\n")
            sequence.say(ord("x"))
            await client.reader.readuntil(b'"text":"x"')
            sequence.end(FinishReason.STOP)
            assert b"data: [DONE]" in await client.reader.read()

    run(scenario)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("first_half", [False, True])
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_client_that_leaves_is_noticed(
    stream: bool, first_half: bool, version: bytes, run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without another token: whether it closes at once, or its sending half before. HTTP/1.0 cannot be asked and has some time."""
    monkeypatch.setattr(protocol, "PROBE_EVERY_S", 0.0)
    monkeypatch.setattr(protocol, "HTTP10_GRACE_S", 0.05)

    async def scenario() -> None:
        async with serving(FakeEngine(), keys=KEYS) as at:
            async with Client(at) as client:
                body = b'{"prompt":"a","stream":true}' if stream else BODY
                client.send((HEAD % len(body) + b"\r\n" + body).replace(b"HTTP/1.1", b"HTTP/" + version), half_close=first_half)
                sequence = await at.engine.submitted.get()
            assert await at.engine.cancelled.get() is sequence
            while not at.log_lines():  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert at.log_lines()[0]["status"] == 499

    run(scenario)


def test_end_inside_a_body_is_leaving(run: Callable[[Scenario], None]) -> None:
    """What has come of it is no request; the connection is closed without an answer."""

    async def scenario() -> None:
        async with serving(FakeEngine(), keys=KEYS) as at, Client(at) as client:
            client.send(ASK[:-3], half_close=True)
            assert await client.closed()
            assert at.engine.sequences == []

    run(scenario)


# -- expectations ----------------------------------------------------------------------------------------------------------------
EXPECT = b"Expect: 100-continue\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ((HEAD % 14).replace(b"key", b"other"), 401),
        (HEAD % 2**30, 413),
        ((HEAD % 14).replace(b"/completions", b"/nothing"), 404),
        ((HEAD % 14).replace(b"POST", b"PUT"), 405),
        (HEAD % 14 + b"Content-Encoding: gzip\r\n", 415),
    ],
)
def test_refusals_come_before_the_body_is_asked_for(head: bytes, status: int, run: Callable[[Scenario], None]) -> None:
    """A client that waits with its body is spared it; the connection is closed, as nobody knows whether it comes all the same."""

    async def scenario() -> None:
        async with serving(FakeEngine(saying("x")), keys=KEYS) as at, Client(at) as client:
            client.send(head + EXPECT)
            response = await client.response()
            check_refusal(response, status)

    run(scenario)


def test_body_is_asked_for(run: Callable[[Scenario], None]) -> None:
    """Once, and then the connection goes on as any other."""

    async def scenario() -> None:
        async with serving(FakeEngine(saying("x")), keys=KEYS) as at, Client(at) as client:
            for _ in range(2):
                client.send(HEAD % len(BODY) + EXPECT)
                await client.interim()
                client.send(BODY)
                assert (await client.response()).status == 200

    run(scenario)


def test_http_1_0_has_no_expectations(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with serving(FakeEngine(saying("x")), keys=KEYS) as at, Client(at) as client:
            client.send((HEAD % len(BODY) + EXPECT).replace(b"HTTP/1.1", b"HTTP/1.0") + BODY)
            assert (await client.response()).status == 200

    run(scenario)


@pytest.mark.parametrize("head", [HEAD % 14, (HEAD % 14).replace(b"key", b"other"), (HEAD % 14).replace(b"/completions", b"/no")])
def test_leaving_instead_of_a_body(head: bytes, run: Callable[[Scenario], None], caplog: pytest.LogCaptureFixture) -> None:
    """No traceback, whenever the client goes."""

    async def scenario() -> None:
        async with serving(FakeEngine(saying("x")), keys=KEYS) as at:
            for _ in range(20):
                async with Client(at) as client:
                    client.send(head + EXPECT)
            while len(at.log_lines()) < 20:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert "Traceback" not in at.log.getvalue()

    run(scenario)
    assert caplog.records == []


def test_events_stay_events(run: Callable[[Scenario], None]) -> None:
    """The comment for a half-closed client falls between two events."""

    async def scenario() -> None:
        async with serving(FakeEngine(), keys=KEYS) as at, Client(at) as client:
            body = b'{"prompt":"a","stream":true,"max_tokens":100}'
            client.send((HEAD % len(body) + b"\r\n" + body).replace(b"HTTP/1.1", b"HTTP/1.0"), half_close=True)
            sequence = await at.engine.submitted.get()
            for _ in range(50):
                sequence.say(ord("x"))
                await asyncio.sleep(0)
            sequence.end(FinishReason.STOP)
            events = parse_sse((await client.reader.read()).partition(b"\r\n\r\n")[2])
            assert "".join(event["choices"][0]["text"] for event in events[:-1]) == "x" * 50

    run(scenario)


# -- writing without waiting -----------------------------------------------------------------------------------------------------
PIECES = (b"a", b"data: {}\n\n", b"\r\n" * 10, b"x" * 70_000)


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_body_writer_writes_what_aiohttp_does(version: bytes, run: Callable[[Scenario], None]) -> None:
    """Byte for byte, behind and before what aiohttp itself writes."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.headers["Date"] = response.headers["Server"] = "x"
        await response.prepare(request)
        writer = BodyWriter(request)
        for piece in PIECES:
            if request.path == "/ours" and piece != PIECES[0]:
                writer.write(piece)
                if writer.paused:
                    await writer.resumed()
            else:
                await response.write(piece)
        await response.write_eof(b"end")
        return response

    async def scenario() -> None:
        app = web.Application()
        app.router.add_get("/{name}", handler)
        runner = Runner(app, Connections(10, 0, lambda number: None))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        found = []
        for path in (b"/ours", b"/theirs"):
            reader, writer = await asyncio.open_connection(*runner.addresses[0])
            writer.write(b"GET %b HTTP/%b\r\nHost: x\r\nConnection: close\r\n\r\n" % (path, version))
            found.append(await reader.read())
            writer.close()
        await runner.cleanup()
        assert found[0] == found[1]
        assert b"end" in found[0]

    run(scenario)


def test_body_writer_pauses_where_nobody_reads(run: Callable[[Scenario], None]) -> None:
    """Paused once the client leaves much unread, and no more once it has read; when it has left, writing raises."""
    seen: list[bool] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        writer = BodyWriter(request)
        seen.append(writer.paused)
        while not writer.paused:
            writer.write(bytes(2**16))
            await asyncio.sleep(0)
        seen.append(writer.paused)
        full.set()
        await writer.resumed()
        seen.append(writer.paused)
        assert request.transport is not None
        request.transport.close()
        with pytest.raises(ConnectionResetError):
            writer.write(b"x")
        left.set()
        return response

    full, left = asyncio.Event(), asyncio.Event()

    async def scenario() -> None:
        app = web.Application()
        app.router.add_get("/", handler)
        runner = Runner(app, Connections(10, 0, lambda number: None))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        reader, writer = await asyncio.open_connection(*runner.addresses[0], limit=1)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await full.wait()
        while await reader.read(2**20):
            pass
        await left.wait()
        writer.close()
        await runner.cleanup()
        assert seen == [False, True, False]

    run(scenario)
