"""The chain from sampled tokens to parts: detokenizer, stop strings, parser."""

import codecs
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from svc.http.text.answer_parts import ContentText, Part
from svc.http.text.answer_text import AnswerText
from svc.http.text.stop_strings import StopStrings
from svc.http.text.tokenizer import Tokenizer


def _text(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts)


def _answer(answer: AnswerText, ids: list[int]) -> list[str]:
    """What comes out at each token, and last at the end."""
    shown = []
    for token_id in ids:
        shown.append(_text(answer.push(token_id)))
        if answer.stop_hit is not None:
            return shown
    return [*shown, _text(answer.flush())]


def _spelled(tokenizer: Tokenizer, ids: list[int]) -> list[tuple[str, bool]]:
    """(letter, whether it is shown) of the whole text with control tokens spelled, each behind the characters complete by then."""
    raw = b"".join(b"" if tokenizer.is_control(i) else tokenizer.token_bytes(i) for i in ids)
    letters = [(letter, True) for letter in raw.decode("utf-8", "replace")]
    for at in reversed(range(len(ids))):
        if tokenizer.is_control(ids[at]):
            before = b"".join(tokenizer.token_bytes(i) for i in ids[:at] if not tokenizer.is_control(i))
            place = len(codecs.getincrementaldecoder("utf-8")("replace").decode(before))
            letters[place:place] = [(letter, False) for letter in tokenizer.token_text(ids[at])]
    return letters


@settings(deadline=None, max_examples=400)
@given(
    ids=st.lists(st.sampled_from([64, 65, 66, 68, 136, 223, 2018, 2040]), max_size=30),
    stop=st.lists(st.text("abc\ufffd<|im", min_size=1, max_size=4), max_size=3),
)
def test_an_answer_is_the_decoded_text_cut_at_the_first_stop(tokenizer: Tokenizer, ids: list[int], stop: list[str]) -> None:
    """Parts join to the decoded text up to the earliest stop string, and `stop_hit` says whether there was one.

    Among the tokens is `<|im_end|>`: it is spelled in the text that is searched, and not in the text that is shown.
    """
    answer = AnswerText(tokenizer, StopStrings(stop) if stop else None)
    shown = "".join(_answer(answer, ids))
    letters = _spelled(tokenizer, ids)
    spelled = "".join(letter for letter, _ in letters)
    starts = [at for s in stop if (at := spelled.find(s)) >= 0]
    assert bool(starts) == (answer.stop_hit is not None)
    assert shown == "".join(letter for letter, is_shown in letters[: min(starts, default=None)] if is_shown)


def test_nothing_comes_out_after_a_stop(tokenizer: Tokenizer) -> None:
    """Tokens of a step already under way when the stop string came add no text."""
    answer = AnswerText(tokenizer, StopStrings(("b",)))
    ids = tokenizer.encode("a", parse_special=False) + tokenizer.encode("b", parse_special=False)
    assert _answer(answer, ids) == ["a", ""]
    assert answer.stop_hit == "b"
    assert list(answer.push(ids[0])) == []
    assert list(answer.flush()) == []


def test_stop_strings_wait_for_min_tokens(tokenizer: Tokenizer) -> None:
    """Neither a stop string among the first tokens ends the answer, nor one that reaches into them; the next whole one does."""
    letters = [tokenizer.encode(letter, parse_special=False)[0] for letter in "abababc"]
    answer = AnswerText(tokenizer, StopStrings(("ba",)), min_tokens=4)
    assert "".join(_answer(answer, letters)) == "abababc"
    assert answer.stop_hit is None
    answer = AnswerText(tokenizer, StopStrings(("ab", "c")), min_tokens=4)
    assert _answer(answer, letters) == ["a", "b", "a", "b", "", ""]
    assert answer.stop_hit == "ab"


def test_a_stop_string_may_spell_control_tokens(tokenizer: Tokenizer) -> None:
    """It ends the answer at the token, or behind it where ordinary text follows; control tokens are never shown."""
    ids = tokenizer.encode("Hi.<|im_start|>user\nHo", parse_special=True)
    for stop, hit, shown in [
        (["<|im_start|>"], "<|im_start|>", "Hi."),
        (["<|im_start|>user"], "<|im_start|>user", "Hi."),
        ([".<|im_start|>u"], ".<|im_start|>u", "Hi"),
        (["<|im_start|>assistant"], None, "Hi.user\nHo"),
        (["<|im_end|>", "Ho"], "Ho", "Hi.user\n"),
        (["start|>"], "start|>", "Hi."),
    ]:
        answer = AnswerText(tokenizer, StopStrings(stop))
        assert ("".join(_answer(answer, ids)), answer.stop_hit) == (shown, hit), stop


def test_a_control_token_inside_a_character_does_not_break_it(tokenizer: Tokenizer) -> None:
    """The bytes before and behind a control token join, with stop strings as without: for them the token comes first."""
    alphabet = {tokenizer.token_bytes(i): i for i in range(256)}
    (im_start,) = tokenizer.encode("<|im_start|>", parse_special=True)
    ids = [alphabet[b"\xc3"], im_start, alphabet[b"\xa9"]]
    assert "".join(_answer(AnswerText(tokenizer), ids)) == "é"
    assert "".join(_answer(AnswerText(tokenizer, StopStrings(("x",))), ids)) == "é"
    answer = AnswerText(tokenizer, StopStrings(("<|im_start|>é",)))
    assert ("".join(_answer(answer, ids)), answer.stop_hit) == ("", "<|im_start|>é")


class _Upper:
    """Holds back the last character."""

    in_reasoning = False
    num_calls = 0
    has_all_calls = False

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> list[Part]:
        text = self._held + text
        self._held = text[-1:]
        return [ContentText(text[:-1].upper())] if text[:-1] else []

    def end(self) -> list[Part]:
        return [ContentText(self._held.upper())] if self._held else []


def test_a_parser_sees_what_stop_strings_let_through(tokenizer: Tokenizer) -> None:
    """No character of a stop string; what it holds back itself comes at the end, also where a stop string cut the text."""
    ids = [tokenizer.encode(letter, parse_special=False)[0] for letter in "abcdexyz"]
    answer = AnswerText(tokenizer, StopStrings(("xy",)), parser=_Upper())
    assert _answer(answer, ids) == ["", "A", "B", "C", "D", "", ""]
    assert _text(answer.flush()) == "E"
    assert _answer(AnswerText(tokenizer, parser=_Upper()), ids) == ["", *"ABCDEXY", "Z"]
