"""Grammars of tool calls: the model's own way to write them, with arguments that fit the tools' schemas."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from svc.errors import RequestError
from svc.http.text.grammar.compiler import CompiledGrammar, GrammarCompiler
from svc.http.text.grammar.lark import json_rule, lark_rule, literal
from svc.http.text.grammar.spec import ANY_OBJECT, GrammarSpec, Notation
from svc.http.text.tool_calls.argument_types import argument_type
from svc.http.text.tool_calls.call_format import Body, CallFormat

MAX_COUNTED_CHARS = 2000  # a longer bound of a string's length is not enforced in XML


@dataclass(frozen=True, slots=True)
class CallableTool:
    """`strict`: a schema that cannot be enforced is an error; else as much of it is as can be."""

    name: str
    parameters: Any
    strict: bool = False


def compile_calls(
    compiler: GrammarCompiler,
    form: CallFormat,
    tools: Sequence[CallableTool],
    *,
    parallel: bool,
    required: bool,
    otherwise: GrammarSpec | None = None,
) -> CompiledGrammar:
    """For answers that are calls of `tools` and nothing else, or (not `required`) text in which every call is right.

    `otherwise`: what an answer without calls must be, a schema or a regular expression; then it is one of the two.
    RequestError names a strict tool whose schema cannot be enforced.
    """
    if otherwise:
        compiler.check(otherwise)  # what is wrong with it is said without the tools
    lines = [*_frame(form, len(tools), parallel, required, otherwise)]
    opening = form.open if required else form.open.removeprefix(form.open_tag)
    for number, tool in enumerate(tools):
        lines.append(f"call{number}: {literal(opening + tool.name + form.between)} arguments{number} {literal(form.close)}")
        lines += _arguments(compiler, form, f"arguments{number}", tool)
    return compiler.compile(GrammarSpec(Notation.LARK, "\n".join(lines)))


def _frame(form: CallFormat, num_tools: int, parallel: bool, required: bool, otherwise: GrammarSpec | None) -> Iterator[str]:
    yield f"call: {' | '.join(f'call{number}' for number in range(num_tools))}"
    if required:
        more = f"({literal(form.separator)} call)*" if parallel else ""
        yield f"start: calls{' | answer' if otherwise else ''}"
        yield f"calls: {literal(form.first)} call {more} {literal(form.last)}"
        if otherwise:
            yield f"answer: {lark_rule(otherwise)}"
    else:
        yield f"start: (announced call){'*' if parallel else '?'} TEXT"
        yield f"announced[lazy]: /(?s:.*)/ {literal(form.open_tag)}"
        yield "TEXT: /(?s:.*)/"


# -- arguments ---------------------------------------------------------------------------------------------------------------------
class _Rigour(Enum):
    """How much of a schema is enforced."""

    ALL = auto()
    WHAT_CAN_BE = auto()
    SHAPE = auto()  # an object, or the parameters' names


def _arguments(compiler: GrammarCompiler, form: CallFormat, rule: str, tool: CallableTool) -> list[str]:
    """The rules of the most rigour that can be enforced; a strict tool's have all of it."""
    schema = tool.parameters if isinstance(tool.parameters, Mapping) and tool.parameters else ANY_OBJECT
    write = _xml_arguments if form.body is Body.XML else _json_arguments
    problem = ""
    for rigour in _Rigour:
        try:
            rules = list(write(rule, schema, rigour))
            compiler.check(GrammarSpec(Notation.LARK, "\n".join([f"start: {rule}", *rules])))
        except RequestError as error:
            problem = problem or str(error).partition(": ")[2]
            if tool.strict:
                break
        else:
            return rules
    raise RequestError(f"the parameters of the tool {tool.name} cannot be enforced: {problem}")


def _json_arguments(rule: str, schema: Mapping[str, Any], rigour: _Rigour) -> Iterator[str]:
    known = ANY_OBJECT if rigour is _Rigour.SHAPE else schema
    yield f"{rule}: {json_rule(known, lenient=rigour is _Rigour.WHAT_CAN_BE)}"


def _xml_arguments(rule: str, schema: Mapping[str, Any], rigour: _Rigour) -> Iterator[str]:
    """The parameters in the order of the schema, those that are not required optional."""
    properties, required = schema.get("properties"), schema.get("required")
    known = properties if isinstance(properties, Mapping) else {}
    needed = required if isinstance(required, list) else []
    names = [f"{rule}_{number}" for number in range(len(known))]
    optional = [name + ("" if key in needed else "?") for name, key in zip(names, known, strict=True)]
    yield f"{rule}: {' '.join(optional) or literal('')}"
    for name, (key, value) in zip(names, known.items(), strict=True):
        yield f"{name}: {literal(f'<parameter={key}>{chr(10)}')} {name}_value"
        yield from _xml_value(f"{name}_value", value, schema, rigour)


def _xml_value(rule: str, value: Any, root: Mapping[str, Any], rigour: _Rigour) -> Iterator[str]:
    """One value, and the tag that ends it."""
    schema = value if isinstance(value, Mapping) else {}
    end = "\n</parameter>\n"
    listed = schema.get("enum", [schema["const"]] if "const" in schema else None)
    kind = argument_type(schema, root)
    if isinstance(listed, list) and listed:
        texts = [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in listed]
        yield f"{rule}: ({' | '.join(map(literal, texts))}) {literal(end)}"
    elif not kind.types or "string" in kind.types or rigour is _Rigour.SHAPE:
        if rigour is _Rigour.ALL and (unknown := [word for word in ("pattern", "format") if word in schema]):
            raise RequestError(f"strings: {unknown[0]} is not enforced where values are written without quotes")
        yield f"{rule}[lazy]: /(?s:.{_length(schema)})\\n<\\/parameter>\\n/"
    else:
        definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
        yield f"{rule}: {json_rule({**definitions, **schema}, lenient=rigour is not _Rigour.ALL)} {literal(end)}"


def _length(schema: Mapping[str, Any]) -> str:
    """The quantifier for the characters of a string."""
    least, most = (schema.get(word) for word in ("minLength", "maxLength"))
    low = least if isinstance(least, int) and 0 <= least <= MAX_COUNTED_CHARS else 0
    high = most if isinstance(most, int) and low <= most <= MAX_COUNTED_CHARS else ""
    return f"{{{low},{high}}}"
