"""Limits of API keys over HTTP."""

import asyncio
from typing import Any

import anthropic
import openai
import pytest

from svc.errors import QueueFullError
from svc.http.api_keys import ApiKeys
from svc.http.rate_limits import Tenant
from svc.slots.events import FinishReason
from tests.fakes.fake_engine import FakeEngine, saying
from tests.http.harness import Harness, serving

USER = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "hello"},
    "/completion": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": USER, "max_tokens": 9},
}
COMPLETIONS = "/v1/completions"


async def ask(at: Harness, key: str, path: str = COMPLETIONS, **fields: Any) -> tuple[int, dict[str, str], Any]:
    """(status, limit headers and Retry-After, body; of a stream the text)."""
    async with at.client.post(path, json=BODIES[path] | fields, headers={"x-api-key": key}) as response:
        body = await response.read() if fields.get("stream") else await response.json()
        names = ("x-ratelimit-", "retry-after")
        return response.status, {name.lower(): v for name, v in response.headers.items() if name.lower().startswith(names)}, body


async def running(tenant: Tenant, number: int) -> None:
    """Lets the server's handlers come to their ends."""
    for _ in range(100):
        if tenant.num_running == number:
            return
        await asyncio.sleep(0)
    raise AssertionError(tenant)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("path", BODIES)
async def test_requests_per_minute(path: str) -> None:
    """Over the limit: 429 in the dialect's own form, the time to wait, and nothing submitted; other keys are as open as before."""
    clock = Clock()
    async with serving(FakeEngine(saying("x")), keys=ApiKeys(["alice:key-a rpm=2", "bob:key-b"]), clock=clock) as at:
        for remaining, reset in (("1", "30s"), ("0", "1m0s")):
            status, headers, _ = await ask(at, "key-a", path)
            assert status == 200
            assert headers == {
                "x-ratelimit-limit-requests": "2",
                "x-ratelimit-remaining-requests": remaining,
                "x-ratelimit-reset-requests": reset,
            }
        status, headers, body = await ask(at, "key-a", path)
        assert status == 429
        assert headers["retry-after"] == "30"
        assert headers["x-ratelimit-remaining-requests"] == "0"
        assert "2 requests a minute" in body["error"]["message"]
        assert body["error"]["type"] == "rate_limit_error"
        if path == "/v1/messages":
            assert body["type"] == "error"
        else:
            assert body["error"]["code"] == "requests_per_minute"
        assert len(at.engine.sequences) == 2
        assert (await ask(at, "key-b", path))[:2] == (200, {})
        clock.now += 30
        assert (await ask(at, "key-a", path))[0] == 200


async def test_tokens_per_minute() -> None:
    """Tokens evaluated and generated, cached ones not; known at the end, so the next request waits until all are paid."""
    clock, engine = Clock(), FakeEngine(saying("x" * 9), cached=lambda request: 3)
    async with serving(engine, keys=ApiKeys(["alice:key-a tpm=6"]), clock=clock) as at:
        status, headers, body = await ask(at, "key-a", max_tokens=20)
        used = body["usage"]["total_tokens"] - 3
        assert (status, used > 6) == (200, True)
        assert headers["x-ratelimit-limit-tokens"] == "6"
        assert headers["x-ratelimit-remaining-tokens"] == "0"
        status, headers, body = await ask(at, "key-a")
        assert (status, body["error"]["code"]) == (429, "tokens_per_minute")
        wait_s = (used - 6 + 1) * 10  # a token comes back every ten seconds
        assert headers["retry-after"] == str(wait_s)
        clock.now += wait_s - 1
        assert (await ask(at, "key-a"))[0] == 429
        clock.now += 1
        assert (await ask(at, "key-a"))[0] == 200


