"""Parsing a text that comes in pieces: parsers are generators that read from a `Reader` and yield where they need more of it.

A parser decides on text that is there, or on the end of the text, never on where a piece happened to end. So it gives the same
result however the text was cut.
"""

import re
from collections.abc import Callable, Generator
from typing import TypeVar

_T = TypeVar("_T")
Parse = Generator[None, None, _T]  # yields where it needs more text, returns its result
Sink = Callable[[str], None]

_NOT_SPACE = re.compile(r"[^ \t\r\n]")


class Reader:
    """The text ahead of a parser. Text that was taken is forgotten, unless a mark keeps it for a second look."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._dropped = 0  # characters in front of `_text`
        self._mark: int | None = None
        self._ended = False

    def feed(self, text: str) -> None:
        """More text; the parser is to be resumed afterwards."""
        kept = self._at if self._mark is None else self._mark
        self._text = self._text[kept:] + text
        self._dropped += kept
        self._at -= kept
        self._mark = None if self._mark is None else 0

    def end(self) -> None:
        """No more text will come."""
        self._ended = True

    @property
    def position(self) -> int:
        """How many characters have been taken."""
        return self._dropped + self._at

    def take(self, count: int) -> str:
        """Removes `count` characters, which must be there."""
        assert self._at + count <= len(self._text)
        self._at += count
        return self._text[self._at - count : self._at]

    def take_all(self) -> None:
        """Removes what is there."""
        self._at = len(self._text)

    def peek(self, start: int, end: int) -> str:
        """The text from `start` to `end` characters ahead, which is there."""
        return self._text[self._at + start : self._at + end]

    def mark(self) -> None:
        """From here on `back` may return; a second mark replaces the first."""
        self._mark = self._at

    def forget_mark(self) -> None:
        self._mark = None

    def back(self) -> None:
        """Returns to the mark, which is gone afterwards."""
        assert self._mark is not None
        self._at, self._mark = self._mark, None

    # -- what a parser asks -------------------------------------------------------------------------------------------------------
    def more(self) -> Parse[bool]:
        """Waits for the next piece; False when the text has ended."""
        if self._ended:
            return False
        yield
        return True

    def char(self, at: int = 0) -> Parse[str]:
        """The character `at` characters ahead, empty behind the end."""
        while self._at + at >= len(self._text):
            if not (yield from self.more()):
                return ""
        return self._text[self._at + at]

    def space_end(self, at: int = 0) -> Parse[int]:
        """Where the white space that begins `at` characters ahead ends."""
        while True:
            found = _NOT_SPACE.search(self._text, self._at + at)
            if found:
                return found.start() - self._at
            at = max(at, len(self._text) - self._at)
            if not (yield from self.more()):
                return at

    def skip_space(self) -> Parse[None]:
        self.take((yield from self.space_end()))

    def starts(self, *markers: str, at: int = 0) -> Parse[str | None]:
        """The first of `markers` that the text begins with, `at` characters ahead. None may be the beginning of another."""
        while True:
            text = self._text[self._at + at : self._at + at + max(map(len, markers), default=0)]
            for marker in markers:
                if text.startswith(marker):
                    return marker
            if not any(marker.startswith(text) for marker in markers) or not (yield from self.more()):
                return None

    def may_start(self, *markers: str, at: int = 0) -> Parse[bool]:
        """Whether the text, `at` characters ahead, begins with one of `markers`, or ends before that shows."""
        if (yield from self.starts(*markers, at=at)):
            return True
        rest = self._text[self._at + at : self._at + at + max(map(len, markers), default=0)]
        return any(marker.startswith(rest) for marker in markers)

    def until(self, markers: "Markers", sink: Sink) -> Parse[str | None]:
        """Passes text on to `sink` up to the first of `markers`, which stays ahead; None at the end of the text."""
        while True:
            at, marker = markers.find(self._text, self._at, whole=self._ended)
            if at > self._at:
                sink(self.take(at - self._at))
            if marker is not None:
                return marker
            if not (yield from self.more()):
                return None

    def pass_until(self, stop: re.Pattern[str], sink: Sink) -> Parse[str | None]:
        """Passes text on to `sink` up to the first character that is a `stop`, which stays ahead; None at the end of the text."""
        while True:
            found = stop.search(self._text, self._at)
            end = found.start() if found else len(self._text)
            if end > self._at:
                sink(self.take(end - self._at))
            if found:
                return found.group()
            if not (yield from self.more()):
                return None

    def line_until(self, char: str, at: int = 0) -> Parse[int | None]:
        """How far ahead `char` is, looked for from `at` on; -1 if its line ends or a tag begins first, None if the text ends."""
        stop = re.compile(f"[{re.escape(char)}\n<]")
        while True:
            found = stop.search(self._text, self._at + at)
            if found:
                return found.start() - self._at if found.group() == char else -1
            at = max(at, len(self._text) - self._at)
            if not (yield from self.more()):
                return None


class Markers:
    """Some texts of which the first one is looked for."""

    def __init__(self, *texts: str) -> None:
        assert all(texts)
        self._texts = texts
        self._any = re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True)))) if texts else None
        self._longest = max(map(len, texts), default=0)
        self._first = frozenset(text[0] for text in texts)

    def find(self, text: str, start: int, *, whole: bool) -> tuple[int, str | None]:
        """Where the first marker behind `start` begins, and which. Without one: where one may begin that more text completes."""
        found = self._any.search(text, start) if self._any else None
        if found:
            return found.start(), found.group()
        if not whole:
            tail = max(start, len(text) - self._longest + 1)
            if self._first.isdisjoint(text[tail:]):  # nearly always
                return len(text), None
            for at in range(tail, len(text)):
                if text[at] in self._first and any(marker.startswith(text[at:]) for marker in self._texts):
                    return at, None
        return len(text), None
