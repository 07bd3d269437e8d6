"""OpenAI's responses API, with the SDK: items, events, tools, reasoning, errors."""

from typing import Any

import openai
import pytest

from svc.http.responses.conversation import sealed, unsealed
from svc.http.text.chat_template import ChatTemplate
from svc.slots.events import FinishReason
from tests.fakes.fake_engine import FakeEngine, obedient, saying
from tests.fakes.fake_text import CHATML, REASONING_CHATML
from tests.http.harness import TOKENIZER, Harness, parse_sse, serving
from tests.http.test_openai_sdk import sdk

REASONING = ChatTemplate(REASONING_CHATML, TOKENIZER)
NAMING = ChatTemplate(CHATML.replace("tools | length", "tools | map(attribute='function.name') | join(', ')"), TOKENIZER)
PATH = "/v1/responses"
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 5}, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "name": "weather", "description": "Tells it.", "parameters": PARAMETERS, "strict": False}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": 2}}\n</tool_call>'
SAID = f"Hm.\n</think>\n\nLet me see.\n{CALL}"
ITEMS = [("reasoning", "Hm."), ("message", "Let me see."), ("function_call", '{"city": "Köln", "days": 2}')]


def _prompt(at: Harness) -> str:
    return TOKENIZER.decode(at.engine.sequences[-1].request.prompt)


def _plain(output: Any) -> list[tuple[str, str]]:
    return [(item.type, item.arguments if item.type == "function_call" else item.content[0].text) for item in output]


async def test_a_whole_response() -> None:
    """Reasoning, message and call are items in their order; usage tells cached and reasoning tokens."""
    async with serving(FakeEngine(saying(SAID), cached=lambda request: 5), template=REASONING) as at, sdk(at) as client:
        response = await client.responses.create(model="m", input="hi", tools=[WEATHER], store=False)
        num_prompt = len(at.engine.sequences[0].request.prompt)
    assert _plain(response.output) == ITEMS
    assert (response.status, response.output_text) == ("completed", "Let me see.")
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.input_tokens_details.cached_tokens) == (num_prompt, 5)
    assert response.usage.output_tokens == len(SAID.encode())
    assert response.usage.output_tokens_details.reasoning_tokens == len("Hm.\n</think>")
    assert response.usage.total_tokens == num_prompt + len(SAID.encode())


async def test_a_stream_is_the_whole_response() -> None:
    """The SDK's accumulation gives the same items; every delta belongs to an item that was announced, and numbers rise by one."""
    async with serving(FakeEngine(saying(SAID)), template=REASONING) as at:
        async with sdk(at) as client, client.responses.stream(model="m", input="hi", tools=[WEATHER]) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        async with at.client.post(PATH, json={"input": "hi", "tools": [WEATHER], "stream": True}) as raw:
            text = await raw.read()
    assert _plain(final.output) == ITEMS
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert [kind for kind in kinds if kind.startswith("response.output_item")] == [
        "response.output_item.added", "response.output_item.done",
    ] * 3  # fmt: skip
    values = parse_sse(b"\n\n".join(_without_name(block) for block in text.split(b"\n\n")))
    assert [value["sequence_number"] for value in values] == list(range(len(values)))
    joined: dict[str, str] = {}
    for value in values:
        if "delta" in value:
            joined[value["type"]] = joined.get(value["type"], "") + value["delta"]
    assert joined == {
        "response.reasoning_text.delta": "Hm.",
        "response.output_text.delta": "Let me see.",
        "response.function_call_arguments.delta": '{"city": "Köln", "days": 2}',
    }
    added = [value["item"] for value in values if value["type"] == "response.output_item.added"]
    assert [item["status"] for item in added] == ["in_progress"] * 3
    assert [item.get("content", item.get("arguments")) for item in added] == [[], [], ""]


def _without_name(block: bytes) -> bytes:
    """An event without its `event:` line, which must repeat the type."""
    if not block.startswith(b"event: "):
        return block
    name, _, data = block.partition(b"\n")
    assert b'"type":"' + name.removeprefix(b"event: ") + b'"' in data
    return data


