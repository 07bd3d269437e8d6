"""Answers that end at a line which leaves their block."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.http.text.indentation import IndentationCheck


def _whole(text: str, width: int) -> str:
    """By lines: all up to the first one, but for the beginning, that has less white space and something behind it."""
    first, *lines = text.split("\n")
    shown = first
    for number, line in enumerate(lines, 1):
        space = len(line) - len(line.lstrip(" \t"))
        is_last = number == len(lines)
        if space < width and (line[space:] or not is_last):
            return shown + "\n" + line[:space]
        shown += "\n" + line
    return shown


@settings(max_examples=500, deadline=None)
@given(pieces=st.lists(st.text("ab \t\n", max_size=6), max_size=12), width=st.integers(1, 4))
def test_pieces_give_what_the_lines_give(pieces: list[str], width: int) -> None:
    """However the text is cut."""
    check = IndentationCheck(width)
    shown = "".join([check.push(piece) for piece in pieces])
    expected = _whole("".join(pieces), width)
    assert (shown, check.hit) == (expected, expected != "".join(pieces))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x\n    y\n", "x\n    y\n"),
        ("x\n    y\nz", "x\n    y\n"),
        ("x\n\n    y", "x\n"),
        ("x\n\ty", "x\n\t"),
        ("x\n  ", "x\n  "),
        ("", ""),
    ],
)
def test_examples(text: str, shown: str) -> None:
    """Worked cases of four characters: an empty line ends the answer, as in llama-server."""
    assert IndentationCheck(4).push(text) == shown
