"""Everything a client can get wrong: the status, and an OpenAI-shaped error that names the field."""

import asyncio
import gzip
import json
from typing import Any

import pytest

from svc.errors import DrainingError, QueueFullError
from svc.http.json_scan import MAX_DEPTH
from tests.fakes.fake_engine import FakeEngine, saying
from tests.fakes.fake_text import VOCAB_SIZE
from tests.http.harness import Harness, serving

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def _check_shape(body: Any) -> None:
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1), ("temperature", 1e9), ("temperature", "hot"), ("temperature", [1]), ("top_p", 1.01), ("top_p", -1),
        ("min_p", 2), ("top_k", -2), ("top_k", 1.5), ("n", 0), ("n", 17), ("n", 10**30), ("n", True), ("seed", 2**64),
        ("seed", 10**4000), ("max_tokens", -2), ("max_tokens", 2.5), ("max_tokens", "5"), ("max_completion_tokens", -5),
        ("stop", 5), ("stop_token_ids", [1.5]), ("stop_token_ids", [1] * 1025), ("n", 1e300),
        ("stop", ["x"] * 65), ("stop", "x" * 1001), ("top_logprobs", 5), ("stream", "yes"), ("stop_token_ids", [VOCAB_SIZE]),
        ("logit_bias", 5), ("logit_bias", [[1, 2]] * 1025), ("logit_bias", {str(i): False for i in range(VOCAB_SIZE)}),
        ("presence_penalty", 101), ("frequency_penalty", -101), ("frequency_penalty", "much"), ("repetition_penalty", 0),
        ("repetition_penalty", -1), ("repeat_penalty", 1000), ("repeat_last_n", -2), ("min_tokens", -1), ("min_tokens", 1.5),
        ("response_format", 5), ("reasoning_format", "x"), ("thinking_budget", 1.5), ("thinking_budget", -2),
        ("guided_choice", [5]), ("guided_choice", [""]), ("guided_choice", "x"), ("regex", "("), ("json_schema", "{"),
        ("json_schema", 7),
        ("grammar", "x"), ("guided_json", {"type": "array", "uniqueItems": True}), ("guided_json", []), ("format", "xml"),
        ("audio", {"voice": "a"}), ("modalities", ["text", "audio"]), ("tool_choice", "required"), ("functions", [{"name": "f"}]),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}), ("grammar", "root ::= x"), ("tool_choice", "f"),
        ("messages", []), ("messages", "hi"), ("messages", None), ("model", 5), ("chat_template_kwargs", "x"), ("tools", {}),
    ],
)  # fmt: skip
async def test_bad_chat_field_is_named(field: str, value: Any) -> None:
    """A value of the wrong type, out of range, or asking for what is not supported: 400 with `param`, and nothing submitted."""
    async with serving(FakeEngine(saying("x"))) as at:
        status, body = await at.post(CHAT, {"messages": USER, field: value})
    assert status == 400
    _check_shape(body)
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["param"] == field
    assert field in body["error"]["message"]
    assert at.engine.sequences == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [*USER, 5]}, "messages[1]"),
        ({"messages": USER, "stop": ["a", 1]}, "stop[1]"),
        ({"messages": USER, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": USER, "logit_bias": {str(VOCAB_SIZE): 1}}, f"logit_bias.{VOCAB_SIZE}"),
        ({"messages": USER, "logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"messages": USER, "logit_bias": {"5": True}}, "logit_bias.5"),
        ({"messages": USER, "logit_bias": [[5, 1], [6]]}, "logit_bias[1]"),
        ({"messages": USER, "logit_bias": {"-1": 1}}, "logit_bias.-1"),
        ({"messages": USER, "logit_bias": {"9" * 5000: 1}}, "logit_bias." + "9" * 40),
        ({"messages": USER, "logit_bias": {"": 1}}, "logit_bias."),
        ({"messages": USER, "logit_bias": {"1.5": 1}}, "logit_bias.1.5"),
        ({"messages": USER, "logit_bias": {"5": 1, " 6": 1}}, "logit_bias. 6"),
        ({"messages": USER, "logit_bias": {"+7": 1}}, "logit_bias.+7"),
        ({"messages": USER, "logit_bias": {"-1e3": 1}}, "logit_bias.-1e3"),
        ({"messages": USER, "logit_bias": {".5": 1}}, "logit_bias..5"),
        ({"messages": USER, "logit_bias": [["x" * 1001, 1]]}, "logit_bias[0]"),
        ({"messages": USER, "logit_bias": [[-1, 1]]}, "logit_bias[0]"),
        ({"messages": USER, "response_format": {"type": "structural_tag"}}, "response_format.type"),
        ({"messages": USER, "response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"messages": USER, "response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        ({"messages": USER, "structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"messages": USER, "structured_outputs": {"json": 5}}, "structured_outputs.json"),
        ({"messages": USER, "regex": "a", "json_schema": {"type": "object"}}, "regex"),
        ({"messages": USER, "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"messages": USER, "tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"messages": USER, "tools": [{"type": "function", "function": "f"}]}, "tools[0].function"),
        ({"messages": USER, "tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function.name"),
        ({"messages": USER, "tools": TOOLS, "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"messages": USER, "tools": TOOLS, "grammar": 'root ::= "x"'}, "grammar"),
        ({"messages": USER, "repeat_penalty": 1.1, "repetition_penalty": 1.2}, "repeat_penalty"),
        ({"messages": USER, "min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"messages": USER, "stream_options": {"include_usage": 3}}, "stream_options.include_usage"),
        ({"messages": [*USER, {"role": "assistant", "content": "refuse"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ],
)
async def test_path_of_a_nested_field(body: Any, param: str) -> None:
    """`param` is the path to the culprit."""
    async with serving(FakeEngine(saying("x"))) as at:
        status, answer = await at.post(CHAT, body)
    assert (status, answer["error"]["param"]) == (400, param)


DEEP = {
    "messages": b"[%s]", "tools": b"[%s]", "tool_choice": b"%s", "logit_bias": b"%s", "chat_template_kwargs": b"%s", "other": b"%s",
    "response_format": b'{"type":"json_schema","json_schema":{"name":"a","schema":%s}}',
}  # fmt: skip


@pytest.mark.parametrize("opening", [b'{"a":', b'{"properties":{"a":', b'{"type":"function","function":{"name":"a","parameters":'])
@pytest.mark.parametrize("levels", [95, 190, 250, 990, 5000])
@pytest.mark.parametrize("field", DEEP)
async def test_deep_values(field: str, levels: int, opening: bytes) -> None:
    """None is a failure of ours, whatever looks at the field: all that recurses ends before its limit."""
    repeats = levels // opening.count(b"{")
    deep = opening * repeats + b"{}" + b"}" * repeats * opening.count(b"{")
    fields = {"messages": json.dumps(USER).encode(), field: DEEP[field] % deep}
    body = b"{" + b",".join(b'"' + name.encode() + b'":' + value for name, value in fields.items()) + b"}"
    async with serving(FakeEngine(saying("x"))) as at, at.client.post(CHAT, data=body) as response:
        answer = await response.json()
    assert response.status in ((200, 400) if levels < MAX_DEPTH else (400,))
    if response.status == 400:
        _check_shape(answer)
        assert levels < MAX_DEPTH or answer["error"]["param"] == field


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [1, [2]]}, "prompt[1]"),
        ({"prompt": [[1], [2, "x"]]}, "prompt[1][1]"),
        ({"prompt": [1, -1]}, "prompt[1]"),
        ({"prompt": [VOCAB_SIZE]}, "prompt[0]"),
        ({"prompt": [[0], [VOCAB_SIZE]]}, "prompt[1][0]"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": [1], "suffix": "b"}, "prompt"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
        ({"prompt": "a", "logprobs": 1, "echo": True}, "echo"),
    ],
)
async def test_bad_completion_field_is_named(body: Any, param: str) -> None:
    """As for chat, for the fields of completions."""
    async with serving(FakeEngine(saying("x"))) as at:
        status, answer = await at.post(COMPLETIONS, body)
    assert status == 400
    _check_shape(answer)
    assert answer["error"]["param"] == param
    assert at.engine.sequences == []


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "raw",
    [
        b"", b"  ", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"messages": NaN}', b'{"prompt": Infinity}', b"[" * 100_000,
        b'{"x":' * 50_000, b'{"prompt": "\xff"}', b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "a", "seed": 1' + b"0" * 6000 + b"}",
        b'{"messages": [{"role": "user", "content": ' + b"[" * 5000 + b"]" * 5000 + b"}]}",
    ],
)  # fmt: skip
async def test_garbage_body(path: str, raw: bytes) -> None:
    """Whatever the bytes are, the answer is a 400 in the usual shape, and the server serves the next request."""
    async with serving(FakeEngine(saying("x"))) as at:
        status, body = await at.post(path, raw)
        assert status == 400
        _check_shape(body)
        await _still_serves(at)


RAW_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"


@pytest.mark.parametrize(
    "raw",
    [
        RAW_HEAD + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n",
        RAW_HEAD + b"Content-Length: -5\r\n\r\n",
        RAW_HEAD + b"\r\n",
        b"\x00\x01\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"a" * 20_000 + b"\r\n\r\n",
    ],
    ids=["chunks", "length", "no body", "no HTTP", "header"],
)
async def test_garbage_protocol(raw: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """What is no proper HTTP gets a 400 and no traceback in the log."""
    async with serving(FakeEngine(saying("x"))) as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(at.url.rsplit(":", 1)[1]))
        writer.write(raw)
        status = await reader.readline()
        writer.close()
        assert status.split()[1] == b"400"
        await _still_serves(at)
        assert "Traceback" not in at.log.getvalue()
    assert all(record.exc_info is None for record in caplog.records)


@pytest.mark.parametrize("body", [gzip.compress(b'{"prompt": "a"}', mtime=0), gzip.compress(b" " * 2**24, mtime=0), b"no gzip"])
async def test_compressed_bodies_are_refused_unexpanded(body: bytes) -> None:
    """What it would be is not looked at: sound, larger than the limit or broken, the answer is the same; `identity` is none."""
    async with serving(FakeEngine(saying("x"))) as at:
        status, answer = await at.post(COMPLETIONS, body, headers={"Content-Encoding": "gzip"})
        assert (status, answer["error"]["code"]) == (415, "unsupported_encoding")
        _check_shape(answer)
        assert (await at.post(COMPLETIONS, {"prompt": "a"}, headers={"Content-Encoding": "Identity"}))[0] == 200


async def _still_serves(at: Harness) -> None:
    assert (await at.post(COMPLETIONS, {"prompt": "a"}))[0] == 200


async def test_prompt_beyond_the_context() -> None:
    """The error has OpenAI's code and its opening words (clients look for both)."""
    async with serving(FakeEngine(saying("x"), context_tokens=10)) as at:
        for path, body, param in ((CHAT, {"messages": USER}, "messages"), (COMPLETIONS, {"prompt": "a" * 11}, "prompt")):
            status, answer = await at.post(path, body)
            assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
            assert answer["error"]["param"] == param
            assert answer["error"]["message"].startswith("This model's maximum context length is")
            assert "exceeds the available context size" in answer["error"]["message"]


@pytest.mark.parametrize("path", ["/completion", "/completions", COMPLETIONS, CHAT, "/v1/responses"])
async def test_overflow_has_llama_servers_type_and_numbers(path: str) -> None:
    """Its clients look for the type and show the numbers, on its own routes and on OpenAI's, beside OpenAI's code."""
    text = "a" * 40
    body = {CHAT: {"messages": [{"role": "user", "content": text}]}, "/v1/responses": {"input": text}}.get(path, {"prompt": text})
    async with serving(FakeEngine(saying("x"), context_tokens=10)) as at:
        for stream in (False, True):
            status, answer = await at.post(path, {**body, "stream": stream})
            error = answer["error"]
            assert (status, error["type"], error["code"]) == (400, "exceed_context_size_error", "context_length_exceeded")
            assert (error["n_ctx"], error["n_prompt_tokens"] > 10) == (10, True)
        _, other = await at.post(path, {**body, "temperature": "hot"})
    assert other["error"]["type"] == "invalid_request_error"
    assert "n_ctx" not in other["error"]


@pytest.mark.parametrize("path", ["/embedding", "/embeddings", "/v1/embeddings", "/rerank", "/v1/reranking"])
async def test_routes_of_other_kinds_of_models(path: str) -> None:
    """Not a 404, which would say that the base URL is wrong."""
    async with serving(FakeEngine(saying("x"))) as at:
        status, answer = await at.post(path, {"input": "a"})
    assert (status, answer["error"]["type"]) == (501, "not_supported_error")
    _check_shape(answer)


async def test_routes_and_methods() -> None:
    """Unknown paths are 404, wrong methods 405 with Allow; HEAD works where GET does."""
    async with serving(FakeEngine(saying("x"))) as at:
        status, body = await at.post("/v1/nothing", {})
        assert (status, body["error"]["code"]) == (404, "unknown_url")
        _check_shape(body)
        async with at.client.get(CHAT) as response:
            assert (response.status, response.headers["Allow"]) == (405, "POST")
            _check_shape(await response.json())
        for path in ("/", "/health", "/v1/models"):
            async with at.client.head(path) as response:
                assert response.status == 200


async def test_models() -> None:
    """The list and the single model, with and without /v1; a name may contain a slash."""
    async with serving(FakeEngine()) as at:
        for prefix in ("/v1", ""):
            _, models = await at.get(f"{prefix}/models")
            assert models["object"] == "list"
            (model,) = models["data"]
            assert (model["id"], model["object"], model["max_model_len"]) == ("tiny/model", "model", 4096)
            assert {"created", "owned_by"} <= set(model)
            assert model["meta"]["n_ctx_train"] == 4096
            assert await at.get(f"{prefix}/models/tiny/model") == (200, model)
        status, body = await at.get("/v1/models/other")
        assert (status, body["error"]["code"]) == (404, "model_not_found")


async def test_model_name_is_checked_only_if_configured() -> None:
    """Agents send fixed names: any is taken, unless the operator wants 404 for another model's."""
    async with serving(FakeEngine(saying("x"))) as at:
        assert (await at.post(CHAT, {"messages": USER, "model": "gpt-4o"}))[0] == 200
    async with serving(FakeEngine(saying("x")), strict_name=True) as at:
        status, body = await at.post(CHAT, {"messages": USER, "model": "gpt-4o"})
        assert (status, body["error"]["code"], body["error"]["param"]) == (404, "model_not_found", "model")
        assert (await at.post(CHAT, {"messages": USER, "model": "tiny/model"}))[0] == 200
        assert (await at.post(CHAT, {"messages": USER}))[0] == 200


async def test_aliases_and_tags() -> None:
    """A request may say any of the names; answers say the first. llama-server lists all of them, and the tags."""
    async with serving(FakeEngine(saying("x")), strict_name=True, aliases=("fast", "a/b"), tags=("code",)) as at:
        _, models = await at.get("/v1/models")
        (model,) = models["data"]
        assert (model["id"], model["aliases"], model["tags"]) == ("tiny/model", ["tiny/model", "fast", "a/b"], ["code"])
        assert await at.get("/v1/models/a/b") == (200, model)
        status, answer = await at.post(CHAT, {"messages": USER, "model": "fast"})
        assert (status, answer["model"]) == (200, "tiny/model")
        assert (await at.post(CHAT, {"messages": USER, "model": "slow"}))[0] == 404
        assert (await at.get("/props"))[1]["model_alias"] == "tiny/model"
    async with serving(FakeEngine()) as at:
        (model,) = (await at.get("/v1/models"))[1]["data"]
    assert (model["aliases"], model["tags"]) == ([], [])


async def test_body_beyond_the_limit() -> None:
    """413 that says the limit."""
    async with serving(FakeEngine(saying("x")), max_body_bytes=1000) as at:
        status, body = await at.post(COMPLETIONS, {"prompt": "a" * 2000})
        assert status == 413
        _check_shape(body)
        assert "1000" in body["error"]["message"]
        await _still_serves(at)


async def test_full_queue_and_draining() -> None:
    """429 and 503 tell when to come back."""
    async with serving(FakeEngine(saying("x"))) as at:
        for refusal, expected, header in (
            (QueueFullError("the queue is full", retry_after_s=2.4), 429, "3"),
            (DrainingError("shutting down"), 503, "5"),
        ):
            at.engine.refusal = refusal
            async with at.client.post(CHAT, json={"messages": USER, "stream": True}) as response:
                assert (response.status, response.headers["Retry-After"]) == (expected, header)
                _check_shape(await response.json())


async def test_refusal_of_one_choice_leaves_none_behind() -> None:
    """When the third of three choices is refused, the first two are cancelled."""
    engine = FakeEngine()
    submit = engine.submit

    def refuse_third(request: Any, on_event: Any) -> Any:
        if request.choice == 2:
            raise QueueFullError("the queue is full", retry_after_s=1)
        return submit(request, on_event)

    engine.submit = refuse_third  # type: ignore[method-assign]
    async with serving(engine) as at:
        status, _ = await at.post(CHAT, {"messages": USER, "n": 3})
    assert status == 429
    assert [sequence.cancelled for sequence in engine.sequences] == [True, True]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": ["a"] * 128, "n": 16}, "n"),
        (COMPLETIONS, {"prompt": ["a"] * 7}, "prompt"),
        ("/completion", {"prompt": ["a"] * 7}, "prompt"),
        (CHAT, {"messages": USER, "n": 7}, "n"),
    ],
)
async def test_more_answers_than_there_can_ever_be(path: str, body: Any, param: str) -> None:
    """A 400 with both numbers in it: a 429 would have the client come back for ever."""
    engine = FakeEngine(saying("x"))
    engine.room = 6
    async with serving(engine) as at:
        status, answer = await at.post(path, body)
        assert (status, answer["error"]["param"]) == (400, param)
        assert "room for 6 at once" in answer["error"]["message"]
        assert engine.sequences == []
        assert (await at.post(CHAT, {"messages": USER, "n": 6}))[0] == 200


async def test_all_answers_or_none_are_submitted() -> None:
    """Room is asked for all answers before the first is submitted."""
    asked: list[int] = []

    def no_room(newcomers: int, tenant: str, queue_share: float) -> None:
        asked.append(newcomers)
        raise QueueFullError("the queue is full", retry_after_s=1)

    engine = FakeEngine(saying("x"))
    engine.check_capacity = no_room  # type: ignore[method-assign]
    async with serving(engine) as at:
        status, _ = await at.post(COMPLETIONS, {"prompt": ["a", "b"], "n": 3})
    assert (status, asked, engine.sequences) == (429, [6], [])


async def test_chat_without_a_template() -> None:
    """A base model serves completions; chat says what is missing."""
    async with serving(FakeEngine(saying("x")), template=False) as at:
        status, body = await at.post(CHAT, {"messages": USER})
        assert (status, body["error"]["code"]) == (400, "no_chat_template")
        await _still_serves(at)


async def test_our_bug_is_a_500_and_logged() -> None:
    """An unexpected exception tells the client nothing but the id under which the log has it."""
    async with serving(FakeEngine(saying("x"))) as at:
        at.engine.refusal = KeyError("secret")
        async with at.client.post(CHAT, json={"messages": USER}, headers={"X-Request-Id": "my-id"}) as response:
            raw = await response.text()
            assert (response.status, response.headers["X-Request-Id"]) == (500, "my-id")
        assert "my-id" in json.loads(raw)["error"]["message"]
        assert "secret" not in raw
        (line,) = at.log_lines("request_failed")
        assert "KeyError: 'secret'" in line["exception"]
        assert line["request_id"] == "my-id"


async def test_request_ids() -> None:
    """A sane id is taken over, anything else replaced; every answer has one, streams and errors too."""
    async with serving(FakeEngine(saying("x"))) as at:
        for sent, kept in (("abc-1", True), ("a" * 129, False), ("with space", False), ("", False)):
            async with at.client.get("/v1/nothing", headers={"X-Request-Id": sent}) as response:
                assert (response.headers["X-Request-Id"] == sent) is kept
                assert response.headers["X-Request-Id"]
        async with at.client.post(CHAT, json={"messages": USER, "stream": True}, headers={"X-Request-Id": "s"}) as response:
            assert response.headers["X-Request-Id"] == "s"