async def test_a_stream_is_charged_at_its_end() -> None:
    """Its headers go out before its tokens are known. A client that leaves pays for what was made."""
    clock, engine = Clock(), FakeEngine()
    keys = ApiKeys(["alice:key-a tpm=1000"])
    alice = keys.tenant_of("key-a")
    assert alice is not None
    async with serving(engine, keys=keys, clock=clock) as at:
        asked = asyncio.create_task(ask(at, "key-a", stream=True, max_tokens=20))
        sequence = await engine.submitted.get()
        for letter in b"word":
            sequence.say(letter)
        assert alice.headers(clock())["x-ratelimit-remaining-tokens"] == "1000"
        sequence.end(FinishReason.STOP)
        status, headers, _ = await asked
        assert (status, headers["x-ratelimit-remaining-tokens"]) == (200, "1000")
        used = len(sequence.request.prompt) + 4
        assert alice.headers(clock())["x-ratelimit-remaining-tokens"] == str(1000 - used)

        asked = asyncio.create_task(ask(at, "key-a", stream=True, max_tokens=20))
        sequence = await engine.submitted.get()
        sequence.say(65)
        asked.cancel()
        await engine.cancelled.get()
        await running(alice, 0)
        assert alice.headers(clock())["x-ratelimit-remaining-tokens"] == str(1000 - 2 * used + 3)


@pytest.mark.parametrize("leaves", [False, True])
async def test_parallel_requests(leaves: bool) -> None:
    """As many as may run, streams included; an end makes a place free, and so does a client that leaves."""
    engine, keys = FakeEngine(), ApiKeys(["alice:key-a parallel=2", "alice:key-a2 parallel=2"])
    alice = keys.tenant_of("key-a")
    assert alice is not None
    async with serving(engine, keys=keys) as at:
        first = asyncio.create_task(ask(at, "key-a", stream=True))
        one = await engine.submitted.get()
        second = asyncio.create_task(ask(at, "key-a2"))
        two = await engine.submitted.get()
        status, headers, body = await ask(at, "key-a")
        assert (status, body["error"]["code"], headers) == (429, "parallel_requests", {"retry-after": "1"})
        if leaves:
            first.cancel()
            await engine.cancelled.get()
        else:
            one.end(FinishReason.STOP)
            await first
        await running(alice, 1)
        third = asyncio.create_task(ask(at, "key-a"))
        (await engine.submitted.get()).end(FinishReason.STOP)
        two.end(FinishReason.STOP)
        assert [(await second)[0], (await third)[0]] == [200, 200]
    assert alice.num_running == 0


async def test_failed_requests_count() -> None:
    """A bad body uses up a request and frees its place; looking at the server with GET uses nothing."""
    async with serving(FakeEngine(saying("x")), keys=ApiKeys(["alice:key-a rpm=2 parallel=1"]), clock=Clock()) as at:
        for _ in range(5):
            async with at.client.get("/v1/models", headers={"x-api-key": "key-a"}) as response:
                assert response.status == 200
                assert response.headers["x-ratelimit-remaining-requests"] == "2"
        assert [(await ask(at, "key-a", temperature=-1))[0] for _ in range(3)] == [400, 400, 429]


async def test_the_queue_knows_the_tenant() -> None:
    """The name and the share of the queue reach the engine with every answer; without a key, or a name, there is neither."""
    engine = FakeEngine(saying("x"))
    asked = []

    def room(newcomers: int, tenant: str, queue_share: float) -> None:
        asked.append((newcomers, tenant, queue_share))

    engine.check_capacity = room  # type: ignore[method-assign]
    async with serving(engine, keys=ApiKeys(["alice:key-a share=0.5", "key-b"])) as at:
        for path in BODIES:
            assert (await ask(at, "key-a", path))[0] == 200
        assert (await ask(at, "key-b", n=2))[0] == 200
    assert asked == [(1, "alice", 0.5)] * len(BODIES) + [(2, "", 1.0)]
    told = [(sequence.request.tenant, sequence.request.queue_share) for sequence in engine.sequences]
    assert told == [("alice", 0.5)] * len(BODIES) + [("", 1.0)] * 2


