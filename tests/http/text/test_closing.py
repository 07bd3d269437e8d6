"""Objects of a schema have the properties that are listed."""

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.errors import RequestError
from svc.http.text.grammar.closing import closed

_names = st.sampled_from(["a", "b", "properties", "const"])
_leaves = st.sampled_from(
    [{}, {"type": "integer"}, {"type": "string"}, {"const": {"properties": {"a": 1}}}, {"enum": [1, {"properties": {}}]}, True]
)
_schemas = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.dictionaries(_names, inner, max_size=3).map(lambda members: {"type": "object", "properties": members}),
        inner.map(lambda items: {"type": "array", "items": items}),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
        inner.map(lambda one: {"allOf": [one]}),
        st.lists(inner, min_size=2, max_size=2).map(lambda parts: {"allOf": parts}),
        st.dictionaries(_names, inner, max_size=2).map(lambda members: {"properties": members, "additionalProperties": True}),
    ),
    max_leaves=6,
)
_values = st.recursive(
    st.one_of(st.integers(0, 2), st.just("x"), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(_names, inner, max_size=3)),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(schema=_schemas, value=_values)
def test_what_fits_the_closed_schema_fits_the_schema(schema: Any, value: Any) -> None:
    """By an implementation of others. Nothing outside of the places of schemas is touched."""
    if not isinstance(schema, dict):
        return
    before = json.dumps(schema)
    narrow = closed(schema)
    assert json.dumps(schema) == before
    if jsonschema.Draft202012Validator(narrow).is_valid(value):
        jsonschema.Draft202012Validator(schema).validate(value)


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        ({"properties": {"a": {}}}, {"a": 1}, True),
        ({"properties": {"a": {}}}, {"b": 1}, False),
        ({"properties": {"a": {"properties": {"b": {}}}}}, {"a": {"c": 1}}, False),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}, {"b": 1}, True),
        ({"properties": {"a": {}}, "patternProperties": {"^x": {}}}, {"xy": 1}, True),
        ({"type": "object"}, {"b": 1}, True),
        ({"properties": {}}, {"b": 1}, True),
        ({"items": {"properties": {"a": {}}}}, [{"b": 1}], False),
        ({"$defs": {"d": {"properties": {"a": {}}}}, "$ref": "#/$defs/d"}, {"b": 1}, False),
        ({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, {"a": 1, "b": 1}, True),
        ({"properties": {"a": {"allOf": [{"properties": {"b": {}}}]}}}, {"a": {"c": 1}}, False),
    ],
)
def test_what_is_closed(schema: Any, value: Any, fits: bool) -> None:
    """Objects that list properties and say nothing of others."""
    assert jsonschema.Draft202012Validator(closed(schema)).is_valid(value) == fits


def test_a_deep_schema() -> None:
    """Is a refusal, never a failure of ours."""
    schema: Any = {}
    for _ in range(5000):
        schema = {"items": schema}
    with pytest.raises(RequestError):
        closed(schema)
