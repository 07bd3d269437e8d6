"""Tool calls over HTTP: found in the text, streamed in fragments, enforced by a grammar. The engine says what a script tells it."""

import json
from typing import Any

import pytest

from svc.http.service import AnswerSettings
from svc.http.text.chat_template import ChatTemplate
from svc.slots.request import Request
from tests.fakes.fake_engine import FakeEngine, Script, obedient, saying
from tests.fakes.fake_text import REASONING_CHATML, ids
from tests.http.harness import TOKENIZER, serving

CHAT = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}, "maxProperties": 0}}}
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "tools": [WEATHER, CLOCK]}
PLAIN = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}|{% endfor %}", TOKENIZER)
REASONING = ChatTemplate(REASONING_CHATML, TOKENIZER)


def _call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


FIRST, SECOND = _call("weather", '{"city": "Köln", "days": 2}'), _call("clock", "{}")


async def _whole(script: Script, **fields: Any) -> Any:
    async with serving(FakeEngine(script), template=fields.pop("template", True)) as at:
        status, answer = await at.post(CHAT, BODY | fields)
        assert status == 200, answer
        return answer["choices"][0]


async def _streamed(script: Script, **fields: Any) -> Any:
    """The choice that a client puts together from the deltas, as the openai SDK does."""
    async with serving(FakeEngine(script), template=fields.pop("template", True)) as at:
        events = await at.events(CHAT, BODY | fields)
    message: dict[str, Any] = {}
    reason = None
    for chunk in events[:-1]:
        for choice in chunk["choices"]:
            reason = choice["finish_reason"] or reason
            for key, value in choice["delta"].items():
                if key != "tool_calls":
                    message[key] = message.get(key, "") + value
                    continue
                for delta in value:
                    _merge_call(message.setdefault("tool_calls", []), delta)
    return {"message": message, "finish_reason": reason}


def _merge_call(calls: list[dict[str, Any]], delta: dict[str, Any]) -> None:
    if delta["index"] == len(calls):
        assert delta["function"]["arguments"] == ""
        assert delta["type"] == "function"
        calls.append({"id": delta["id"], "type": "function", "function": dict(delta["function"])})
    else:
        assert set(delta) == {"index", "function"}
        calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]


BOTH = pytest.mark.parametrize("ask", [_whole, _streamed])


def _calls(choice: Any) -> list[tuple[str, Any]]:
    functions = [call["function"] for call in choice["message"].get("tool_calls", [])]
    return [(function["name"], json.loads(function["arguments"])) for function in functions]


@BOTH
async def test_two_calls_of_one_answer(ask: Any) -> None:
    """Names, arguments and ids; content is what stands beside them; the finish reason says that tools are called."""
    choice = await ask(saying(f"Let me see.\n{FIRST}\n{SECOND}"))
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    assert _calls(choice) == [("weather", {"city": "Köln", "days": 2}), ("clock", {})]
    found = [call["id"] for call in choice["message"]["tool_calls"]]
    assert len(set(found)) == 2
    assert all(id.startswith("call_") for id in found)


async def test_content_of_calls_alone_is_null() -> None:
    """As OpenAI has it."""
    assert (await _whole(saying(FIRST)))["message"]["content"] is None


@BOTH
async def test_one_call_only(ask: Any) -> None:
    """`parallel_tool_calls: false`: the answer ends with the first call, whatever the model would say then."""
    choice = await ask(saying(f"{FIRST}\n{SECOND} and more"), parallel_tool_calls=False)
    assert (choice["finish_reason"], _calls(choice)) == ("tool_calls", [("weather", {"city": "Köln", "days": 2})])


@BOTH
async def test_a_call_cut_off_at_the_limit(ask: Any) -> None:
    """The arguments so far, and "length": the client can see that they are not whole."""
    text = FIRST[: FIRST.index("Köln")]
    choice = await ask(saying(text), max_tokens=len(text.encode()))
    assert choice["finish_reason"] == "length"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "'}


@BOTH
async def test_without_tools_everything_is_text(ask: Any) -> None:
    """No tools, or none that may be called: nothing is looked for in the answer, and the prompt has none."""
    for fields in ({"tools": None}, {"tools": []}, {"tool_choice": "none"}):
        choice = await ask(saying(FIRST), **fields)
        assert (choice["message"]["content"], choice["finish_reason"]) == (FIRST, "stop")
        assert "tool_calls" not in choice["message"]


