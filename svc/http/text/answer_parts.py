"""What an answer is made of: reasoning, content and tool calls, as they come."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """The model thinking; without the tags around it."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentText:
    """What the model says to the user."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins. `index` counts the calls of an answer from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """Nothing follows of this call. Not `complete`: the answer ended in it, or its markup is broken; the arguments are so far."""

    index: int
    complete: bool


Part = ReasoningText | ContentText | CallStart | CallArguments | CallEnd


def joined(parts: Iterable[Part]) -> list[Part]:
    """`parts`, with neighbours of which the later one continues the earlier made one."""
    runs = [list(run) for _, run in groupby(parts, key=lambda part: (type(part), getattr(part, "index", 0)))]
    return [run[0] if len(run) == 1 else _one(run) for run in runs]


def _one(run: list[Part]) -> Part:
    texts = [part for part in run if not isinstance(part, CallStart | CallEnd)]
    assert len(texts) == len(run), "a call begins and ends once"
    return replace(texts[0], text="".join(part.text for part in texts))


class CallWriter(Protocol):
    """What a parser of tool calls writes to: text, and calls one after the other."""

    def text(self, text: str) -> None: ...
    def call(self, name: str) -> None: ...
    def arguments(self, text: str) -> None: ...
    def end_call(self, *, complete: bool) -> None: ...


_SPACE = " \t\r\n"


class PartWriter:
    """Collects the parts of one answer in order, and owns the rules of white space.

    Templates separate reasoning, content and calls by empty lines that belong to none of them. So reasoning has no white space at
    either end; content has none right behind reasoning or in front of a call, and behind a call only where it continues earlier
    content. Content beside neither keeps all of it.
    """

    def __init__(self, new_id: Callable[[], str], *, max_calls: int | None = None) -> None:
        """`max_calls`: further calls are left out."""
        self._new_id = new_id
        self._max_calls = max_calls
        self._parts: list[Part] = []
        self._kind: type[ReasoningText] | type[ContentText] = ContentText
        self._space: list[str] = []  # behind the text so far, kept only if text of the same kind follows
        self._drop_space = False  # the text has not begun: white space is no part of it
        self._has_content = False
        self._behind_call = False
        self.num_calls = 0
        self.has_all_calls = False  # the last of `max_calls` has ended

    def take(self) -> list[Part]:
        """What is new, neighbours of one kind joined."""
        parts, self._parts = self._parts, []
        return parts

    def begin_reasoning(self) -> None:
        self._turn_to(ReasoningText)

    def end_reasoning(self) -> None:
        self._turn_to(ContentText)

    def text(self, text: str) -> None:
        """More of the reasoning or of the content, whichever is under way."""
        body = text.rstrip(_SPACE)
        if not body:
            if not self._drop_space:
                self._space.append(text)
            return
        self._add_text(body.lstrip(_SPACE) if self._drop_space else "".join(self._space) + body)
        self._space = [text[len(body) :]]
        self._drop_space = self._behind_call = False
        self._has_content = self._has_content or self._kind is ContentText

    def call(self, name: str) -> None:
        """A call begins; it ends reasoning."""
        self._turn_to(ContentText)
        self._drop_space, self._behind_call = not self._has_content, True
        self.num_calls += 1
        if self._wanted:
            self._parts.append(CallStart(self.num_calls - 1, self._new_id(), name))

    def arguments(self, text: str) -> None:
        """More of the arguments of the call under way."""
        if not (text and self._wanted):
            return
        last = self._parts[-1] if self._parts else None
        if isinstance(last, CallArguments):
            self._parts[-1] = CallArguments(last.index, last.text + text)
        else:
            self._parts.append(CallArguments(self.num_calls - 1, text))

    def end_call(self, *, complete: bool) -> None:
        self.has_all_calls = self.num_calls == self._max_calls
        if self._wanted:
            self._parts.append(CallEnd(self.num_calls - 1, complete))

    def flush(self) -> None:
        """The answer has ended: white space at the end of content belongs to it."""
        if self._kind is ContentText and not self._behind_call and not self._drop_space:
            self._add_text("".join(self._space))
        self._space = []

    @property
    def _wanted(self) -> bool:
        return self._max_calls is None or self.num_calls <= self._max_calls

    def _turn_to(self, kind: type[ReasoningText] | type[ContentText]) -> None:
        if kind is not self._kind:
            self._kind, self._drop_space = kind, True
        self._space = []

    def _add_text(self, text: str) -> None:
        last = self._parts[-1] if self._parts else None
        if isinstance(last, self._kind):
            self._parts[-1] = self._kind(last.text + text)
        elif text:
            self._parts.append(self._kind(text))
