"""Finding the end of a JSON value that comes in pieces, without judging it."""

import re

from svc.http.text.incremental import Parse, Reader, Sink
from svc.http.text.tool_calls.json_text import string_value

_OUTSIDE_STRING = re.compile(r'["{}\[\]<]')
_INSIDE_STRING = re.compile(r'["\\\n]')
_SCALAR_END = re.compile(r"[\s,}\]<]")


def pass_value(reader: Reader, sink: Sink, tags: tuple[str, ...]) -> Parse[bool]:
    """Passes one value on as it is written. False if the text ends in it, or one of `tags` breaks it off.

    A tag does so outside of strings, where `<` has no place, and in a string behind a line break, which no valid string has.
    """
    first = yield from reader.char()
    if first == '"':
        return (yield from _pass_string(reader, sink, tags))
    if first and first in "{[":
        return (yield from _pass_container(reader, sink, tags))
    return (yield from reader.pass_until(_SCALAR_END, sink)) is not None


def read_string(reader: Reader, tags: tuple[str, ...]) -> Parse[str | None]:
    """What the string ahead means; None if it does not end."""
    pieces: list[str] = []
    ended = yield from _pass_string(reader, pieces.append, tags)
    return string_value("".join(pieces)) if ended else None


def _pass_container(reader: Reader, sink: Sink, tags: tuple[str, ...]) -> Parse[bool]:
    depth = 0
    while (char := (yield from reader.pass_until(_OUTSIDE_STRING, sink))) is not None:
        if char == '"':
            if not (yield from _pass_string(reader, sink, tags)):
                return False
            continue
        if char == "<" and (yield from reader.starts(*tags)):
            return False
        sink(reader.take(1))
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(char, 0)
        if depth == 0:
            return True
    return False


def _pass_string(reader: Reader, sink: Sink, tags: tuple[str, ...]) -> Parse[bool]:
    sink(reader.take(1))
    while (char := (yield from reader.pass_until(_INSIDE_STRING, sink))) is not None:
        if char == "\\":
            if not (yield from reader.char(1)):
                return False
            sink(reader.take(2))
        elif char == '"':
            sink(reader.take(1))
            return True
        else:
            if (yield from reader.starts(*tags, at=(yield from reader.space_end()))):
                return False
            sink(reader.take(1))
    return False