@BOTH
@pytest.mark.parametrize("seed", range(5))
async def test_required_is_enforced(ask: Any, seed: int) -> None:
    """Whatever the model would like to say: one call or more, of an offered tool, with arguments that fit its schema."""
    choice = await ask(obedient(seed), tool_choice="required", max_tokens=900)
    calls = _calls(choice) if choice["finish_reason"] == "tool_calls" else []
    assert choice["message"]["content"] in (None, "")
    for name, arguments in calls:
        assert name in ("weather", "clock")
        assert name == "clock" or (len(arguments["city"]) <= 8 and 0 <= arguments["days"] <= 9)
    assert choice["finish_reason"] in ("tool_calls", "length")


@BOTH
@pytest.mark.parametrize("choice", [{"type": "function", "function": {"name": "weather"}}, {"type": "function", "name": "weather"}])
async def test_a_named_tool_is_the_one_called(ask: Any, choice: Any) -> None:
    """In the form of chat and in that of responses; the prompt still offers all, so that the cache serves it."""
    found = await ask(obedient(3), tool_choice=choice, parallel_tool_calls=False, max_tokens=900)
    assert found["finish_reason"] == "tool_calls"
    assert [name for name, _ in _calls(found)] == ["weather"]


async def test_allowed_tools_and_the_prompt() -> None:
    """`allowed_tools` bounds what may be called, not what is offered."""
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [CLOCK]}}
    async with serving(FakeEngine(obedient(1))) as at:
        _, answer = await at.post(CHAT, BODY | {"tool_choice": choice, "max_tokens": 200, "parallel_tool_calls": False})
        assert _calls(answer["choices"][0]) == [("clock", {})]
        assert list(at.engine.sequences[0].request.prompt)[:8] == ids("<|im_start|>tools\n2")


async def test_allowed_tools_of_a_free_answer() -> None:
    """In mode auto too: a call that begins is one of the allowed, and names no other. The prompt offers all."""
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [CLOCK]}}
    fields = {"tool_choice": choice, "max_tokens": 200, "parallel_tool_calls": False}
    for seed in range(3):
        found = await _whole(obedient(seed, '<tool_call>\n{"name": "'), **fields)
        assert _calls(found) == [("clock", {})]
    assert (await _whole(saying("No."), **fields))["message"]["content"] == "No."
    async with serving(FakeEngine(saying("x"))) as at:
        await at.post(CHAT, BODY | fields)
        everything = {"mode": "auto", "tools": [WEATHER, CLOCK]}
        await at.post(CHAT, BODY | {"tool_choice": {"type": "allowed_tools", "allowed_tools": everything}})
    some, all_ = (sequence.request for sequence in at.engine.sequences)
    assert list(some.prompt)[:8] == ids("<|im_start|>tools\n2")
    assert (some.constraint is None, all_.constraint is None) == (False, True)


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_a_list_of_no_allowed_tools_is_refused(mode: str) -> None:
    """The error names it."""
    async with serving(FakeEngine()) as at:
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": []}}
        status, answer = await at.post(CHAT, BODY | {"tool_choice": choice})
    assert (status, answer["error"]["param"]) == (400, "tool_choice.allowed_tools.tools")


@BOTH
async def test_a_call_or_an_answer_of_a_form(ask: Any) -> None:
    """Tools beside a response format: the answer is one of the two, and nothing else."""
    schema = {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    seen = set()
    for seed in range(6):
        choice = await ask(obedient(seed), response_format=form, tools=[CLOCK], parallel_tool_calls=False, max_tokens=300)
        seen.add(choice["finish_reason"])
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["message"]["content"])["x"], bool)
        else:
            assert _calls(choice) == [("clock", {})]
    assert seen == {"stop", "tool_calls"}


