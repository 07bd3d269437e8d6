"""Calls that a grammar forces or watches over: parsed, they call offered tools with arguments that fit."""

import json
from typing import Any

import jsonschema
import pytest

from svc.errors import RequestError
from svc.http.text.grammar.compiler import CompiledGrammar, GrammarCompiler
from svc.http.text.grammar.tool_grammar import CallableTool, compile_calls
from svc.http.text.tokenizer import Tokenizer
from svc.http.text.tool_calls.call_format import FORMATS, HERMES, MISTRAL, QWEN_XML, CallFormat
from tests.fakes.answers import Read, read, written
from tests.fakes.fake_text import VOCAB_SIZE, byte_tokenizer
from tests.fakes.walks import accepts, walk

_BYTES = byte_tokenizer()
_COMPILER = GrammarCompiler(_BYTES, VOCAB_SIZE)
_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 10},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["c", "f", None]},
        "where": {"anyOf": [{"$ref": "#/$defs/point"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
    },
    "required": ["city", "where"],
    "additionalProperties": False,
    "$defs": {
        "point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"], "additionalProperties": False},
    },
}
_WEATHER = CallableTool("weather", _PARAMETERS, strict=True)
_WEATHER_NOW = CallableTool("weather_now", None)
_TOOLS = [_WEATHER, _WEATHER_NOW]


def _offered(tools: list[CallableTool]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": tool.name, "parameters": tool.parameters or {}}} for tool in tools]


def _drawn(grammar: CompiledGrammar, form: CallFormat, tokenizer: Tokenizer, seeds: int = 8) -> list[tuple[str, Read]]:
    texts = [walk(grammar, tokenizer, seed, 900, hurry=60) for seed in range(seeds)]
    return [(text, read(list(text), form, _offered(_TOOLS), reasoning=None)) for text in texts if text is not None]


def _check(got: Read) -> None:
    for call in got.calls:
        assert call.complete, call
        if call.name == "weather":
            jsonschema.validate(json.loads(call.arguments), _PARAMETERS)
        else:
            assert call.name == "weather_now"
            assert isinstance(json.loads(call.arguments), dict)


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("real", [False, True], ids=["bytes", "tiny vocabulary"])
def test_required_calls(form: CallFormat, real: bool, tokenizer: Tokenizer) -> None:
    """Whatever is drawn is calls alone, at least one, of offered tools, with arguments of their schemas."""
    used = tokenizer if real else _BYTES
    compiler = GrammarCompiler(used, used.num_tokens) if real else _COMPILER
    drawn = _drawn(compile_calls(compiler, form, _TOOLS, parallel=True, required=True), form, used)
    assert drawn
    for _, got in drawn:
        assert got.content == ""
        assert got.calls
        _check(got)


@pytest.mark.parametrize("form", [HERMES, QWEN_XML, MISTRAL], ids=["hermes", "qwen-xml", "mistral"])
def test_calls_in_free_text(form: CallFormat) -> None:
    """Without the need to call: text of any kind, and from the opening tag on a right call."""
    grammar = compile_calls(_COMPILER, form, _TOOLS, parallel=True, required=False)
    call = written(form, [("weather", {"city": "Oslo", "where": None})])
    assert accepts(grammar.matcher(), b"No call at all, <tool> or {.")
    assert accepts(grammar.matcher(), f"Let me see.\n{call}\n{call} Done.".encode())
    assert not accepts(grammar.matcher(), f"Let me see.\n{call.replace('null', '7')}".encode())
    assert not accepts(grammar.matcher(), form.open_tag.encode() + b" no call")
    for _, got in _drawn(grammar, form, _BYTES, seeds=3):
        _check(got)


def test_one_call_where_calls_may_not_be_parallel() -> None:
    """The answer ends with the first call."""
    grammar = compile_calls(_COMPILER, HERMES, [_WEATHER_NOW], parallel=False, required=True)
    call = written(HERMES, [("weather_now", {})])
    assert accepts(grammar.matcher(), call.encode())
    assert not accepts(grammar.matcher(), f"{call}\n{call}".encode())


def test_only_the_named_tool() -> None:
    """A grammar of one tool takes no other."""
    grammar = compile_calls(_COMPILER, QWEN_XML, [_WEATHER_NOW], parallel=True, required=True)
    assert accepts(grammar.matcher(), written(QWEN_XML, [("weather_now", {})]).encode())
    assert not accepts(grammar.matcher(), written(QWEN_XML, [("weather", {"city": "x", "where": None})]).encode())


def test_xml_values() -> None:
    """Required parameters must come, others may, in the schema's order; text may contain tags that do not end it."""
    grammar = compile_calls(_COMPILER, QWEN_XML, [_WEATHER], parallel=True, required=True)
    for arguments, fits in [
        ({"city": "a\n<b>", "where": None}, True),
        ({"city": "", "days": 3, "unit": "c", "where": {"x": 1}, "tags": ["a"]}, True),
        ({"city": "x", "unit": None, "where": None}, True),
        ({"city": "x"}, False),
        ({"where": None, "city": "x"}, False),
        ({"city": "x" * 11, "where": None}, False),
        ({"city": "x", "days": 15, "where": None}, False),
        ({"city": "x", "unit": "k", "where": None}, False),
    ]:
        text = written(QWEN_XML, [("weather", dict(arguments))])
        assert accepts(grammar.matcher(), text.encode()) is fits, arguments


@pytest.mark.parametrize("form", [HERMES, QWEN_XML], ids=["hermes", "qwen-xml"])
@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}, {"x": [1, 1]}),
        ({"type": "object", "properties": {"x": {"type": "frob"}}}, {"x": "y"}),
        ({"type": "object", "properties": {"x": {"type": "string", "format": "foo"}}}, {"x": "y"}),
        ({"type": "object", "properties": {"x": {"$ref": "#/nowhere"}}}, {"x": "y"}),
    ],
)
def test_as_much_of_a_schema_as_can_be_enforced(form: CallFormat, schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    """A tool that is not strict is called all the same; a strict one is refused, by name."""
    grammar = compile_calls(_COMPILER, form, [CallableTool("f", schema)], parallel=True, required=True)
    assert accepts(grammar.matcher(), written(form, [("f", arguments)]).encode())
    if form is HERMES or "format" in str(schema) or "uniqueItems" in str(schema):
        with pytest.raises(RequestError, match=r"tool f cannot be enforced: .+"):
            compile_calls(_COMPILER, form, [CallableTool("f", schema, strict=True)], parallel=True, required=True)


def test_bounds_that_no_float_holds() -> None:
    """The nearest float is the bound of a tool that is not strict; the types of its parameters are enforced as before."""
    schema = {"type": "object", "properties": {"id": {"type": "integer", "maximum": 2**63 - 1}}, "required": ["id"]}
    grammar = compile_calls(_COMPILER, HERMES, [CallableTool("f", schema)], parallel=False, required=True)
    assert accepts(grammar.matcher(), written(HERMES, [("f", {"id": 5})]).encode())
    assert not accepts(grammar.matcher(), written(HERMES, [("f", {"id": "5"})]).encode())
    with pytest.raises(RequestError, match="tool f cannot be enforced: integers beyond"):
        compile_calls(_COMPILER, HERMES, [CallableTool("f", schema, strict=True)], parallel=False, required=True)
