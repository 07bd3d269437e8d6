"""Header lines in front of a system text that change with every request: the cache could reuse nothing behind them."""

import re

_HEADER = re.compile(r"\A(x-[a-z0-9-]*header):[^\n]*(?:\n|\Z)", re.IGNORECASE)


def masked(text: str) -> tuple[str, list[str]]:
    """`text` without such lines at its beginning, and their names. A coding agent sends `x-anthropic-billing-header: ...`."""
    names: list[str] = []
    while found := _HEADER.match(text):
        names.append(found.group(1).lower())
        text = text[found.end() :]
    return (text.lstrip("\n") if names else text), names
