"""Anthropic's API, with its own SDK: blocks, streams, tools, thinking, errors."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest

from svc.errors import QueueFullError
from svc.http.api_keys import ApiKeys
from svc.http.text.chat_template import ChatTemplate
from svc.slots.events import FinishReason
from tests.fakes.fake_engine import FakeEngine, obedient, saying
from tests.fakes.fake_text import REASONING_CHATML
from tests.http.harness import TOKENIZER, Harness, serving

REASONING = ChatTemplate(REASONING_CHATML, TOKENIZER)
USER: Any = [{"role": "user", "content": "hi"}]
WEATHER: Any = {
    "name": "weather",
    "description": "Tells it.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 5}, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": 2}}\n</tool_call>'
SAID = f"Hm.\n</think>\n\nLet me see.\n{CALL}"


@asynccontextmanager
async def sdk(at: Harness, key: str = "none") -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=at.url, api_key=key, max_retries=0) as client:
        yield client


def _prompt(at: Harness) -> str:
    return TOKENIZER.decode(at.engine.sequences[-1].request.prompt)


def _plain(blocks: Any) -> list[dict[str, Any]]:
    names = ("type", "text", "thinking", "name", "input")
    return [{name: getattr(block, name) for name in names if hasattr(block, name)} for block in blocks]


BLOCKS = [
    {"type": "thinking", "thinking": "Hm."},
    {"type": "text", "text": "Let me see."},
    {"type": "tool_use", "name": "weather", "input": {"city": "Köln", "days": 2}},
]


async def test_a_whole_message() -> None:
    """Thinking, text and a call are blocks in their order; tokens that the cache spared are told apart."""
    async with serving(FakeEngine(saying(SAID), cached=lambda request: 5), template=REASONING) as at, sdk(at) as client:
        message = await client.messages.create(model="m", max_tokens=500, messages=USER, tools=[WEATHER])
        num_prompt = len(at.engine.sequences[0].request.prompt)
    assert _plain(message.content) == BLOCKS
    assert (message.role, message.stop_reason, message.stop_sequence) == ("assistant", "tool_use", None)
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (num_prompt - 5, 5)
    assert message.usage.output_tokens == len(SAID.encode())
    assert message.content[2].id.startswith("call_")  # type: ignore[union-attr]


async def test_a_stream_is_the_whole_message() -> None:
    """The SDK's own accumulation gives the same blocks, reason and usage; the events come in Anthropic's order."""
    asked: Any = {"model": "m", "max_tokens": 500, "messages": USER, "tools": [WEATHER]}
    engine = FakeEngine(saying(SAID), cached=lambda request: 5)
    async with serving(engine, template=REASONING) as at, sdk(at) as client, client.messages.stream(**asked) as stream:
        kinds = [event.type async for event in stream]
        message = await stream.get_final_message()
    assert _plain(message.content) == BLOCKS
    assert (message.stop_reason, message.usage.output_tokens) == ("tool_use", len(SAID.encode()))
    assert message.usage.cache_read_input_tokens == 5
    outer = [kind for kind in kinds if kind.startswith(("message_", "content_block_st"))]
    block = ["content_block_start", "content_block_stop"]
    assert outer == ["message_start", *block * 3, "message_delta", "message_stop"]


@pytest.mark.parametrize(
    ("text", "fields", "reason", "sequence"),
    [
        ("Hello", {}, "end_turn", None),
        ("Hello", {"max_tokens": 3}, "max_tokens", None),
        ("Hello END more", {"stop_sequences": ["END"]}, "stop_sequence", "END"),
        (CALL, {"tools": [WEATHER]}, "tool_use", None),
    ],
)
async def test_why_an_answer_ended(text: str, fields: Any, reason: str, sequence: str | None) -> None:
    """In Anthropic's words, whole and streamed."""
    async with serving(FakeEngine(saying(text))) as at, sdk(at) as client:
        arguments = {"model": "m", "max_tokens": 200, "messages": USER} | fields
        whole = await client.messages.create(**arguments)
        async with client.messages.stream(**arguments) as stream:
            streamed = await stream.get_final_message()
    assert (whole.stop_reason, whole.stop_sequence) == (streamed.stop_reason, streamed.stop_sequence) == (reason, sequence)


