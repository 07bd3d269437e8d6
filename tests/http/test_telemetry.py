"""What llama-server tells of an answer that is being made, to clients that ask: progress, timings, its whole form, comments."""

import asyncio
import json
from typing import Any

import pytest

from svc.slots.events import FinishReason
from tests.fakes.fake_engine import FakeEngine, saying
from tests.http.harness import MODEL, serving

USER = {"messages": [{"role": "user", "content": "hi"}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": USER,
    "/v1/completions": {"prompt": "hello"},
    "/completion": {"prompt": "hello"},
}
EVERY = pytest.mark.parametrize("path", BODIES)


def _engine() -> FakeEngine:
    """Three prompt tokens are known; the others take half a second (fake engine)."""
    return FakeEngine(saying("abc"), cached=lambda request: 3)


@EVERY
async def test_progress(path: str) -> None:
    """It begins with what was known, ends with the whole prompt, and comes before any text; timings only if asked for."""
    async with serving(_engine()) as at:
        events = await at.events(path, BODIES[path] | {"return_progress": True})
        timed = await at.events(path, BODIES[path] | {"return_progress": True, "timings_per_token": True})
        silent = await at.events(path, BODIES[path])
    total = len(at.engine.sequences[0].request.prompt)
    told = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert told == [
        {"total": total, "cache": 3, "processed": 3, "time_ms": 0},
        {"total": total, "cache": 3, "processed": total, "time_ms": 500},
    ]
    where = [n for n, event in enumerate(events) if "prompt_progress" in event]
    assert where in ([0, 1], [0, 1, 2][1:])  # behind the role in a chat
    assert not any("timings" in events[n] for n in where)
    first, second = (event["timings"] for event in timed if "prompt_progress" in event)
    names = ("cache_n", "prompt_n", "prompt_ms", "predicted_n", "predicted_ms")
    assert [first[name] for name in names] == [3, 0, 0.0, 0, 0.0]
    assert [second[name] for name in names] == [3, total - 3, 500.0, 0, 0.0]
    assert not any("prompt_progress" in event for event in silent if event != "[DONE]")


@EVERY
async def test_timings_with_every_token(path: str) -> None:
    """Counts grow with the text; the last are those of the end. Unasked, only the end has them."""
    async with serving(_engine()) as at:
        timed = await at.events(path, BODIES[path] | {"timings_per_token": True})
        plain = await at.events(path, BODIES[path])
    total = len(at.engine.sequences[0].request.prompt)
    timings = [event["timings"] for event in timed if "timings" in event]
    assert [each["predicted_n"] for each in timings] == [1, 2, 3, 3]
    assert {(each["cache_n"], each["prompt_n"], each["prompt_ms"]) for each in timings} == {(3, total - 3, 500.0)}
    assert timings[0]["predicted_per_second"] == 0.0
    assert timings[-1]["predicted_ms"] == 1000.0
    assert sum("timings" in event for event in plain) == 1


async def test_responses_tell_them_in_their_own_events() -> None:
    """Progress is a response that is in progress."""
    body = {"input": "hi", "stream": True, "return_progress": True, "timings_per_token": True}
    async with serving(_engine()) as at, at.client.post("/v1/responses", json=body) as response:
        raw = await response.read()
    events = [json.loads(line[6:]) for line in raw.decode().splitlines() if line.startswith("data: ")]
    progress = [event for event in events if "prompt_progress" in event]
    assert [event["type"] for event in progress] == ["response.in_progress"] * 2
    assert progress[0]["prompt_progress"]["processed"] == 3
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [event["timings"]["predicted_n"] for event in deltas] == [1, 2, 3]
    assert events[-1]["timings"] == events[-1]["response"]["timings"]


async def test_input_tokens() -> None:
    """As many as the prompt that the engine gets; nothing is generated for it. Anthropic's answers have no such extras."""
    async with serving(_engine()) as at:
        counted = await at.post("/chat/completions/input_tokens", USER)
        assert at.engine.sequences == []
        await at.post("/v1/chat/completions", USER)
        _, message = await at.post("/v1/messages", USER | {"max_tokens": 4})
    assert counted == (200, {"input_tokens": len(at.engine.sequences[0].request.prompt)})
    assert "timings" not in message


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_verbose(path: str) -> None:
    """/completion's form of the same answer, with the prompt as the model got it; in a stream with the end."""
    async with serving(_engine()) as at:
        _, whole = await at.post(path, BODIES[path] | {"verbose": True, "seed": 5})
        events = await at.events(path, BODIES[path] | {"verbose": True, "seed": 5})
        _, plain = await at.post(path, BODIES[path] | {"verbose": False})
    told = whole["__verbose"]
    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n" if "chat" in path else "hello"
    assert (told["content"], told["prompt"], told["model"]) == ("abc", prompt, MODEL)
    assert (told["generation_settings"]["seed"], told["stop_type"]) == (5, "eos")
    (last,) = [event["__verbose"] for event in events if "__verbose" in event]
    assert last == told | {"content": "", "generation_settings": told["generation_settings"] | {"stream": True}}
    assert "__verbose" not in plain


async def test_the_client_sets_when_comments_come() -> None:
    """Silent for longer than it says, a stream gets one; -1 is never, and the server's own interval counts for nothing."""
    body = BODIES["/v1/completions"] | {"stream": True}
    never, often = body | {"sse_ping_interval": -1}, body | {"sse_ping_interval": 0.001}
    async with serving(FakeEngine(), keep_alive_s=0.001) as at, at.client.post("/v1/completions", json=never) as response:
        sequence = await at.engine.submitted.get()
        assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"  # the first comes at once
        for _ in range(100):
            await asyncio.sleep(0)
        sequence.end(FinishReason.LENGTH)
        assert b": keep-alive" not in await response.read()
    async with serving(FakeEngine(), keep_alive_s=3600) as at, at.client.post("/v1/completions", json=often) as response:
        sequence = await at.engine.submitted.get()
        for _ in range(3):
            assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"
        sequence.end(FinishReason.LENGTH)
