"""What a stream looks like on the wire, to proxies and impatient clients."""

import asyncio

from svc.slots.events import FinishReason
from tests.fakes.fake_engine import FakeEngine, saying
from tests.http.harness import parse_sse, serving

BODY = {"prompt": "a", "stream": True, "stop": ["END"]}


async def test_headers() -> None:
    """Nothing on the way may buffer, cache or compress a stream."""
    asked = {"json": BODY, "headers": {"Accept-Encoding": "gzip, br"}}
    async with serving(FakeEngine(saying("x"))) as at, at.client.post("/v1/completions", **asked) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        assert response.headers["Cache-Control"] == "no-cache"
        assert response.headers["X-Accel-Buffering"] == "no"
        assert "Content-Encoding" not in response.headers
        assert response.headers["Server"] == "headrace"
        raw = await response.read()
    assert raw.endswith(b"data: [DONE]\n\n")
    assert b"\r" not in raw


async def test_comments_come_at_once_and_whenever_silent() -> None:
    """Right after admission, while queued, and while text is held back for a stop string although tokens do come."""
    ping = b": keep-alive\n\n"
    fast = serving(FakeEngine(), keep_alive_s=0.02)
    async with asyncio.timeout(10), fast as at, at.client.post("/v1/completions", json=BODY) as response:
        sequence = await at.engine.submitted.get()
        for _ in range(3):
            assert await response.content.readuntil(b"\n\n") == ping
        sequence.say(ord("E"))
        assert await response.content.readuntil(b"\n\n") == ping
        sequence.say(ord("N"))
        assert await response.content.readuntil(b"\n\n") == ping
        sequence.end(FinishReason.LENGTH)
        events = parse_sse(await response.read())
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == "EN"


async def test_no_comments_while_there_is_news() -> None:
    """Only the opening comment, when tokens come faster than the silence allowed."""
    async with (
        serving(FakeEngine(saying("hello")), keep_alive_s=30) as at,
        at.client.post("/v1/completions", json=BODY) as response,
    ):
        assert (await response.read()).count(b": keep-alive") == 1


async def test_tokens_are_written_one_by_one() -> None:
    """Each token is on the wire before the next is made."""
    async with asyncio.timeout(10), serving(FakeEngine()) as at, at.client.post("/v1/completions", json=BODY) as response:
        sequence = await at.engine.submitted.get()
        await response.content.readuntil(b"\n\n")
        for letter in b"abc":
            sequence.say(letter)
            assert b'"text":"%c"' % letter in await response.content.readuntil(b"\n\n")
        sequence.end(FinishReason.STOP)
        await response.read()


async def test_stream_cut_off_by_the_servers_end_says_so() -> None:
    """At the end of the drain time an open stream ends with an error event and without [DONE]; a whole answer is a 503."""
    async with serving(FakeEngine()) as at:
        streamed = asyncio.create_task(at.events("/v1/completions", BODY))
        whole = asyncio.create_task(at.post("/v1/completions", {"prompt": "a"}))
        for _ in range(2):
            (await at.engine.submitted.get()).end(FinishReason.CANCELLED)
        error = (await streamed)[-1]["error"]
        assert (error["type"], error["code"]) == ("unavailable_error", "draining")
        status, body = await whole
        assert (status, body["error"]["code"]) == (503, "draining")
