"""Stop strings in a text that comes in pieces, against searching the whole text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.errors import RequestError
from svc.http.text.stop_strings import StopChecker


def _run(stop: tuple[str, ...], pieces: list[str]) -> tuple[list[str], str | None]:
    checker = StopChecker(stop)
    shown = []
    for piece in pieces:
        emit, hit = checker.push(piece)
        shown.append(emit)
        if hit is not None:
            return shown, hit
    emit, hit = checker.flush()
    return [*shown, emit], hit


def _whole(stop: tuple[str, ...], text: str) -> tuple[str, str | None]:
    found = sorted((text.find(s), len(s), s) for s in stop if s in text)
    return (text[: found[0][0]], found[0][2]) if found else (text, None)


_pieces = st.lists(st.text("ab.", max_size=4), max_size=12)


@settings(max_examples=600)
@given(stop=st.lists(st.text("ab.", min_size=1, max_size=5), max_size=4).map(tuple), pieces=_pieces)
def test_pieces_give_what_the_whole_text_gives(stop: tuple[str, ...], pieces: list[str]) -> None:
    """However the text is cut, the shown text and the hit equal a search of the whole: earliest start, then shortest."""
    shown, hit = _run(stop, pieces)
    assert ("".join(shown), hit) == _whole(stop, "".join(pieces))


@settings(max_examples=300)
@given(stop=st.lists(st.text("ab.", min_size=1, max_size=5), min_size=1, max_size=4).map(tuple), pieces=_pieces)
def test_only_what_could_still_stop_is_held_back(stop: tuple[str, ...], pieces: list[str]) -> None:
    """After each piece, the text not yet shown is the beginning of a stop string: nothing else waits."""
    checker = StopChecker(stop)
    seen = shown = ""
    for piece in pieces:
        emit, hit = checker.push(piece)
        seen, shown = seen + piece, shown + emit
        if hit is not None:
            break
        held = seen[len(shown) :]
        assert not held or any(s.startswith(held) and s != held for s in stop)


@pytest.mark.parametrize(
    ("stop", "pieces", "shown", "hit"),
    [
        ((), ["a", "b"], ["a", "b", ""], None),
        (("\n\n",), ["x\n", "\ny"], ["x", ""], "\n\n"),
        (("\n\n",), ["x\n", "y"], ["x", "\ny", ""], None),
        (("END",), ["aE", "NEN", "D"], ["a", "EN", ""], "END"),
        (("aab",), ["aa", "a", "b"], ["", "a", ""], "aab"),
        (("abc", "b"), ["ab", "d"], ["", "a"], "b"),
        (("abc", "b"), ["ab", "cz"], ["", ""], "abc"),
        (("abc", "b"), ["ab"], ["", "a"], "b"),
        (("ab", "abc"), ["abc"], [""], "ab"),
        (("x",), ["", "axb"], ["", "a"], "x"),
    ],
)
def test_examples(stop: tuple[str, ...], pieces: list[str], shown: list[str], hit: str | None) -> None:
    """Worked cases: what is shown at each piece, and the stop string found."""
    assert _run(stop, pieces) == (shown, hit)


def test_an_empty_stop_string_is_refused() -> None:
    """An empty stop string would end every answer at once."""
    with pytest.raises(RequestError, match="empty") as error:
        StopChecker(("a", ""))
    assert error.value.param == "stop"
