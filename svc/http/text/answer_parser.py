"""The text of one answer parted into reasoning, content and tool calls."""

import uuid
from collections.abc import Callable

from svc.http.text.answer_parts import Part, PartWriter
from svc.http.text.incremental import Markers, Parse, Reader
from svc.http.text.reasoning import ReasoningTags
from svc.http.text.tool_calls.call_format import CallFormat
from svc.http.text.tool_calls.call_parser import CallParser
from svc.http.text.tool_calls.calls_in_reasoning import CallsInReasoning
from svc.http.text.tool_calls.offered_tools import OfferedTools

_NO_MARKERS = Markers()


def new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


class AnswerParser:
    """Takes the text in any pieces; the parts, joined, do not depend on how it was cut. No text is an error."""

    def __init__(
        self,
        *,
        reasoning: ReasoningTags | None = None,
        inside: bool = False,
        calls: CallFormat | None = None,
        tools: OfferedTools | None = None,
        max_calls: int | None = None,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        """`reasoning`, `calls`: what is looked for, None: nothing. `inside`: the prompt has opened the reasoning.

        Calls beyond `max_calls` are left out.
        """
        offered = tools or OfferedTools(())
        self._tags = reasoning
        self._writer = PartWriter(new_id, max_calls=max_calls)
        self._content = CallParser(calls, offered, self._writer) if calls else None
        self._reasoning = CallsInReasoning(calls, offered, self._writer) if calls and calls.open_tag else None
        self._reader = Reader()
        self.in_reasoning = inside and reasoning is not None
        self._parsing = self._answer()
        next(self._parsing)

    @property
    def num_calls(self) -> int:
        """Calls begun, those left out included."""
        return self._writer.num_calls

    @property
    def has_all_calls(self) -> bool:
        """Whether the last of `max_calls` has ended."""
        return self._writer.has_all_calls

    def push(self, text: str) -> list[Part]:
        """What `text` makes certain."""
        if text:
            self._reader.feed(text)
            next(self._parsing)
        return self._writer.take()

    def end(self) -> list[Part]:
        """The answer has ended: the rest."""
        self._reader.end()
        next(self._parsing, None)
        return self._writer.take()

    def _answer(self) -> Parse[None]:
        """Reasoning, if it comes first, then content."""
        if self._tags:
            at = yield from self._reader.space_end()
            opened = yield from self._reader.starts(self._tags.open, at=at)
            if opened:  # also where the prompt had opened it: models do that
                self._reader.take(at + len(opened))
            if opened or self.in_reasoning:
                yield from self._read_reasoning(self._tags)
        yield from self._reader.until(_NO_MARKERS, self._write_content)
        if self._content:
            self._content.end()
        self._writer.flush()

    def _read_reasoning(self, tags: ReasoningTags) -> Parse[None]:
        self.in_reasoning = True
        self._writer.begin_reasoning()
        sink = self._reasoning.push if self._reasoning else self._writer.text
        close = yield from self._reader.until(Markers(tags.close), sink)
        if close:
            if self._reasoning:
                self._reasoning.close()
            self._reader.take(len(close))
            self._writer.end_reasoning()
        elif self._reasoning:
            self._reasoning.end()
        self.in_reasoning = False

    def _write_content(self, text: str) -> None:
        if self._content:
            self._content.push(text)
        else:
            self._writer.text(text)
