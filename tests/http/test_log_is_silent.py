"""Nothing that a client has sent is in the log, whatever is wrong with it: a word is put everywhere, and looked for everywhere."""

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import inspect

from svc.http.anthropic.schema import MessagesIn
from svc.http.api_keys import ApiKeys
from svc.http.known_fields import KNOWN_FIELDS
from svc.http.log_fields import loggable
from svc.http.responses.schema import ResponsesIn
from svc.http.routes import ROUTES
from svc.http.schema import ApplyTemplateIn, ChatIn, CompletionIn, DetokenizeIn, NativeIn, TokenizeIn
from tests.fakes.fake_engine import FakeEngine, saying
from tests.http.harness import Harness, serving
from tests.http.test_protocol import ASK, NOT_HTTP, REFUSED, Client

WORD = "SECRET"
SCHEMAS = {
    "/v1/chat/completions": ChatIn,
    "/v1/completions": CompletionIn,
    "/completion": NativeIn,
    "/apply-template": ApplyTemplateIn,
    "/tokenize": TokenizeIn,
    "/detokenize": DetokenizeIn,
    "/v1/responses": ResponsesIn,
    "/v1/responses/input_tokens": ResponsesIn,
    "/v1/messages": MessagesIn,
    "/v1/messages/count_tokens": MessagesIn,
}
SOUND: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": WORD}]},
    "/v1/completions": {"prompt": WORD},
    "/completion": {"prompt": WORD},
    "/apply-template": {"messages": [{"role": "user", "content": WORD}]},
    "/tokenize": {"content": WORD},
    "/detokenize": {"tokens": [1]},
    "/v1/responses": {"input": WORD},
    "/v1/responses/input_tokens": {"input": WORD},
    "/v1/messages": {"messages": [{"role": "user", "content": WORD}]},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": WORD}]},
}
CALL = {"id": WORD, "type": WORD, "function": {"name": WORD, "arguments": WORD}}
# What may stand in a field: texts, keys, and what a message or a tool can be, deep and shallow.
VALUES: list[Any] = [
    WORD,
    WORD * 400,
    [WORD],
    [[WORD, 1]],
    [[WORD * 400, WORD]],
    {WORD: 1},
    {WORD: WORD},
    {WORD: {WORD: [WORD]}},
    {"type": WORD},
    {"type": "function", "function": {"name": WORD}},
    {"prompt_string": [WORD]},
    {"prompt_string": WORD, "multimodal_data": [WORD]},
    {"include_usage": WORD},
    {"messages": WORD, WORD: WORD},
    [{"role": WORD, "content": WORD}],
    [{"role": "user", "content": {WORD: WORD}}],
    [{"role": "user", "content": [{"type": WORD, "text": WORD}]}],
    [{"role": "user", "content": [{"type": "text", "text": {WORD: WORD}}]}],
    [{"role": "user", WORD: WORD}],
    [{"role": "assistant", "content": WORD, "tool_calls": WORD}],
    [{"role": "assistant", "content": WORD, "tool_calls": [CALL]}],
    [{"role": "assistant", "content": WORD, "tool_calls": [{**CALL, "function": WORD}]}],
    [{"role": "tool", "content": WORD, "tool_call_id": [WORD]}],
    [{"type": "function", "function": {"name": WORD, "parameters": WORD}}],
    [{"type": WORD}],
    [WORD, 5, [WORD], {WORD: None}],
    10**400,
    1e300,
    -1,
    None,
]
KEYS = ApiKeys(["somebody:key", f"other:{WORD} rpm=5"])


def bodies(path: str) -> Iterator[bytes]:
    """Every field that any route knows with a word, those of this one with every value, and what is no JSON or no object."""
    own = [field.name for field in inspect.type_info(SCHEMAS[path]).fields]
    for name in own:
        for value in VALUES:
            yield json.dumps({**SOUND[path], name: value}).encode()
    for known in KNOWN_FIELDS:
        for value in (WORD, [WORD], {WORD: WORD}):
            yield json.dumps({**SOUND[path], known.name: value}).encode()
    yield json.dumps({**SOUND[path], WORD: WORD}).encode()
    yield json.dumps(WORD).encode()
    yield json.dumps([WORD]).encode()
    yield json.dumps({WORD: WORD}).encode()
    yield f'{{"prompt": "{WORD}'.encode()
    yield f'{{"messages": {WORD}}}'.encode()
    yield f'{{"{WORD}": "\\x"}}'.encode()


