"""Arguments written as text, made into JSON by a schema; and JSON that models write badly."""

import ast
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.http.text.tool_calls.argument_types import ArgumentType, argument_type
from svc.http.text.tool_calls.json_text import is_json, python_to_json, string_value
from svc.http.text.tool_calls.offered_tools import OfferedTools


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "3", "3"),
        ({"type": "string"}, "null", "null"),
        ({"type": "integer"}, " 3\n", 3),
        ({"type": "integer"}, "+007", 7),
        ({"type": "integer"}, "three", "three"),
        ({"type": "integer"}, "null", None),
        ({"type": "number"}, "1e20", 1e20),
        ({"type": "number"}, ".5", 0.5),
        ({"type": "number"}, "5.", 5),
        ({"type": "number"}, "-0", 0),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "float"}, "1", 1),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "FALSE", False),
        ({"type": "boolean"}, "1", "1"),
        ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
        ({"type": "object"}, "{'a': None, 'b': 'it\\'s'}", {"a": None, "b": "it's"}),
        ({"type": "object"}, "{a: 1}", "{a: 1}"),
        ({"type": "dict"}, "{}", {}),
        ({"type": "array"}, "[1, NaN]", "[1, NaN]"),
        ({"type": "null"}, "None", None),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "nul", "nul"),
        ({"type": ["string", "integer"]}, "02139", "02139"),
        ({"type": ["string", "integer"]}, "2139", 2139),
        ({"type": "string", "nullable": True}, "null", None),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "4", 4),
        ({"oneOf": [{"type": "boolean"}, {"type": "string"}]}, "maybe", "maybe"),
        ({"allOf": [{"type": "number"}, {"minimum": 0}]}, "4", 4),
        ({"$ref": "#/$defs/n"}, "4", 4),
        ({"$ref": "#/$defs/loop"}, "4", 4),
        ({"$ref": "#/nowhere"}, "4", 4),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"enum": ["on", 1, None]}, "on", "on"),
        ({"enum": ["on", 1, None]}, "null", None),
        ({"const": True}, "true", True),
        ({"properties": {}}, "{}", {}),
        ({"items": {}}, "[]", []),
        ({}, "text", "text"),
        ({}, "02139", "02139"),
        ({}, "true", True),
        ({}, "[1]", [1]),
        (None, "3", 3),
        (True, '"q"', '"q"'),
        ({"type": 7, "enum": 7, "anyOf": 7, "$ref": 7}, "a", "a"),
    ],
)
def test_values(schema: Any, text: str, value: Any) -> None:
    """Worked cases: the schema decides, and what fits no type of it is a string."""
    root = {"$defs": {"n": {"type": "integer"}, "loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"type": "integer"}]}}}
    got = json.loads(argument_type(schema, root).to_json(text))
    assert (got, type(got)) == (value, type(value))


@settings(max_examples=300)
@given(
    types=st.sets(st.sampled_from(["string", "integer", "number", "boolean", "object", "array", "null"])),
    text=st.one_of(st.text(max_size=12), st.text("0123456789.eE+-[]{}',\" nulltrefasNO\\:", max_size=12)),
)
def test_any_text_becomes_json(types: set[str], text: str) -> None:
    """Whatever the model writes, the argument is strict JSON: of an allowed type, or null, or a string."""
    made = ArgumentType(frozenset(types)).to_json(text)
    assert is_json(made)
    value = json.loads(made)
    names = {str: "string", bool: "boolean", int: "number", float: "number", list: "array", dict: "object", type(None): "null"}
    kind = names[type(value)]
    allowed = (
        types | ({"number"} if "integer" in types else set()) | ({"object", "array"} if types & {"object", "array"} else set())
    )
    assert kind in ("string", "null") or not types or kind in allowed


@settings(max_examples=300)
@given(types=st.sets(st.sampled_from(["string", "null"]), min_size=1), text=st.text("nulNoe \nx", max_size=6))
def test_text_is_streamed_only_once_it_cannot_be_null(types: set[str], text: str) -> None:
    """Whatever follows, a text that may not be null any more becomes a string."""
    kind = ArgumentType(frozenset(types | {"string"}))
    assert kind.is_text
    if not kind.may_be_null(text):
        for rest in ("", "l", "ll", "ull", "one", "e", " "):
            assert json.loads(kind.to_json(text + rest)) == text + rest


_literals = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300)
@given(value=_literals)
def test_python_literals(value: Any) -> None:
    """What Python writes for lists and dictionaries of plain values means the same as JSON."""
    made = python_to_json(repr(value))
    assert made is not None
    assert json.loads(made) == ast.literal_eval(repr(value))


@settings(max_examples=300)
@given(text=st.text("{}[]'\",:\\xuTrueNone0 1.e-", max_size=20))
def test_what_is_no_literal_is_refused(text: str) -> None:
    """None, or strict JSON."""
    made = python_to_json(text)
    assert made is None or is_json(made)


@pytest.mark.parametrize("text", ["[" * 100_000, "{'a':" * 50_000, "'" * 100_001, "-" * 100_000, "9" * 5_000])
def test_deep_and_long_text(text: str) -> None:
    """Text that breaks parsers is refused, not raised."""
    assert python_to_json(text) is None
    assert not is_json(text)


def test_strings_that_are_no_json() -> None:
    """A broken escape leaves the text as it is; a raw line break is let through."""
    assert string_value('"a\nb"') == "a\nb"
    assert string_value('"\\ud83d\\ude00"') == "😀"
    assert string_value('"\\x"') == "\\x"


def test_tools_of_any_shape() -> None:
    """Nested and flat definitions count; anything else offers nothing, without an error."""
    shapes: list[dict[str, Any]] = [
        {"function": {"name": "a"}},
        {"name": "b", "parameters": {"properties": 3}},
        {"function": 3},
        {},
    ]
    tools = OfferedTools(shapes)
    assert ["a" in tools, "b" in tools, "c" in tools] == [True, True, False]
    assert tools.argument_type("b", "x") == ArgumentType()
    assert not tools.has_parameter("a", "x")
