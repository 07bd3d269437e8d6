"""Messages in the shapes clients send, made into the one shape templates know."""

import copy
from typing import Any

import pytest

from svc.errors import RequestError
from svc.http.text.messages import MAX_DEPTH, normalise_messages, normalise_tools

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


@pytest.mark.parametrize(
    "arguments",
    [
        "{",
        "[1]",
        "1",
        "null",
        '"x"',
        '{"a": NaN}',
        '{"a": 1e999}',
        "[" * 100_000,
        '{"a": ' + "1" * 5000 + "}",
        5,
        [1],
        '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1),
    ],
)
def test_bad_tool_arguments_are_named(arguments: Any) -> None:
    """Arguments that are no JSON object, or a hostile one, are a RequestError naming the call."""
    with pytest.raises(RequestError) as error:
        normalise_messages(_call(arguments))
    assert error.value.param == "messages[1].tool_calls[0].function.arguments"
    assert error.value.param in str(error.value)


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
