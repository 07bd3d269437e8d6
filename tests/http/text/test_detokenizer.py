"""Incremental detokenization equals decoding the whole."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.http.text.answer_text import AnswerText
from svc.http.text.detokenizer import Detokenizer
from svc.http.text.tokenizer import Tokenizer


@settings(deadline=None, max_examples=200)
@given(ids=st.lists(st.integers(0, 2047), max_size=40), show_control=st.booleans())
def test_pieces_join_to_the_full_decode(tokenizer: Tokenizer, ids: list[int], show_control: bool) -> None:
    """For any ids, valid UTF-8 or not, the pushed pieces and the flush join to `decode` of the whole."""
    detokenizer = Detokenizer(tokenizer, show_control=show_control)
    text = "".join([detokenizer.push(i) for i in ids]) + detokenizer.flush()
    assert text == tokenizer.decode(ids, show_control=show_control)
    assert text == b"".join(tokenizer.token_bytes(i) for i in ids if show_control or not tokenizer.is_control(i)).decode(
        "utf-8", "replace"
    )


def test_a_character_appears_with_its_last_byte(tokenizer: Tokenizer) -> None:
    """A four-byte character in byte tokens comes out whole, at its last token, and nothing before."""
    alphabet = {tokenizer.token_bytes(i): i for i in range(256)}
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(alphabet[bytes([byte])]) for byte in "🙂".encode()]
    assert pieces == ["", "", "", "🙂"]
    assert detokenizer.flush() == ""


def test_an_unfinished_character_becomes_a_replacement_at_the_end(tokenizer: Tokenizer) -> None:
    """Bytes without their end are shown as U+FFFD by flush only."""
    alphabet = {tokenizer.token_bytes(i): i for i in range(256)}
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push(alphabet[bytes([byte])]) for byte in b"a\xf0\x9f"] == ["a", "", ""]
    assert detokenizer.flush() == "\ufffd"


def test_ids_beyond_the_vocabulary_have_no_text(tokenizer: Tokenizer) -> None:
    """A padded output row may be sampled; pushing it must not fail."""
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push(i) for i in (tokenizer.num_tokens, 10**9, -1)] == ["", "", ""]


@pytest.mark.parametrize("show_control", [False, True])
def test_control_tokens_are_hidden_unless_asked(tokenizer: Tokenizer, show_control: bool) -> None:
    """`<|im_end|>` has text only on request; `<think>` always."""
    ids = tokenizer.encode("<think>x</think><|im_end|>", parse_special=True)
    detokenizer = Detokenizer(tokenizer, show_control=show_control)
    shown = "".join([detokenizer.push(i) for i in ids]) + detokenizer.flush()
    assert shown == "<think>x</think>" + ("<|im_end|>" if show_control else "")


@settings(deadline=None, max_examples=200)
@given(
    ids=st.lists(st.sampled_from([64, 65, 66, 68, 136, 223, 2018, 2040]), max_size=30),
    stop=st.lists(st.text("abc\ufffd<", min_size=1, max_size=3), max_size=3),
)
def test_an_answer_is_the_decoded_text_cut_at_the_first_stop(tokenizer: Tokenizer, ids: list[int], stop: list[str]) -> None:
    """Deltas join to the decoded text up to the earliest stop string, and `stopped` says whether there was one."""
    answer = AnswerText(tokenizer, tuple(stop))
    shown, stopped = "", False
    for token_id in ids:
        delta = answer.push(token_id)
        shown, stopped = shown + delta.text, delta.stopped
        if stopped:
            break
    if not stopped:
        delta = answer.flush()
        shown, stopped = shown + delta.text, delta.stopped
    text = tokenizer.decode(ids, show_control=False)
    starts = [at for s in stop if (at := text.find(s)) >= 0]
    assert stopped == bool(starts) == (answer.stop_hit is not None)
    assert shown == (text[: min(starts)] if starts else text)


def test_nothing_comes_out_after_a_stop(tokenizer: Tokenizer) -> None:
    """Tokens of a step already under way when the stop string came add no text."""
    answer = AnswerText(tokenizer, ("b",))
    ids = tokenizer.encode("a", parse_special=False) + tokenizer.encode("b", parse_special=False)
    assert [answer.push(i) for i in ids] == [("a", False), ("", True)]
    assert answer.push(ids[0]) == ("", True)
    assert answer.flush() == ("", True)


def test_stop_strings_wait_for_min_tokens(tokenizer: Tokenizer) -> None:
    """Neither a stop string among the first tokens ends the answer, nor one that reaches into them; the next whole one does."""
    letters = [tokenizer.encode(letter, parse_special=False)[0] for letter in "abababc"]
    answer = AnswerText(tokenizer, ("ba",), min_tokens=4)
    deltas = [answer.push(token) for token in letters]
    assert "".join(delta.text for delta in deltas) == "abababc"
    assert [delta.stopped for delta in deltas] == [False] * 7
    answer = AnswerText(tokenizer, ("ab", "c"), min_tokens=4)
    deltas = [answer.push(token) for token in letters]
    assert "".join(delta.text for delta in deltas) == "abab"
    assert [delta.stopped for delta in deltas] == [False] * 5 + [True] * 2
