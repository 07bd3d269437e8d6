"""The parts of an answer as a chat message, whole or in deltas."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from svc.http.schema import DeltaOut, FunctionOut, MessageOut, ToolCallOut
from svc.http.text.answer_parts import CallArguments, CallStart, ContentText, Part, ReasoningText


def message_of(parts: Iterable[Part], reasoning_fields: Sequence[str]) -> MessageOut:
    """The whole message. Reasoning goes into each of `reasoning_fields`; none: it is left out."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: dict[int, tuple[CallStart, list[str]]] = {}
    for part in parts:
        match part:
            case ContentText(text):
                content.append(text)
            case ReasoningText(text):
                reasoning.append(text)
            case CallStart(index):
                calls[index] = part, []
            case CallArguments(index, text):
                calls[index][1].append(text)
    message = MessageOut("".join(content) if content or not calls else None)
    if reasoning:
        for field in reasoning_fields:
            setattr(message, field, "".join(reasoning))
    if calls:
        message.tool_calls = [
            ToolCallOut(id=start.id, type="function", function=FunctionOut(start.name, "".join(arguments)))
            for start, arguments in calls.values()
        ]
    return message


def deltas_of(parts: Iterable[Part], reasoning_fields: Sequence[str]) -> Iterator[DeltaOut]:
    """One delta for each part that clients are told of, in order."""
    for part in parts:
        match part:
            case ContentText(text):
                yield DeltaOut(content=text)
            case ReasoningText(text) if reasoning_fields:
                yield msgspec.convert(dict.fromkeys(reasoning_fields, text), DeltaOut)
            case CallStart(index, id, name):
                yield DeltaOut(tool_calls=[ToolCallOut(index, id, "function", FunctionOut(name, ""))])
            case CallArguments(index, text):
                yield DeltaOut(tool_calls=[ToolCallOut(index, function=FunctionOut(arguments=text))])
