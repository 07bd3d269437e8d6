"""Stop strings in a text that comes in pieces, against searching the whole text."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.errors import RequestError
from svc.http.text import stop_strings
from svc.http.text.stop_strings import StopChecker, StopStrings


def _run(stop: tuple[str, ...], pieces: list[tuple[str, bool]]) -> tuple[list[str], str | None]:
    """(what is shown at each piece, the stop string); a piece is (text, whether it is hidden)."""
    checker = StopChecker(StopStrings(stop))
    shown = []
    for text, hidden in pieces:
        shown.append(checker.push("" if hidden else text, hidden=text if hidden else ""))
        if checker.hit is not None:
            return shown, checker.hit
    return [*shown, checker.flush()], checker.hit


def _whole(stop: tuple[str, ...], pieces: list[tuple[str, bool]]) -> tuple[str, str | None]:
    text = "".join(text for text, _ in pieces)
    is_hidden = [hidden for text, hidden in pieces for _ in text]
    found = sorted((text.find(s), len(s), s) for s in stop if s in text)
    end = found[0][0] if found else len(text)
    return "".join(c for c, hidden in zip(text[:end], is_hidden, strict=False) if not hidden), found[0][2] if found else None


def _plain(*pieces: str) -> list[tuple[str, bool]]:
    return [(piece, False) for piece in pieces]


# Two letters: nearly every stop string begins in the middle of another.
_stop = st.lists(st.text("ab", min_size=1, max_size=9), min_size=1, max_size=6).map(tuple)
_pieces = st.lists(st.tuples(st.text("ab", max_size=6), st.sampled_from([False, False, False, True])), max_size=14)


@settings(max_examples=1000, deadline=None)
@given(stop=_stop, pieces=_pieces)
def test_pieces_give_what_the_whole_text_gives(stop: tuple[str, ...], pieces: list[tuple[str, bool]]) -> None:
    """However the text is cut, the shown text and the hit equal a search of the whole: earliest start, then shortest. Hidden text
    counts for the search, and is never shown."""
    shown, hit = _run(stop, pieces)
    assert ("".join(shown), hit) == _whole(stop, pieces)


@settings(max_examples=500, deadline=None)
@given(stop=_stop, pieces=_pieces)
def test_only_what_could_still_stop_is_held_back(stop: tuple[str, ...], pieces: list[tuple[str, bool]]) -> None:
    """After each piece, the text not yet shown is the beginning of a stop string: nothing else waits."""
    checker = StopChecker(StopStrings(stop))
    seen = shown = ""
    for text, _ in pieces:
        shown += checker.push(text)
        seen += text
        if checker.hit is not None:
            break
        held = seen[len(shown) :]
        assert not held or any(s.startswith(held) and s != held for s in stop)


@settings(max_examples=100, deadline=None)
@given(stop=_stop, texts=st.lists(_pieces, min_size=2, max_size=4))
def test_answers_that_share_stop_strings_do_not_disturb_each_other(
    stop: tuple[str, ...], texts: list[list[tuple[str, bool]]]
) -> None:
    """Nodes that one answer has reached are there for the next."""
    shared = StopStrings(stop)
    for pieces in texts:
        checker = StopChecker(shared)
        shown = [checker.push("" if hidden else text, hidden=text if hidden else "") for text, hidden in pieces]
        assert ("".join([*shown, checker.flush()]), checker.hit) == _whole(stop, pieces)


@pytest.mark.parametrize(
    ("stop", "pieces", "shown", "hit"),
    [
        (("\n\n",), _plain("x\n", "\ny"), ["x", ""], "\n\n"),
        (("\n\n",), _plain("x\n", "y"), ["x", "\ny", ""], None),
        (("END",), _plain("aE", "NEN", "D"), ["a", "EN", ""], "END"),
        (("aab",), _plain("aa", "a", "b"), ["", "a", ""], "aab"),
        (("abc", "b"), _plain("ab", "d"), ["", "a"], "b"),
        (("abc", "b"), _plain("ab", "cz"), ["", ""], "abc"),
        (("abc", "b"), _plain("ab"), ["", "a"], "b"),
        (("ab", "abc"), _plain("abc"), [""], "ab"),
        (("x",), _plain("", "axb"), ["", "a"], "x"),
        (("^]-\\",), _plain("a^]", "-", "\\"), ["a", "", ""], "^]-\\"),
        (("<c>user",), [("hi\n", False), ("<c>", True), ("us", False), ("er", False)], ["hi\n", "", "", ""], "<c>user"),
        (("<c>user",), [("hi\n", False), ("<c>", True), ("me", False)], ["hi\n", "", "me", ""], None),
        (("\n<c>",), [("hi\n", False), ("<c>", True)], ["hi", ""], "\n<c>"),
        (("a<c>b", "<c>"), [("a", False), ("<c>", True), ("c", False)], ["", "", "a"], "<c>"),
        (("<c><c>x",), [("<c>", True), ("<c>", True), ("<c>", True), ("y", False)], ["", "", "", "y", ""], None),
    ],
)
def test_examples(stop: tuple[str, ...], pieces: list[tuple[str, bool]], shown: list[str], hit: str | None) -> None:
    """Worked cases: what is shown at each piece, and the stop string found."""
    assert _run(stop, pieces) == (shown, hit)


def test_an_empty_stop_string_is_refused() -> None:
    """An empty stop string would end every answer at once."""
    with pytest.raises(RequestError, match="empty") as error:
        StopStrings(("a", ""))
    assert error.value.param == "stop"


def _lines_run(work: Callable[[], Any]) -> int:
    """Lines of stop_strings.py that `work` runs: a measure of time that is the same each time."""
    count = 0

    def note(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return note if frame.f_code.co_filename == stop_strings.__file__ else None

    before = sys.gettrace()
    sys.settrace(note)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("text", ["a" * 4000, "ab" * 2000, ("a" * 300 + "b") * 13, ("a" * 10 + "b" * 10) * 200])
def test_work_does_not_grow_with_the_number_of_stop_strings(text: str) -> None:
    """64 stop strings of 1,000 characters, all of which the text begins again and again, and none of which it has."""
    stop = StopStrings([("a" * k + "b" * (1000 - k))[:999] + "c" for k in range(0, 1000, 16)])
    checker = StopChecker(stop)

    def read(text: str) -> None:
        for at in range(0, len(text), 4):
            checker.push(text[at : at + 4])

    read(text)  # makes the nodes
    assert checker.hit is None
    assert _lines_run(lambda: read(text)) < 40 * len(text)


def test_nodes_are_no_more_than_the_characters_of_the_stop_strings() -> None:
    """Whatever texts come, and made without recursion however deep they are."""
    stop = ["a" * k + "b" * (1000 - k) for k in range(0, 1001, 100)]
    shared = StopStrings(stop)
    lines = 0
    for text in ("a" * 999 + "b" * 999, "b" * 2000, ("a" * 50 + "b" * 50) * 40, "a" * 5000):
        lines += _lines_run(lambda text=text: StopChecker(shared).push(text))  # type: ignore[misc]
    assert _num_nodes(shared) <= 1 + sum(map(len, stop))
    assert lines < 40 * (sum(map(len, stop)) + 13_000)


def _num_nodes(stop: StopStrings) -> int:
    count, ahead = 0, [stop.root]
    while ahead:
        node = ahead.pop()
        count += 1
        ahead += node.children.values()
    return count