async def test_a_round_with_a_tool() -> None:
    """What the client sends back makes the prompt that chat would make: call, result, and what the user says beside it."""
    answer = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Köln", "days": 2}},
    ]
    results: Any = [
        {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "sunny"}], "is_error": False},
        {"type": "text", "text": "And?", "cache_control": {"type": "ephemeral"}},
    ]
    messages: Any = [*USER, {"role": "assistant", "content": answer}, {"role": "user", "content": results}]
    async with serving(FakeEngine(saying("x")), template=REASONING) as at, sdk(at) as client:
        await client.messages.create(model="m", max_tokens=5, messages=messages, tools=[WEATHER], system="Be short.")
        prompt = _prompt(at)
    expected = (
        "<|im_start|>tools\n1<|im_end|>\n<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nHm.\n</think>\n\nLet me see."
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": 2}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\nsunny<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )
    assert prompt == expected


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
async def test_a_tool_must_be_called(choice: Any) -> None:
    """By grammar, and only once where parallel use is off."""
    choice = choice | {"disable_parallel_tool_use": True}
    async with serving(FakeEngine(obedient(4))) as at, sdk(at) as client:
        message = await client.messages.create(model="m", max_tokens=900, messages=USER, tools=[WEATHER], tool_choice=choice)
    (block,) = message.content
    assert (block.type, message.stop_reason) == ("tool_use", "tool_use")
    assert set(block.input) == {"city", "days"}  # type: ignore[arg-type]


async def test_a_call_that_was_cut_off() -> None:
    """Arguments that are no JSON yet are given as a text in the input."""
    text = CALL[: CALL.index(", ") + 20]
    async with serving(FakeEngine(saying(CALL))) as at, sdk(at) as client:
        message = await client.messages.create(model="m", max_tokens=len(text.encode()), messages=USER, tools=[WEATHER])
    assert message.stop_reason == "max_tokens"
    assert isinstance(message.content[0].input, dict)  # type: ignore[union-attr]


async def test_thinking_and_its_budget() -> None:
    """`thinking` turns it off, and a budget is forced."""
    async with serving(FakeEngine(saying("x")), template=REASONING) as at, sdk(at) as client:
        await client.messages.create(model="m", max_tokens=5, messages=USER, thinking={"type": "disabled"})
        assert _prompt(at).endswith("</think>\n\n")
        await client.messages.create(model="m", max_tokens=5, messages=USER, thinking={"type": "enabled", "budget_tokens": 1024})
        assert _prompt(at).endswith("<think>\n")
        assert at.engine.sequences[-1].request.constraint is not None


async def test_a_schema_for_the_answer() -> None:
    """`output_config.format`, and its older name."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    form = {"type": "json_schema", "schema": schema}
    async with serving(FakeEngine(obedient(1))) as at:
        for fields in ({"output_config": {"format": form}}, {"output_format": form}):
            status, message = await at.post("/v1/messages", {"messages": USER, "max_tokens": 99} | fields)
            assert (status, message["content"][0]["text"].replace(" ", "")[:6]) == (200, '{"ok":')


async def test_a_billing_header_does_not_reach_the_prompt() -> None:
    """A line that changes with each request would spoil the cache for all behind it; the report says that it was left out."""
    system: Any = [{"type": "text", "text": "x-anthropic-billing-header: cch=1234;"}, {"type": "text", "text": "You are one."}]
    async with serving(FakeEngine(saying("x"))) as at, sdk(at) as client:
        message = await client.messages.create(
            model="m", max_tokens=5, messages=USER, system=system, extra_body={"cache_report": True}
        )
        assert _prompt(at).startswith("<|im_start|>system\nYou are one.<|im_end|>\n")
        assert message.headrace["masked"] == ["x-anthropic-billing-header"]  # type: ignore[attr-defined]
        await client.messages.create(model="m", max_tokens=5, messages=USER, system="x-anthropic-billing-header: 1\nYou are one.")
        assert _prompt(at).startswith("<|im_start|>system\nYou are one.<|im_end|>\n")
        chat = {"messages": [{"role": "system", "content": "x-anthropic-billing-header: 1\nYou are one."}, *USER]}
        await at.post("/v1/chat/completions", chat)
        assert "billing" in _prompt(at)


@pytest.mark.parametrize(("where", "seen"), [("all", False), ("off", True), ("messages", True)])
async def test_the_operator_says_where_headers_are_masked(where: Any, seen: bool) -> None:
    """On every route, on none, or on Anthropic's; in parts too."""
    chat = {"messages": [{"role": "system", "content": [{"type": "text", "text": "x-anthropic-billing-header: 1\nYou"}]}, *USER]}
    async with serving(FakeEngine(saying("x")), mask_headers=where) as at:
        assert (await at.post("/v1/chat/completions", chat))[0] == 200
        assert ("billing" in _prompt(at)) == seen
        await at.post("/v1/messages", {"messages": USER, "max_tokens": 5, "system": "x-anthropic-billing-header: 1\nYou"})
        assert ("billing" in _prompt(at)) == (where == "off")


async def test_counting_tokens() -> None:
    """As many as the prompt of the same request has."""
    async with serving(FakeEngine(saying("x"))) as at, sdk(at) as client:
        counted = await client.messages.count_tokens(model="m", messages=USER, tools=[WEATHER], system="Be short.")
        await client.messages.create(model="m", max_tokens=5, messages=USER, tools=[WEATHER], system="Be short.")
        assert counted.input_tokens == len(at.engine.sequences[0].request.prompt)


async def test_the_final_message_of_the_assistant_is_continued() -> None:
    """Anthropic's way to say how an answer begins."""
    async with serving(FakeEngine(saying("x"))) as at, sdk(at) as client:
        await client.messages.create(model="m", max_tokens=5, messages=[*USER, {"role": "assistant", "content": "{"}])
        assert _prompt(at).endswith("<|im_start|>assistant\n{")


async def test_errors_are_anthropics() -> None:
    """Class, shape and message; in a stream an error event."""
    async with serving(FakeEngine(saying("x")), keys=ApiKeys(["key"])) as at:
        async with sdk(at, "wrong") as client:
            with pytest.raises(anthropic.AuthenticationError):
                await client.messages.create(model="m", max_tokens=5, messages=USER)
        async with sdk(at, "key") as client:
            image: Any = [{"role": "user", "content": [{"type": "image", "source": {}}]}]
            with pytest.raises(anthropic.BadRequestError) as error:
                await client.messages.create(model="m", max_tokens=5, messages=image)
            assert error.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
            assert "messages[0].content[0].type" in str(error.value)
            at.engine.refusal = QueueFullError("full", retry_after_s=3)
            with pytest.raises(anthropic.RateLimitError):
                await client.messages.create(model="m", max_tokens=5, messages=USER)


async def test_an_error_in_a_stream() -> None:
    """After the stream has begun, the SDK raises what the error event says."""
    asked: Any = {"model": "m", "max_tokens": 50, "messages": USER}
    async with serving(FakeEngine()) as at, sdk(at) as client, client.messages.stream(**asked) as stream:
        sequence = await at.engine.submitted.get()
        sequence.say(ord("a"))
        sequence.end(FinishReason.ERROR, "device failed")
        with pytest.raises(anthropic.APIStatusError):
            await stream.get_final_message()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "x"}]}]}, "messages[0].content[0].name"),
        ({"system": [5]}, "system[0]"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{}]}, "tools[0].name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "maybe"}}, "tool_choice.type"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        ({"output_config": {"effort": 5}}, "output_config.effort"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"stop_sequences": ["x" * 2000]}, "stop_sequences[0]"),
    ],
)
async def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    """The message names the place in Anthropic's own form of the request."""
    async with serving(FakeEngine(saying("x"))) as at:
        status, body = await at.post("/v1/messages", {"messages": USER, "max_tokens": 5} | fields)
    assert (status, body["type"], body["error"]["type"]) == (400, "error", "invalid_request_error")
    assert param in body["error"]["message"]
    assert at.engine.sequences == []
