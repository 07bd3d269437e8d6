"""Long texts are searched in windows, and nobody can tell."""

import re
from unittest import mock

from hypothesis import example, given
from hypothesis import strategies as st

from svc.http.text import long_search
from svc.http.text.long_search import matches, replaced

TOKENS = ["<|a|>", "<|a|><|b|>", "<|", "ab", "aba", "x"]
PATTERN = re.compile("|".join(map(re.escape, sorted(TOKENS, key=len, reverse=True))))
texts = st.lists(st.sampled_from([*TOKENS, "a", "b", "<", "|", " "]), max_size=30).map("".join)


@given(texts, st.integers(1, 12))
@example("<|a|><|b|>", 1)
def test_matches_are_those_of_finditer(text: str, window: int) -> None:
    """The leftmost and longest ones, also where they lie across the end of a window."""
    with mock.patch.object(long_search, "WINDOW_CHARS", window):
        found = [match.span() for match in matches(PATTERN, text, max(map(len, TOKENS)))]
    assert found == [match.span() for match in PATTERN.finditer(text)]


@given(texts, st.integers(1, 12), st.sampled_from(["a", "<|", "<|a|>", "ab"]), st.sampled_from(["", "ab", "<|<|"]))
def test_replacing_is_that_of_str(text: str, window: int, old: str, new: str) -> None:
    """Every occurrence is replaced, and nothing that only the replacement makes."""
    with mock.patch.object(long_search, "WINDOW_CHARS", window):
        assert replaced(text, old, new) == text.replace(old, new)
