"""Tool arguments written as plain text, made into JSON by the tool's JSON schema.

XML-like formats write `<parameter=count>3</parameter>`: only the schema tells whether that is 3 or "3".
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from svc.http.text.tool_calls.json_text import is_json, json_string, python_to_json

_SPACE = " \t\r\n"
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER = re.compile(r"([+-]?)(?=\.?[0-9])([0-9]*)(\.[0-9]*)?([eE][+-]?[0-9]+)?")
_NULLS = ("null", "None")
# The types of JSON schema, and the names of other languages that clients write in their place.
_TYPE_NAMES = {
    "string": ("string", "str", "text"),
    "integer": ("integer", "int", "long"),
    "number": ("number", "float", "double"),
    "boolean": ("boolean", "bool"),
    "object": ("object", "dict", "map"),
    "array": ("array", "list", "tuple"),
    "null": ("null", "none"),
}
_TYPES = {name: kind for kind, names in _TYPE_NAMES.items() for name in names}


@dataclass(frozen=True, slots=True)
class ArgumentType:
    """`types`: those of JSON schema that the argument may have, empty where nothing is known. `strings`: those of its enum."""

    types: frozenset[str] = frozenset()
    strings: frozenset[str] = frozenset()

    @property
    def is_text(self) -> bool:
        """Whether the text is the value, or null, and nothing else."""
        return "string" in self.types and self.types <= {"string", "null"}

    def may_be_null(self, text: str) -> bool:
        """Whether a text that begins so may turn out to be null."""
        return "null" in self.types and any(null.startswith(text.strip(_SPACE)) for null in _NULLS)

    def to_json(self, text: str) -> str:
        """The JSON of `text`: of the first type that it fits, and else a string."""
        bare = text.strip(_SPACE)
        if text in self.strings or bare in self.strings:
            return json_string(text if text in self.strings else bare)
        for read in (self._null, self._boolean, self._number, self._container):
            value = read(bare)
            if value is not None:
                return value
        return json_string(text)

    def _null(self, text: str) -> str | None:
        allowed = "null" in self.types or "string" not in self.types  # None where it is not allowed says that best
        return "null" if allowed and text in _NULLS else None

    def _boolean(self, text: str) -> str | None:
        if self.types and "boolean" not in self.types:
            return None
        return text.lower() if text.lower() in ("true", "false") else None

    def _number(self, text: str) -> str | None:
        if self.types and self.types.isdisjoint({"number", "integer"}):
            return None
        if _JSON_NUMBER.fullmatch(text):
            return text
        return None if not self.types or "string" in self.types else _repaired_number(text)

    def _container(self, text: str) -> str | None:
        kinds = [kind for kind, opener in (("object", "{"), ("array", "[")) if text.startswith(opener)]
        if not kinds or (self.types and self.types.isdisjoint({"object", "array"})):
            return None
        return text if is_json(text) else python_to_json(text)


def argument_type(schema: Any, root: Any = None) -> ArgumentType:
    """The type that `schema` gives; `root` is the schema that its references point into."""
    types: set[str] = set()
    strings: set[str] = set()
    for found in _alternatives(schema, schema if root is None else root, set()):
        types.update(_types_of(found))
        strings.update(value for value in _listed(found) if isinstance(value, str))
    return ArgumentType(frozenset(types), frozenset(strings))


def _alternatives(schema: Any, root: Any, seen: set[str]) -> Iterator[Mapping[str, Any]]:
    """`schema` and all that it refers to or combines."""
    if not isinstance(schema, Mapping):
        return
    yield schema
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        seen.add(reference)
        yield from _alternatives(_resolved(reference, root), root, seen)
    for word in ("anyOf", "oneOf", "allOf"):
        options = schema.get(word)
        for option in options if isinstance(options, list) else ():
            yield from _alternatives(option, root, seen)


def _resolved(reference: str, root: Any) -> Any:
    """What `#/$defs/Name` points to, None if nothing."""
    if not reference.startswith("#"):
        return None
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        root = root.get(name) if isinstance(root, Mapping) else None
    return root


def _types_of(schema: Mapping[str, Any]) -> Iterator[str]:
    named = schema.get("type")
    for name in named if isinstance(named, list) else [named]:
        if isinstance(name, str) and name.lower() in _TYPES:
            yield _TYPES[name.lower()]
    if schema.get("nullable") is True:
        yield "null"
    if named is None:
        yield from map(_type_of_value, _listed(schema))
        yield from (kind for kind, word in (("object", "properties"), ("array", "items")) if word in schema)


def _listed(schema: Mapping[str, Any]) -> list[Any]:
    """The values that `enum` and `const` allow."""
    values = schema.get("enum")
    return [*(values if isinstance(values, list) else []), *([schema["const"]] if "const" in schema else [])]


def _type_of_value(value: Any) -> str:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _repaired_number(text: str) -> str | None:
    """JSON of a number that other languages write: +5, .5, 5., 007."""
    found = _NUMBER.fullmatch(text)
    if not found:
        return None
    sign, whole, fraction, exponent = found.groups(default="")
    return f"{sign.strip('+')}{whole.lstrip('0') or 0}{fraction if fraction != '.' else ''}{exponent}"
