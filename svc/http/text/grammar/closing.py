"""Schemas made to say what people mean by them: an object has the properties that are listed, and no others.

JSON Schema lets an object have any others unless it says `additionalProperties: false`. A model that is held to that, and is small,
goes on inventing them until its tokens run out. What fits the closed schema fits the open one too.
"""

from collections.abc import Mapping
from typing import Any

from svc.errors import RequestError

_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "contains", "propertyNames")
_OPENERS = ("additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "$ref")


def closed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """`schema`, with every object that lists properties closed, unless it says itself what else there may be.

    A schema that puts objects together out of several (`allOf`) stays as it is: each of them lists a part of the properties.
    RequestError for one that is nested too deeply.
    """
    try:
        return schema if _combines(schema) else _closed(schema)
    except RecursionError:
        raise RequestError("this JSON schema is nested too deeply") from None


def _combines(value: Any) -> bool:
    """Whether there is an `allOf` that joins anything. One of a single member alone, which generators write, does not."""
    if isinstance(value, Mapping):
        parts = value.get("allOf")
        if isinstance(parts, list) and (len(parts) > 1 or "properties" in value):
            return True
        return any(map(_combines, value.values()))
    return isinstance(value, list) and any(map(_combines, value))


def _closed(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    out = dict(schema)
    for word in _OF_SCHEMAS:
        if isinstance(out.get(word), Mapping):
            out[word] = {name: _closed(each) for name, each in out[word].items()}
    for word in _LISTS:
        if isinstance(out.get(word), list):
            out[word] = [_closed(each) for each in out[word]]
    for word in _SINGLE:
        if word in out:
            out[word] = [_closed(each) for each in out[word]] if isinstance(out[word], list) else _closed(out[word])
    if isinstance(out.get("properties"), Mapping) and out["properties"] and not any(word in out for word in _OPENERS):
        out["additionalProperties"] = False
    return out