async def test_a_strict_tool_is_held_to_its_schema() -> None:
    """Free text, but a call that begins must be right; a schema that cannot be enforced is refused with its tool's name."""
    strict = json.loads(json.dumps(WEATHER))
    strict["function"]["strict"] = True
    choice = await _whole(obedient(5, 'Well, <tool_call>\n{"name": "weather", "arguments": '), tools=[strict], max_tokens=400)
    assert choice["finish_reason"] == "tool_calls"
    assert set(_calls(choice)[0][1]) == {"city", "days"}
    strict["function"]["parameters"] = {"type": "array", "uniqueItems": True}
    async with serving(FakeEngine(saying("x"))) as at:
        status, answer = await at.post(CHAT, BODY | {"tools": [strict]})
    assert (status, answer["error"]["param"]) == (400, "tools")
    assert "weather" in answer["error"]["message"]


@BOTH
async def test_required_after_reasoning(ask: Any) -> None:
    """The grammar holds from the end of the reasoning on."""
    script = obedient(2, "I should call. </think>\n\n")
    choice = await ask(script, template=REASONING, tool_choice="required", tools=[CLOCK], parallel_tool_calls=False, max_tokens=300)
    assert choice["message"]["reasoning_content"] == "I should call."
    assert _calls(choice) == [("clock", {})]


@BOTH
async def test_a_template_that_knows_no_tools(ask: Any) -> None:
    """They are told, called and answered in plain text; a call can be required all the same."""
    choice = await ask(saying(f"Well.\n{FIRST}"), template=PLAIN)
    assert (choice["message"]["content"], _calls(choice)) == ("Well.", [("weather", {"city": "Köln", "days": 2})])
    required = await ask(
        obedient(1), template=PLAIN, tool_choice="required", tools=[CLOCK], parallel_tool_calls=False, max_tokens=99
    )
    assert _calls(required) == [("clock", {})]


async def test_the_prompt_of_a_template_that_knows_no_tools() -> None:
    """Tools are part of the system's text, calls of the assistant's, results of the user's."""
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "clock", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "noon"},
        {"role": "user", "content": "And?"},
    ]  # fmt: skip
    async with serving(FakeEngine(saying("x")), template=PLAIN) as at:
        status, rendered = await at.post("/apply-template", {"messages": messages, "tools": [CLOCK]})
        assert (await at.post(CHAT, {"messages": messages, "tools": [CLOCK]}))[0] == 200
        assert TOKENIZER.decode(at.engine.sequences[0].request.prompt) == rendered["prompt"]
        assert (await at.post(CHAT, {"messages": [{"role": "tool"}] * 5000, "tools": [CLOCK]}))[0] == 400
    assert status == 200
    system, user, call, result, *rest = rendered["prompt"].split("|")
    assert system.startswith("system: Be short.\n\n")
    assert '{"name": "clock", "parameters": {"type": "object", "properties": {}, "maxProperties": 0}}' in system
    assert (user, call) == ("user: hi", f"assistant: {_call('clock', '{}')}")
    assert result == "user: <tool_response>\nnoon\n</tool_response>\nAnd?"
    assert rest == [""]


def _requests(at: Any) -> list[Request]:
    return [sequence.request for sequence in at.engine.sequences]


async def test_free_answers_have_no_constraint() -> None:
    """Tools alone cost nothing: no grammar, and the next token is planned before the last is known."""
    async with serving(FakeEngine(saying(FIRST))) as at:
        await at.post(CHAT, BODY)
        await at.post(CHAT, BODY | {"parallel_tool_calls": False})
    free, single = _requests(at)
    assert (free.constraint, free.needs_known_tokens) == (None, False)
    assert (single.constraint, single.needs_known_tokens) == (None, True)


async def test_tools_in_one_order() -> None:
    """Where the operator wants it, the order of keys makes no other prompt; without it, it does."""
    other = {"function": {"parameters": {"properties": {"b": {}, "a": {}}, "type": "object"}, "name": "f"}, "type": "function"}
    same = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}, "b": {}}}}}
    for canonical, prompts in ((True, 1), (False, 2)):
        async with serving(FakeEngine(saying("x")), template=PLAIN, answers=AnswerSettings(canonical_tools=canonical)) as at:
            for tool in (other, same):
                assert (await at.post(CHAT, BODY | {"tools": [tool]}))[0] == 200
            assert len({tuple(request.prompt) for request in _requests(at)}) == prompts
