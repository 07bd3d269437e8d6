"""The request fields that say what form an answer must have: OpenAI's, llama-server's, vLLM's, SGLang's and Ollama's names."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from svc.errors import RequestError
from svc.http.fields import naming, shown, unsupported
from svc.http.schema import AnswerIn, JsonObject
from svc.http.text.grammar.lark import json_rule
from svc.http.text.grammar.spec import ANY_OBJECT, GrammarSpec, Notation, choice_spec, schema_spec

LARK_HEAD = "%llguidance"  # a grammar that begins so is llguidance's own, as in llama-server

_SCHEMAS = ("json_schema", "guided_json")
_GRAMMARS = ("grammar", "grammar_string", "guided_grammar", "ebnf")
_EXPRESSIONS = ("regex", "guided_regex")


@dataclass(frozen=True, slots=True)
class AnswerGrammar:
    """What an answer must be, and the field that says so."""

    spec: GrammarSpec
    param: str


def answer_grammar(body: AnswerIn) -> AnswerGrammar | None:
    """None if the answer is free. RequestError for a field that is no grammar, and for two that both are."""
    found = list(_grammars(body))
    if len(found) > 1:
        first, second = found[0].param, found[1].param
        raise RequestError(f"{second} cannot be combined with {first}: an answer has one form.", param=second)
    return found[0] if found else None


def _grammars(body: AnswerIn) -> Iterator[AnswerGrammar]:
    spec = _response_format(body.response_format)
    if spec:
        yield AnswerGrammar(spec, "response_format")
    for name in _SCHEMAS:
        value = getattr(body, name)
        if value not in (None, "", {}):
            yield AnswerGrammar(_schema(value, name), name)
    for name in _GRAMMARS:
        if text := _text(getattr(body, name), name):
            yield AnswerGrammar(_grammar(text, name), name)
    for name in _EXPRESSIONS:
        if text := _text(getattr(body, name), name):
            yield AnswerGrammar(_expression(text, name), name)
    if body.guided_choice not in (None, []):
        yield AnswerGrammar(_choice(body.guided_choice, "guided_choice"), "guided_choice")
    if body.format not in (None, ""):
        yield AnswerGrammar(_ollama_format(body.format), "format")
    if body.structured_outputs:
        yield from _structured_outputs(body.structured_outputs)


def _response_format(value: JsonObject | None) -> GrammarSpec | None:
    if not value:
        return None
    match value.get("type"):
        case "text":
            return None
        case "json_object":
            schema = value.get("schema")  # llama-server's, and Together's
            return schema_spec(ANY_OBJECT) if schema is None else _schema(schema, "response_format.schema")
        case "json_schema":
            return _openai_schema(value.get("json_schema"))
        case other:
            raise unsupported("response_format.type", json.dumps(other)[:80])


def _openai_schema(value: Any) -> GrammarSpec:
    param = "response_format.json_schema"
    if not isinstance(value, dict):
        raise RequestError(f"{param} must be an object, not {shown(value)}.", param=param)
    schema = value.get("schema", value.get("json_schema"))
    if schema is None:
        raise RequestError(f"{param}.schema is required.", param=f"{param}.schema", code="missing_field")
    return _schema(schema, f"{param}.schema", lenient=value.get("strict") is False)


def _schema(value: Any, param: str, *, lenient: bool = False) -> GrammarSpec:
    """`value`: a schema, or the JSON text of one. `lenient`: what of it cannot be enforced is left out."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise RequestError(f"{param} is a text that is not valid JSON.", param=param) from None
    if value is True:
        value = {}
    with naming(param):
        spec = schema_spec(value)
        return GrammarSpec(Notation.LARK, "start: " + json_rule(value, lenient=True)) if lenient else spec


def _grammar(text: str, param: str) -> GrammarSpec:
    with naming(param):
        if text.lstrip().startswith(LARK_HEAD):
            return GrammarSpec(Notation.LARK, text)
        return GrammarSpec(Notation.GBNF, text)


def _expression(text: str, param: str) -> GrammarSpec:
    with naming(param):
        return GrammarSpec(Notation.REGEX, text)


def _choice(value: Any, param: str) -> GrammarSpec:
    if not isinstance(value, list):
        raise RequestError(f"{param} must be a list of strings, not {shown(value)}.", param=param)
    with naming(param):
        return choice_spec(value)


def _ollama_format(value: Any) -> GrammarSpec:
    return schema_spec(ANY_OBJECT) if value == "json" else _schema(value, "format")


def _structured_outputs(value: JsonObject) -> Iterator[AnswerGrammar]:
    """vLLM's object, in which one member says what the answer must be."""
    for key, member in value.items():
        param = f"structured_outputs.{key[:40]}"
        if member is None or member is False or key in ("whitespace_pattern", "disable_fallback", "disable_any_whitespace"):
            continue
        match key:
            case "json":
                yield AnswerGrammar(_schema(member, param), param)
            case "json_object":
                yield AnswerGrammar(schema_spec(ANY_OBJECT), param)
            case "regex":
                yield AnswerGrammar(_expression(_text(member, param), param), param)
            case "choice":
                yield AnswerGrammar(_choice(member, param), param)
            case "grammar":
                yield AnswerGrammar(_grammar(_text(member, param), param), param)
            case _:
                raise unsupported(param, json.dumps(member)[:80])


def _text(value: Any, param: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RequestError(f"{param} must be a string, not {shown(value)}.", param=param)
    return value
