"""Keeps text written by people from becoming control tokens: a marker character breaks up whatever would spell one.

The marker goes into every string of a request before rendering and comes out of the rendered text after it was cut at the control
tokens. Limit: a template that writes the bars itself around a person's text (`<|` + name + `|>`) makes a control token of it.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from svc.errors import RequestError
from svc.http.text.long_search import WINDOW_CHARS, matches, replaced

_BARS = "|｜"
_PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
_ESCAPES = re.compile(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|\\u[ef][0-9a-f]{3}")  # as json.dumps writes private use
_LONGEST_ESCAPE = 12
_NUM_EASY = 4  # characters tried one by one before the text is searched for all of them


@dataclass(frozen=True, slots=True)
class Marker:
    """`char` is in none of the request's strings, and neither is its JSON escape (which `tojson(ensure_ascii=true)` writes)."""

    char: str

    def taken_out_of(self, text: str) -> str:
        """The text as the person wrote it."""
        return replaced(replaced(text, self.char, ""), _escape(self.char), "")


class ControlGuard:
    """Breaks up whatever in a string spells a control token or could become part of one.

    Nearly all control tokens have a bar in them; a marker behind every bar keeps them apart even when a template glues, cuts or
    replaces strings. The others are broken only where a string spells them in full.
    """

    def __init__(self, control_tokens: Iterable[str]) -> None:
        texts = list(control_tokens)
        self._bars = [bar for bar in _BARS if any(bar in text for text in texts)]
        rest = sorted((t for t in texts if len(t) > 1 and not any(bar in t for bar in _BARS)), key=len, reverse=True)
        self._rest = re.compile("|".join(map(re.escape, rest))) if rest else None
        self._longest = max(map(len, rest), default=0)

    def needed(self, text: str) -> bool:
        """Whether `broken` would change `text`."""
        return any(bar in text for bar in self._bars) or any(True for _ in self._spelled(text))

    def broken(self, text: str, marker: Marker) -> str:
        """`text` with the marker in it, from which no control token can be read."""
        for bar in self._bars:
            text = replaced(text, bar, bar + marker.char)
        pieces, start = [], 0
        for match in self._spelled(text):
            pieces += [text[start : match.start() + 1], marker.char]
            start = match.start() + 1
        return "".join([*pieces, text[start:]]) if pieces else text

    def _spelled(self, text: str) -> Iterator[re.Match[str]]:
        """Control tokens without a bar."""
        return matches(self._rest, text, self._longest) if self._rest else iter(())


def absent_character(texts: Iterable[str]) -> str:
    """A private-use character that occurs in none of `texts`, nor its JSON escape. RequestError when they use all 137,468."""
    text = "\0".join(texts)
    for code in _PRIVATE_USE[0][:_NUM_EASY]:
        if chr(code) not in text and _escape(chr(code)) not in text:
            return chr(code)
    used = {match.group() for match in matches(_ESCAPES, text, _LONGEST_ESCAPE)}  # hostile text: one pass over it, whatever it has
    for start in range(0, len(text), WINDOW_CHARS):
        used.update(text[start : start + WINDOW_CHARS])
    for char in (chr(code) for codes in _PRIVATE_USE for code in codes):
        if char not in used and _escape(char) not in used:
            return char
    raise RequestError("the messages use every private-use character of Unicode", param="messages")


def strings(value: Any) -> Iterator[str]:
    """Every string in plain JSON data, object keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of plain JSON data with every string, object keys included, put through `change` (which must be one-to-one)."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): mapped(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [mapped(item, change) for item in value]
    return value


def _escape(char: str) -> str:
    return json.dumps(char)[1:-1]