async def test_a_round_with_a_tool() -> None:
    """The output given back with the tool's result makes the prompt that chat would make."""
    async with serving(FakeEngine(saying(SAID)), template=REASONING) as at, sdk(at) as client:
        first = await client.responses.create(model="m", input="hi", instructions="Be short.", tools=[WEATHER])
        back: Any = [{"role": "user", "content": "hi"}, *(item.model_dump() for item in first.output)]
        back.append({"type": "function_call_output", "call_id": first.output[2].call_id, "output": "sunny"})  # type: ignore[union-attr]
        back.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And?"}]})
        await client.responses.create(model="m", input=back, instructions="Be short.", tools=[WEATHER])
        prompt = _prompt(at)
    assert prompt == (
        "<|im_start|>tools\n1<|im_end|>\n<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nHm.\n</think>\n\nLet me see."
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": 2}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\nsunny<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


async def test_functions_in_a_namespace() -> None:
    """Codex sends some so. The model sees and calls joined names; items have the two parts, and the prompt of the next request has
    the joined name again."""
    agents: Any = {"type": "namespace", "name": "agents", "description": "Helpers.", "tools": [WEATHER | {"name": "spawn"}]}
    called = CALL.replace("weather", "agents__spawn")
    async with serving(FakeEngine(saying(called)), template=NAMING) as at, sdk(at) as client:
        first = await client.responses.create(model="m", input="hi", tools=[WEATHER, agents])
        async with client.responses.stream(model="m", input="hi", tools=[WEATHER, agents]) as stream:
            added = [event.item async for event in stream if event.type == "response.output_item.added"]
        back: Any = [{"role": "user", "content": "hi"}, first.output[0].to_dict()]
        back.append({"type": "function_call_output", "call_id": first.output[0].call_id, "output": "ok"})  # type: ignore[union-attr]
        await client.responses.create(model="m", input=back, tools=[WEATHER, agents])
        prompt = _prompt(at)
    assert [(item.namespace, item.name) for item in (*first.output, *added)] == [("agents", "spawn")] * 2  # type: ignore[union-attr]
    assert prompt.startswith("<|im_start|>tools\nweather, agents__spawn<|im_end|>")
    assert called in prompt


async def test_a_search_that_nobody_can_run() -> None:
    """Codex offers it in every request: it is left out, unless the answer must call it."""
    search = {"type": "web_search", "external_web_access": False}
    async with serving(FakeEngine(saying("Hello")), template=NAMING) as at:
        status, _ = await at.post(PATH, {"input": "hi", "tools": [WEATHER, search]})
        assert (status, _prompt(at).split("\n")[1]) == (200, "weather<|im_end|>")
        status, _ = await at.post(PATH, {"input": "hi", "tools": [search]})
        assert (status, "tools" in _prompt(at)) == (200, False)
        status, body = await at.post(PATH, {"input": "hi", "tools": [WEATHER, search], "tool_choice": {"type": "web_search"}})
    assert (status, body["error"]["param"]) == (400, "tool_choice.type")


async def test_reasoning_that_comes_back_sealed() -> None:
    """Clients that keep nothing but `encrypted_content` send the reasoning back too."""
    async with serving(FakeEngine(saying(SAID)), template=REASONING) as at, sdk(at) as client:
        first = await client.responses.create(model="m", input="hi", include=["reasoning.encrypted_content"])
        item = first.output[0].model_dump()
        back: Any = [{"role": "user", "content": "hi"}, item | {"content": None}, {"role": "assistant", "content": "Well."}]
        await client.responses.create(model="m", input=[*back, {"role": "user", "content": "And?"}])
        assert "<think>\nHm.\n</think>\n\nWell.<|im_end|>" in _prompt(at)
        plain = await client.responses.create(model="m", input="hi")
    assert plain.output[0].encrypted_content is None  # type: ignore[union-attr]


def test_seals() -> None:
    """What another server has sealed is nothing to us, whatever it is."""
    assert unsealed(sealed("Hm. é")) == "Hm. é"
    assert [unsealed(value) for value in (None, 5, "", "gAAAA", "headrace:!", "headrace:/w==")] == [""] * 6


async def test_an_answer_that_is_cut_off() -> None:
    """`incomplete`, with the reason, in both forms; what is there of the item is incomplete too."""
    async with serving(FakeEngine(saying("Hello"))) as at, sdk(at) as client:
        response = await client.responses.create(model="m", input="hi", max_output_tokens=3)
        async with client.responses.stream(model="m", input="hi", max_output_tokens=3) as stream:
            kinds = [event.type async for event in stream]
    assert (response.status, response.output[0].status) == ("incomplete", "incomplete")  # type: ignore[union-attr]
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert kinds[-1] == "response.incomplete"


async def test_a_form_for_the_answer() -> None:
    """`text.format`: a schema, as the SDK's `parse` sends it."""
    import pydantic

    class Found(pydantic.BaseModel):
        ok: bool

    async with serving(FakeEngine(obedient(1))) as at, sdk(at) as client:
        response = await client.responses.parse(model="m", input="hi", text_format=Found)
    assert isinstance(response.output_parsed, Found)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
async def test_a_tool_must_be_called(choice: Any) -> None:
    """By grammar."""
    async with serving(FakeEngine(obedient(2))) as at, sdk(at) as client:
        response = await client.responses.create(
            model="m", input="hi", tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False, max_output_tokens=900
        )
    (item,) = response.output
    assert (item.type, item.status) == ("function_call", "completed")  # type: ignore[union-attr]


async def test_logprobs_of_the_message() -> None:
    """Asked for with `top_logprobs` or `include`: those of the message's tokens."""
    async with serving(FakeEngine(saying("Hello"))) as at, sdk(at) as client:
        for fields in ({"top_logprobs": 2}, {"include": ["message.output_text.logprobs"]}):
            response = await client.responses.create(model="m", input="hi", **fields)  # type: ignore[call-overload]
            entries = response.output[0].content[0].logprobs
            assert "".join(entry.token for entry in entries) == "Hello"


async def test_errors() -> None:
    """In OpenAI's shape before the stream, and as a failed response in it."""
    async with serving(FakeEngine()) as at, sdk(at) as client:
        with pytest.raises(openai.BadRequestError) as error:
            await client.responses.create(model="m", input="hi", previous_response_id="resp_1")
        assert error.value.param == "previous_response_id"
        stream = await client.responses.create(model="m", input="hi", stream=True)
        sequence = await at.engine.submitted.get()
        sequence.say(ord("a"))
        sequence.end(FinishReason.ERROR, "device failed")
        events = [event async for event in stream]
    assert events[-1].type == "response.failed"
    assert events[-1].response.error is not None


async def test_counting_tokens() -> None:
    """As many as the prompt of the same request has."""
    async with serving(FakeEngine(saying("x"))) as at:
        body = {"input": "hi", "instructions": "Be short.", "tools": [WEATHER]}
        status, counted = await at.post("/v1/responses/input_tokens", body)
        await at.post(PATH, body)
        assert (status, counted["input_tokens"]) == (200, len(at.engine.sequences[0].request.prompt))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"max_output_tokens": -5}, "max_output_tokens"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "call_id": "x", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"tools": [{"type": "file_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": 5}]}, "tools[0].tools"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [5]}]}, "tools[0].tools[0].type"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "x"}]}]}, "tools[0].tools[0].type"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]}, "tools[0].tools[0].name"),
        (
            {"input": [{"type": "function_call", "call_id": "x", "name": "f", "arguments": "{}", "namespace": 5}]},
            "input[0].namespace",
        ),
        ({"include": ["x"]}, "include[0]"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": 5}}, "text.format"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
    ],
)
async def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    """400 with the place in the request."""
    async with serving(FakeEngine(saying("x"))) as at:
        status, body = await at.post(PATH, {"input": "hi"} | fields)
    assert (status, body["error"]["param"]) == (400, param)
    assert param in body["error"]["message"]
    assert at.engine.sequences == []
