"""Messages in the shapes clients send, made into the one shape templates know."""

import copy
from typing import Any

import pytest

from svc.errors import RequestError
from svc.http.text.messages import MAX_DEPTH, normalise_messages, normalise_tools
from svc.http.text.template_habits import Habits

USER = {"role": "user", "content": "hi"}


def _call(arguments: Any) -> list[dict[str, Any]]:
    function = {"name": "f", "arguments": arguments}
    return [USER, {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": function}]}]


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({"role": "user", "content": "hi"}, {"role": "user", "content": "hi"}),
        ({"role": "user", "content": None}, {"role": "user", "content": ""}),
        ({"role": "user"}, {"role": "user", "content": ""}),
        ({"role": "user", "content": []}, {"role": "user", "content": ""}),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, "c"]},
            {"role": "user", "content": "a\nb\nc"},
        ),
        ({"role": "developer", "content": "d"}, {"role": "system", "content": "d"}),
        (
            {"role": "assistant", "content": "x", "reasoning": "r", "tool_calls": None, "audio": None},
            {"role": "assistant", "content": "x", "reasoning_content": "r"},
        ),
        (
            {"role": "assistant", "content": "x", "thinking": "t", "reasoning_content": None},
            {"role": "assistant", "content": "x", "reasoning_content": "t"},
        ),
        (
            {"role": "assistant", "reasoning_content": "first", "reasoning": "second"},
            {"role": "assistant", "content": "", "reasoning_content": "first"},
        ),
        ({"role": "assistant", "content": "x", "tool_calls": []}, {"role": "assistant", "content": "x"}),
        (
            {"role": "tool", "content": "r", "tool_call_id": "c", "name": None},
            {"role": "tool", "content": "r", "tool_call_id": "c"},
        ),
        ({"role": "user", "content": "a\ud800b\ud83d\ude42"}, {"role": "user", "content": "a\ufffdb🙂"}),
        (
            {"role": "user", "content": "x", "extra": {"k": [1, None, "\udfff"]}},
            {"role": "user", "content": "x", "extra": {"k": [1, None, "\ufffd"]}},
        ),
    ],
)
def test_one_message(given: dict[str, Any], plain: dict[str, Any]) -> None:
    """Each shape of a message gives the plain one, does not change its input, and is stable when applied again."""
    before = copy.deepcopy(given)
    assert normalise_messages([given]) == [plain]
    assert given == before
    assert normalise_messages([plain]) == [plain]


def test_a_late_system_message_becomes_a_user_turn_in_place() -> None:
    """Only the first message stays system; system and developer messages after it keep their place as user turns."""
    given = [{"role": role, "content": role} for role in ("system", "developer", "user", "assistant", "system")]
    plain = normalise_messages(given)
    assert [message["role"] for message in plain] == ["system", "user", "user", "assistant", "user"]
    assert [message["content"] for message in plain] == ["system", "developer", "user", "assistant", "system"]


@pytest.mark.parametrize(
    ("arguments", "plain"),
    [
        ('{"b": 1, "a": {"x": [true, null, 1.5]}}', {"b": 1, "a": {"x": [True, None, 1.5]}}),
        ({"already": "an object"}, {"already": "an object"}),
        ("", {}),
        (None, {}),
        ('{"s": "\\ud800"}', {"s": "\ufffd"}),
        ("{}", {}),
    ],
)
def test_tool_arguments_become_an_object(arguments: Any, plain: dict[str, Any]) -> None:
    """Arguments as JSON text, object, empty or absent are an object afterwards, in the order written."""
    message = normalise_messages(_call(arguments))[1]
    assert message["tool_calls"] == [{"type": "function", "id": "c", "function": {"name": "f", "arguments": plain}}]
    assert list(message["tool_calls"][0]["function"]["arguments"]) == list(plain)
    assert message["content"] == ""


NO_OBJECTS = (
    "{",
    "{a:1",
    "[1]",
    "1",
    '"x"',
    '"{\\"a\\": 1}"',
    '{"a": NaN}',
    '{"a": [1e400]}',
    '{"a": -Infinity}',
    "[" * 100_000,
    '{"a": ' + "1" * 5000 + "}",
    '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1),
)


@pytest.mark.parametrize("arguments", NO_OBJECTS)
def test_arguments_that_are_no_object_are_a_text(arguments: str) -> None:
    """What the model wrote once is never the reason to refuse the conversation: it stays the text that it was, or one argument."""
    (_, message) = normalise_messages(_call(arguments))
    assert message["tool_calls"][0]["function"]["arguments"] == arguments
    (_, message) = normalise_messages(_call(arguments), Habits(text_arguments=False))
    assert message["tool_calls"][0]["function"]["arguments"] == {"arguments": arguments}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"b":1,  "a": 1.50}', '{"b":1,  "a": 1.50}'),
        ({"b": 1, "a": "é"}, '{"b": 1, "a": "é"}'),
        ("", "{}"),
        (None, "{}"),
        ("{a:1", "{a:1"),
    ],
)
def test_a_template_may_want_arguments_as_text(arguments: Any, text: str) -> None:
    """It gets the text as the client sent it, byte for byte; an object is written down."""
    (_, message) = normalise_messages(_call(arguments), Habits(object_arguments=False))
    assert message["tool_calls"][0]["function"]["arguments"] == text


