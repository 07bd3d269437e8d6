"""Searching in long texts without stopping everybody: `re` and `str` hold the interpreter lock until they have ended."""

import re
from collections.abc import Iterator

WINDOW_CHARS = 2**16  # searched at once: a few milliseconds for the slowest patterns


def matches(pattern: re.Pattern[str], text: str, longest: int) -> Iterator[re.Match[str]]:
    """`pattern.finditer(text)`, of a pattern that looks at nothing but its matches, which have 1 to `longest` characters."""
    start, length = 0, len(text)
    while start < length:
        end = start + WINDOW_CHARS
        match = pattern.search(text, start, end + longest)
        if match is None or match.start() >= end:  # one that begins behind the window may be cut off by its end
            start = end
        else:
            yield match
            start = match.end()


def replaced(text: str, old: str, new: str) -> str:
    """`text.replace(old, new)`, of an `old` that cannot overlap itself."""
    parts, start = [], 0
    while start < len(text):
        end = start + WINDOW_CHARS
        across = text.find(old, max(start, end - len(old) + 1), end + len(old) - 1)
        if across >= 0:
            end = across + len(old)
        parts.append(text[start:end].replace(old, new))
        start = end
    return "".join(parts)