def check(at: Harness, caplog: pytest.LogCaptureFixture) -> None:
    assert WORD not in at.log.getvalue()
    for record in caplog.records:
        assert WORD not in logging.Formatter().format(record)


@pytest.mark.parametrize("path", SCHEMAS)
async def test_bodies(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """Field by field, and a stream."""
    async with serving(FakeEngine(saying(WORD))) as at:
        for body in [*bodies(path), json.dumps({**SOUND[path], "stream": True}).encode()]:
            async with at.client.post(path, data=body) as response:
                assert response.status in (200, 400)
                await response.read()
        assert len(at.log_lines()) > len(VALUES)
        check(at, caplog)


async def test_heads(caplog: pytest.LogCaptureFixture) -> None:
    """Paths, queries, methods and headers, with a key and without, on every route."""
    names = [
        "Authorization", "X-Api-Key", "Content-Type", "Content-Encoding", "Expect", "Host", "Origin", "Accept", "User-Agent",
        "X-Forwarded-For", "X-Request-Id", "Access-Control-Request-Method", "Access-Control-Request-Headers", "Connection",
        "Upgrade", "TE", WORD,
    ]  # fmt: skip
    async with serving(FakeEngine(saying(WORD)), keys=KEYS, cors_origins=["*"]) as at:
        routes = {(route.method, route.path) for route in ROUTES} | {("GET", f"/{WORD}"), ("POST", f"/v1/{WORD}/chat")}
        for method, path in routes:
            target = path.replace("{model:.+}", WORD) + f"?{WORD}={WORD}"
            for headers in [{}, {"X-Api-Key": "key"}, *({name: f"Bearer {WORD}"} for name in names)]:
                async with Client(at) as client:
                    lines = "".join(f"{name}: {value}\r\n" for name, value in ({"Host": "x"} | headers).items())
                    client.send(f"{method} {target} HTTP/1.1\r\n{lines}Content-Length: 0\r\nConnection: close\r\n\r\n".encode())
                    await client.response()
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", WORD):
            async with Client(at) as client:
                client.send(f"{method} /{WORD} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                await client.response()
        check(at, caplog)


async def test_what_is_no_http(caplog: pytest.LogCaptureFixture) -> None:
    """Second bodies behind the first, keys with control characters, broken chunks, and clients that leave in the middle."""
    body = json.dumps({"prompt": WORD}).encode()
    second = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n" + body
    raws = [*NOT_HTTP.values(), *(raw for raw, _, _ in REFUSED.values()), second]
    async with serving(FakeEngine(saying(WORD)), body_timeout_s=0.01) as at:
        for raw in raws:
            for cut in (len(raw), len(raw) // 2, len(raw) - 1):
                for half_close in (False, True):
                    async with Client(at) as client:
                        client.send(raw[:cut], half_close=half_close)
                        await asyncio.sleep(0)
        for raw in raws:
            async with Client(at) as client:
                client.send(ASK + raw)
                await client.response()
                await client.response()
        check(at, caplog)


@pytest.mark.parametrize(
    ("param", "logged"),
    [
        ("messages[2].content[0].type", "messages[2].content[0].type"),
        ("prompt[3][12]", "prompt[3][12]"),
        ("logit_bias.my prompt", "logit_bias.*"),
        ("logit_bias.a.b[c", "logit_bias.*.*"),
        ("logit_bias[4]", "logit_bias[4]"),
        ("chat_template_kwargs.messages", "chat_template_kwargs.messages"),
        ("chat_template_kwargs.secret", "chat_template_kwargs.*"),
        ("my prompt", "*"),
        ("tools[0].function.parameters.properties.secret", "tools[0].function.*.*.*"),
        ("stream_options.include_usage", "stream_options.include_usage"),
        (".".join(["stop"] * 99), ".".join(["stop"] * 8)),
        ("stop[" + "9" * 500 + "]", "*"),
    ],
)
def test_names_of_fields(param: str, logged: str) -> None:
    """Ours are kept, indices too; what a client has made up is an asterisk."""
    assert loggable(param) == logged
