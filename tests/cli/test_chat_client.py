"""svc.cli.client and svc.cli.conversation: streams cut anywhere, servers that fail, and the history."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from svc.cli.client import ChatClient, ChatError, Reply, events
from svc.cli.conversation import Conversation, Message

STREAM = (
    b': keep-alive\n\ndata: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    b'data:{"choices":[{"delta":{"content":"h\xc3\xa9"}}]}\r\n\r\n'
    b'event: x\ndata: {"choices":[{"delta":{"content":"llo"},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
    b"data: [DONE]\n\ndata: not read any more\n\n"
)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def in_pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_events_cut_anywhere(size: int) -> None:
    """Comments, other fields, CR and missing spaces are no events; nothing after [DONE] is looked at."""
    found = [event async for event in events(in_pieces(STREAM, size))]
    assert len(found) == 4
    assert found[1] == {"choices": [{"delta": {"content": "hé"}}]}


async def test_event_that_is_no_json() -> None:
    with pytest.raises(ChatError):
        [event async for event in events(in_pieces(b"data: {oops\n\n", 100))]


async def asked(post: Handler, **settings: object) -> tuple[Reply, list[str]]:
    """Asks a server that answers so -> the reply, and the parts as they were shown."""

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", post)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    reply, shown = Reply(), list[str]()
    try:
        async with ChatClient(f"http://127.0.0.1:{runner.addresses[0][1]}/v1/") as client:
            await client.ask([Message("user", "hi")], settings, reply, shown.append)
    finally:
        await runner.cleanup()
    return reply, shown


def streamed(data: bytes) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(data)
        return response

    return handler


def refusing(status: int, text: str) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    return handler


async def test_answer() -> None:
    """Text in parts, counts and the end; the request carries the messages and only the settings given."""
    bodies = []

    async def handler(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        return await streamed(STREAM)(request)

    reply, shown = await asked(handler, temperature=0.5)
    assert shown == reply.parts == ["hé", "llo"]
    assert (reply.prompt_tokens, reply.cached_tokens, reply.completion_tokens, reply.finish_reason) == (9, 4, 3, "stop")
    (body,) = bodies
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    assert {key: value for key, value in body.items() if key not in ("messages", "stream", "stream_options")} == {
        "model": "m",
        "temperature": 0.5,
    }


@pytest.mark.parametrize(
    ("handler", "sentence"),
    [
        (streamed(STREAM[:150]), "broke the answer off"),
        (streamed(b'data: {"error": {"message": "out of luck"}}\n\n'), "out of luck"),
        (refusing(404, "<html>no</html>"), "status 404: <html>no</html>"),
        (refusing(400, '{"error": {"message": "too long"}}'), "too long"),
        (refusing(503, '{"error": "loading"}'), "loading"),
        (refusing(500, ""), "status 500"),
    ],
)
async def test_failures(handler: Handler, sentence: str) -> None:
    """Whatever a server does instead of answering is one sentence."""
    with pytest.raises(ChatError, match=sentence):
        await asked(handler)


def test_speed_is_that_of_generation() -> None:
    """The first token belongs to the prompt; nothing is claimed where it cannot be known."""
    assert Reply(["x"], first_s=2.0, total_s=4.0, completion_tokens=11).tokens_per_s == 5.0
    assert Reply(["x"], first_s=2.0, total_s=4.0).tokens_per_s is None
    assert Reply(["x"], first_s=2.0, total_s=2.0, completion_tokens=5).tokens_per_s is None
    assert Reply(["x"], first_s=2.0, total_s=4.0, completion_tokens=1).tokens_per_s is None


def test_conversation() -> None:
    """What the model sees after each thing a person can do."""
    talk = Conversation("sys")
    talk.ask("q1")
    assert talk.messages == [("system", "sys"), ("user", "q1")]
    talk.answer("a1")
    talk.ask("q2")
    talk.answer("")  # failed: never asked
    assert talk.messages == [("system", "sys"), ("user", "q1"), ("assistant", "a1")]
    assert talk.reopen()
    assert talk.messages == [("system", "sys"), ("user", "q1")]
    talk.answer("b1")
    assert talk.messages[-1] == ("assistant", "b1")
    assert talk.undo()
    assert talk.messages == [("system", "sys")]
    assert not talk.undo()
    assert not talk.reopen()
    assert Conversation().messages == []
