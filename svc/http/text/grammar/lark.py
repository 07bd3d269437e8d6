"""Every notation made into one: llguidance's Lark."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from llguidance import regex_to_lark

from svc.errors import RequestError
from svc.http.text.grammar.closing import closed
from svc.http.text.grammar.gbnf.to_lark import gbnf_to_lark
from svc.http.text.grammar.spec import GrammarSpec, Notation

# Text that must come may be spelled by any tokens. Otherwise all of it would be tokenized in every step, which has no bound.
FREE_TOKENS = '%llguidance {"no_forcing": true}\n'
_OWN_OPTIONS = re.compile(r"^[ \t]*%llguidance\b.*$", re.MULTILINE)
# White space only where people put it: with as much as JSON allows, a model may write nothing else for ever.
_JSON_OPTIONS = {
    "whitespace_flexible": False,
    "item_separator": ",[ ]?",
    "key_separator": ":[ ]?",
    "lenient": False,
    "coerce_one_of": False,
}
# llguidance reads every number as a float, and these words would then mean another one.
_MAX_EXACT = 2**53
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_VALUES = frozenset({"const", "enum"})
MAX_PATH_CHARS = 400

# From the outermost object to a value in it, as keys and indices, the last one first: a whole path for each of many values would
# take memory that grows with the square of the schema.
Trail: TypeAlias = "tuple[Trail, str | int] | None"


def as_lark(spec: GrammarSpec) -> str:
    """RequestError if it is no grammar of its notation."""
    match spec.notation:
        case Notation.JSON_SCHEMA | Notation.REGEX:
            return FREE_TOKENS + "start: " + lark_rule(spec)
        case Notation.GBNF:
            return FREE_TOKENS + gbnf_to_lark(spec.text)
        case Notation.LARK:
            return FREE_TOKENS + _OWN_OPTIONS.sub("", spec.text)


def lark_rule(spec: GrammarSpec) -> str:
    """A schema or a regular expression, to be used in a rule."""
    if spec.notation is Notation.JSON_SCHEMA:
        return json_rule(json.loads(spec.text))
    assert spec.notation is Notation.REGEX
    return f"/{regex_to_lark(spec.text, '')}/"


def json_rule(schema: Mapping[str, Any], *, lenient: bool = False) -> str:
    """JSON that fits `schema`, closed, to be used in a rule. `lenient`: what cannot be enforced is left out.

    RequestError for integers that would become others; `lenient` lets bounds be the nearest float.
    """
    _check_integers(schema, _VALUES if lenient else _VALUES | _BOUNDS)
    return "%json " + json.dumps({**closed(schema), "x-guidance": {**_JSON_OPTIONS, "lenient": lenient}}, ensure_ascii=False)


def literal(text: str) -> str:
    """`text` itself, to be used in a rule."""
    return json.dumps(text, ensure_ascii=False)


def members(value: Any) -> Iterator[tuple[Trail, Any]]:
    """All that is in `value`, each with the way to it, the outermost first."""
    waiting: list[tuple[Trail, Any]] = [(None, value)]
    while waiting:
        trail, value = waiting.pop()
        if trail is not None:
            yield trail, value
        steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        waiting += reversed([((trail, step), item) for step, item in steps])


def path_of(trail: Trail) -> str:
    """As `properties.x.enum[1]`; of a very long one the end."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in _steps(trail))[-MAX_PATH_CHARS:].lstrip(".")


def _steps(trail: Trail) -> list[str | int]:
    steps: list[str | int] = []
    while trail is not None:
        trail, step = trail
        steps.append(step)
    return steps[::-1]


def _check_integers(schema: Mapping[str, Any], words: frozenset[str]) -> None:
    for trail, value in members(dict(schema)):
        if isinstance(value, int) and abs(value) > _MAX_EXACT and not words.isdisjoint(_steps(trail)):
            message = f"this JSON schema cannot be enforced, at {path_of(trail)}: integers beyond 2^53 are not exact"
            raise RequestError(message)