@pytest.mark.parametrize("arguments", [5, True, [1], {"a": float("inf")}])
def test_bad_tool_arguments_are_named(arguments: Any) -> None:
    """Arguments that are neither text nor a JSON object come from the client, not from a model: a RequestError naming the call."""
    with pytest.raises(RequestError) as error:
        normalise_messages(_call(arguments))
    assert error.value.param == "messages[1].tool_calls[0].function.arguments"
    assert error.value.param in str(error.value)


def test_the_older_form_of_a_call() -> None:
    """`function_call` is a call without an id, and `function` the role of its result."""
    old = [
        USER,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}},
        {"role": "function", "name": "f", "content": "42"},
    ]
    assert normalise_messages(old) == [
        USER,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "name": "f", "content": "42"},
    ]


def test_results_get_the_name_of_their_tool() -> None:
    """By the id of the call; a name that the client sends stays, and an unknown id gives none."""
    calls = [{"id": name, "function": {"name": f"tool {name}", "arguments": "{}"}} for name in ("a", "b")]
    results = [{"role": "tool", "content": "x", "tool_call_id": name} for name in ("b", "a", "c")]
    messages = [USER, {"role": "assistant", "tool_calls": calls}, *results, results[0] | {"name": "mine"}]
    plain = normalise_messages(messages)
    assert [message.get("name") for message in plain[2:]] == ["tool b", "tool a", None, "mine"]


@pytest.mark.parametrize(
    ("parts", "content", "reasoning"),
    [
        ([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}], "a", "hm"),
        ([{"type": "thinking", "thinking": [{"type": "text", "text": "h"}, {"type": "text", "text": "m"}]}], "", "hm"),
        ([{"type": "reasoning", "text": "h"}, {"type": "reasoning", "reasoning": "m"}], "", "h\nm"),
        ([{"type": "redacted_thinking", "data": "xyz"}, {"type": "output_text", "text": "a"}], "a", None),
    ],
)
def test_thinking_among_the_parts(parts: Any, content: str, reasoning: str | None) -> None:
    """It is reasoning, not content; the field of its own counts first."""
    (message,) = normalise_messages([{"role": "assistant", "content": parts}])
    assert (message["content"], message.get("reasoning_content")) == (content, reasoning)
    (message,) = normalise_messages([{"role": "assistant", "content": parts, "reasoning": "said"}])
    assert message["reasoning_content"] == "said"


def test_reasoning_has_every_name_that_is_read() -> None:
    """Under whatever name the client sends it."""
    for key in ("reasoning_content", "reasoning", "thinking"):
        (message,) = normalise_messages([{"role": "assistant", "content": "", key: "hm"}], Habits(reasoning_keys=("a", "b")))
        assert message == {"role": "assistant", "content": "", "a": "hm", "b": "hm"}


PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def test_content_in_the_form_that_is_taken() -> None:
    """Parts where the template takes them and the client sent them, or where it takes nothing else; else text."""
    both = [{"role": "user", "content": "a"}, {"role": "user", "content": PARTS}]
    assert [m["content"] for m in normalise_messages(both)] == ["a", "a\nb"]
    assert [m["content"] for m in normalise_messages(both, Habits(part_roles=frozenset({"user"})))] == ["a", PARTS]
    only_parts = Habits(text_roles=frozenset(), part_roles=frozenset({"user"}))
    assert [m["content"] for m in normalise_messages(both, only_parts)] == [PARTS[:1], PARTS]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hello", "messages"),
        (None, "messages"),
        ([1], "messages[0]"),
        ([USER, None], "messages[1]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "boss\ud800" * 100}], "messages[0].role"),
        ([{"role": ["user"]}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": {"type": "text"}}], "messages[0].content"),
        ([USER, {"role": "user", "content": [5]}], "messages[1].content[0]"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], "messages[0].content[0].text"),
        ([{"role": "assistant", "reasoning": {"a": 1}}], "messages[0].reasoning"),
        ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
        ([{"role": "assistant", "tool_calls": ["x"]}], "messages[0].tool_calls[0].function"),
        ([{"role": "assistant", "tool_calls": [{"function": {}}]}], "messages[0].tool_calls[0].function.name"),
        ([{"role": "tool", "content": "x", "tool_call_id": 5}], "messages[0].tool_call_id"),
        ([{"role": "user", "content": "x", "name": {}}], "messages[0].name"),
        ([{"role": "user", "content": "x", "extra": float("nan")}], "messages[0].extra"),
        ([{"role": "user", "content": "x", "extra": {1: 2}}], "messages[0].extra"),
    ],
)
def test_bad_messages_are_named(messages: Any, param: str) -> None:
    """Each unusable field is a RequestError with its path in `param` and in the sentence, which has a UTF-8 form."""
    with pytest.raises(RequestError) as error:
        normalise_messages(messages)
    assert error.value.param == param
    assert param in str(error.value)
    assert str(error.value).encode()
    assert len(str(error.value)) < 300


def test_tools_keep_their_key_order() -> None:
    """Tools are copied as they are: key order is part of the prompt."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": None}}}
    plain = normalise_tools([tool])
    assert plain == [tool]
    assert list(plain[0]["function"]["parameters"]) == ["z", "a"]
    assert normalise_tools(None) is None
    assert normalise_tools([]) is None


@pytest.mark.parametrize(("tools", "param"), [({}, "tools"), ("x", "tools"), ([1], "tools[0]"), ([{"a": b"x"}], "tools[0]")])
def test_bad_tools_are_named(tools: Any, param: str) -> None:
    """A tool list that is no list of JSON objects is a RequestError naming it."""
    with pytest.raises(RequestError) as error:
        normalise_tools(tools)
    assert error.value.param == param
