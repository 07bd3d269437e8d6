"""Answers as Anthropic's messages: a list of blocks, whole or as a stream of events."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import UNSET

from svc.http.answer import Answer
from svc.http.anthropic.schema import (
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    InputDelta,
    MessageDelta,
    MessageOut,
    MessageStart,
    MessageStop,
    MessagesUsage,
    SignatureDelta,
    StopOut,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from svc.http.errors import ApiError, anthropic_body
from svc.http.generation import Generation
from svc.http.service import Service
from svc.http.sse import named_event
from svc.http.text.answer_parts import CallArguments, CallEnd, CallStart, ContentText, Part, ReasoningText

SIGNATURE = "headrace"  # of a thinking block: clients send it back, and nothing here needs it
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesDialect:
    """One answer to a request."""

    def __init__(self, service: Service, generation: Generation, *, show_reasoning: bool) -> None:
        self._service = service
        self._generation = generation
        self._show_reasoning = show_reasoning
        self._index = -1  # of the block under way, or the last
        self._open: type[Part] | None = None  # the kind of the block under way
        self._begun = False

    # -- whole ------------------------------------------------------------------------------------------------------------------
    def whole(self) -> MessageOut:
        (answer,) = self._generation.answers
        message = self._message(self._usage(answer), list(_blocks(self._shown(answer.buffer.take().parts))))
        stop = self._stop(answer)
        message.stop_reason, message.stop_sequence = stop.stop_reason, stop.stop_sequence
        message.headrace = self._generation.report() or UNSET
        return message

    # -- stream -----------------------------------------------------------------------------------------------------------------
    def news(self, answer: Answer) -> bytes:
        return b"".join(map(_event, self._news(answer)))

    def _news(self, answer: Answer) -> Iterator[Any]:
        if not self._begun:
            self._begun = True
            yield MessageStart(self._message(MessagesUsage(len(answer.prompt.ids), 0, 0), []))
        for part in self._shown(answer.buffer.take().parts):
            yield from self._part(part)
        if answer.finish_reason:
            yield from self._close()
            end = MessageDelta(self._stop(answer), self._usage(answer))
            end.headrace = self._generation.report() or UNSET
            yield end
            yield MessageStop()

    def _part(self, part: Part) -> Iterator[Any]:
        match part:
            case ContentText(text):
                yield from self._text(ContentText, TextBlock(""), TextDelta(text))
            case ReasoningText(text):
                yield from self._text(ReasoningText, ThinkingBlock("", ""), ThinkingDelta(text))
            case CallStart(_, id, name):
                yield from self._close()
                yield from self._begin(CallStart, ToolUseBlock(id, name, {}))
            case CallArguments(_, text):
                yield BlockDelta(self._index, InputDelta(text))
            case CallEnd():
                yield from self._close()

    def _text(self, kind: type[Part], empty: Block, delta: TextDelta | ThinkingDelta) -> Iterator[Any]:
        if self._open is not kind:
            yield from self._close()
            yield from self._begin(kind, empty)
        yield BlockDelta(self._index, delta)

    def _begin(self, kind: type[Part], block: Block) -> Iterator[Any]:
        self._index += 1
        self._open = kind
        yield BlockStart(self._index, block)

    def _close(self) -> Iterator[Any]:
        if self._open is ReasoningText:
            yield BlockDelta(self._index, SignatureDelta(SIGNATURE))
        if self._open is not None:
            yield BlockStop(self._index)
        self._open = None

    def last_events(self) -> bytes:
        return b""

    def error_event(self, error: ApiError) -> bytes:
        return named_event("error", anthropic_body(error))

    # -- both -------------------------------------------------------------------------------------------------------------------
    def _message(self, usage: MessagesUsage, blocks: list[Block]) -> MessageOut:
        return MessageOut(self._generation.id, self._service.model.name, blocks, usage)

    def _shown(self, parts: Iterable[Part]) -> Iterator[Part]:
        return (part for part in parts if self._show_reasoning or not isinstance(part, ReasoningText))

    def _usage(self, answer: Answer) -> MessagesUsage:
        assert answer.finished is not None
        usage = answer.finished.usage
        return MessagesUsage(usage.prompt_tokens - usage.cached_tokens, usage.completion_tokens, usage.cached_tokens)

    def _stop(self, answer: Answer) -> StopOut:
        if answer.stopping_word is not None:
            return StopOut("stop_sequence", answer.stopping_word)
        return StopOut(_STOP_REASONS[answer.finish_reason or "stop"], None)


def _blocks(parts: Iterable[Part]) -> Iterator[Block]:
    call: CallStart | None = None
    arguments: list[str] = []
    for part in parts:
        match part:
            case ContentText(text):
                yield TextBlock(text)
            case ReasoningText(text):
                yield ThinkingBlock(text, SIGNATURE)
            case CallStart():
                call, arguments = part, []
            case CallArguments(_, text):
                arguments.append(text)
            case CallEnd():
                assert call is not None
                yield ToolUseBlock(call.id, call.name, _input("".join(arguments)))


def _input(text: str) -> Any:
    """The arguments as an object. What is no JSON, because the model wrote it so or was cut off, stays a text."""
    try:
        value = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return {"arguments": text}
    return value if isinstance(value, dict) else {"arguments": text}


def _event(value: Any) -> bytes:
    return named_event(value.__struct_config__.tag, value)