async def test_a_share_of_the_queue_that_is_full() -> None:
    """The code tells it from a queue that is full for all."""
    engine = FakeEngine(saying("x"))
    async with serving(engine, keys=ApiKeys(["alice:key-a share=0.5"])) as at:
        for code in ("queue_share", "queue_full"):
            engine.refusal = QueueFullError("full", retry_after_s=2.0, code=code)
            status, headers, body = await ask(at, "key-a")
            assert (status, body["error"]["code"], headers["retry-after"]) == (429, code, "2")


async def test_log_and_metrics() -> None:
    """The name is in the line and in the labels, the key in neither; a request without a key, or with a key that has no name, has
    no name."""
    keys = ApiKeys(["alice:key-a rpm=1", "bob:key-b", "key-c"])
    async with serving(FakeEngine(saying("xx"), cached=lambda request: 1), keys=keys, clock=Clock()) as at:
        for key in ("key-a", "key-a", "key-b", "key-c", "key-d"):
            await ask(at, key)
        async with at.client.get("/metrics") as response:
            text = await response.text()
        lines = at.log_lines()
        assert [(line.get("key"), line["status"], line.get("error")) for line in lines[:5]] == [
            ("alice", 200, None),
            ("alice", 429, "requests_per_minute"),
            ("bob", 200, None),
            (None, 200, None),
            (None, 401, "invalid_api_key"),
        ]
        assert "key-" not in at.log.getvalue()
        assert "key-" not in text
    for line in (
        'headrace_http_requests_total{key="alice",route="/v1/completions",status="200"} 1.0',
        'headrace_http_requests_total{key="alice",route="/v1/completions",status="429"} 1.0',
        'headrace_http_requests_total{key="",route="/v1/completions",status="401"} 1.0',
        'headrace_requests_refused_total{key="alice",reason="requests_per_minute"} 1.0',
        'headrace_requests_refused_total{key="",reason="queue_full"} 0.0',
        'headrace_key_tokens_total{key="bob",kind="generated"} 2.0',
        'headrace_key_tokens_total{key="bob",kind="evaluated"} 4.0',
    ):
        assert line in text.splitlines(), line


async def test_replaced_limits_count_at_once() -> None:
    keys = ApiKeys(["alice:key-a rpm=1"])
    async with serving(FakeEngine(saying("x")), keys=keys, clock=Clock()) as at:
        assert [(await ask(at, "key-a"))[0] for _ in range(2)] == [200, 429]
        keys.replace(ApiKeys(["alice:key-a"]))
        assert [(await ask(at, "key-a"))[:2] for _ in range(2)] == [(200, {})] * 2


async def test_the_sdks_know_the_refusal() -> None:
    """OpenAI's and Anthropic's raise their own exceptions, and read how long to wait."""
    keys = ApiKeys(["alice:key-a rpm=1"])
    async with serving(FakeEngine(saying("x")), keys=keys, clock=Clock()) as at:
        await ask(at, "key-a")
        async with openai.AsyncOpenAI(base_url=f"{at.url}/v1", api_key="key-a", max_retries=0) as client:
            with pytest.raises(openai.RateLimitError) as refused:
                await client.completions.create(model="m", prompt="a")
            assert (refused.value.code, refused.value.response.headers["retry-after"]) == ("requests_per_minute", "60")
        async with anthropic.AsyncAnthropic(base_url=at.url, api_key="key-a", max_retries=0) as other:
            with pytest.raises(anthropic.RateLimitError):
                await other.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "a"}])


async def test_a_browser_may_read_the_headers() -> None:
    async with serving(FakeEngine(saying("x")), keys=ApiKeys(["alice:key-a rpm=9"]), cors_origins=["*"]) as at:
        headers = {"x-api-key": "key-a", "Origin": "https://chat.example.org"}
        async with at.client.post(COMPLETIONS, json=BODIES[COMPLETIONS], headers=headers) as response:
            exposed = response.headers["Access-Control-Expose-Headers"].split(", ")
    assert {"Retry-After", "x-ratelimit-remaining-requests", "x-ratelimit-reset-tokens"} <= set(exposed)
