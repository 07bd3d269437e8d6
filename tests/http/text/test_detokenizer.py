"""Incremental detokenization equals decoding the whole."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
