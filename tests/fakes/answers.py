"""Answers read by the parser, and written as models write them: shared by the tests of it."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from svc.http.text.answer_parser import AnswerParser
from svc.http.text.answer_parts import CallArguments, CallEnd, CallStart, ContentText, Part, ReasoningText
from svc.http.text.reasoning import ReasoningTags
from svc.http.text.tool_calls.call_format import Body, CallFormat
from svc.http.text.tool_calls.offered_tools import OfferedTools

THINK = ReasoningTags()


@dataclass
class Call:
    name: str
    arguments: str = ""
    complete: bool | None = None  # None: not ended


@dataclass
class Read:
    """An answer put together from its parts, as a client does."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)

    def take(self, parts: Iterable[Part]) -> "Read":
        """Parts must come in order: a call's arguments while it is open, one call at a time, no part empty."""
        for part in parts:
            open_calls = [n for n, call in enumerate(self.calls) if call.complete is None]
            match part:
                case ReasoningText(text):
                    assert text
                    assert not self.content
                    assert not self.calls
                    self.reasoning += text
                case ContentText(text):
                    assert text
                    assert not open_calls
                    self.content += text
                case CallStart(index, call_id, name):
                    assert not open_calls
                    assert index == len(self.calls)
                    assert call_id == f"id{index}"
                    self.calls.append(Call(name))
                case CallArguments(index, text):
                    assert text
                    assert open_calls == [index]
                    self.calls[index].arguments += text
                case CallEnd(index, complete):
                    assert open_calls == [index]
                    self.calls[index].complete = complete
        return self

    @property
    def called(self) -> list[tuple[str, Any]]:
        """Names and decoded arguments."""
        return [(call.name, json.loads(call.arguments)) for call in self.calls]


def parser(form: CallFormat | None, tools: Sequence[dict[str, Any]] = (), **options: Any) -> AnswerParser:
    """Ids are id0, id1 and so on."""
    ids = iter(range(10_000))
    options = {"reasoning": THINK, "new_id": lambda: f"id{next(ids)}", **options}
    return AnswerParser(calls=form, tools=OfferedTools(tools), **options)


def read(pieces: Iterable[str], form: CallFormat | None, tools: Sequence[dict[str, Any]] = (), **options: Any) -> Read:
    answer, result = parser(form, tools, **options), Read()
    for piece in pieces:
        result.take(answer.push(piece))
    return result.take(answer.end())


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


def written(form: CallFormat, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """The calls as the format's models write them."""
    texts = [form.open + name + form.between + _arguments(form, arguments) + form.close for name, arguments in calls]
    return form.first + form.separator.join(texts) + form.last


def _arguments(form: CallFormat, arguments: dict[str, Any]) -> str:
    if form.body is not Body.XML:
        return json.dumps(arguments, ensure_ascii=False)
    return "".join(f"<parameter={key}>\n{_as_text(value)}\n</parameter>\n" for key, value in arguments.items())


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
