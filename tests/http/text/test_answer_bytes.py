"""From the bytes of sampled tokens to parts, on the way that the server takes: detokenizer, stop strings, parser.

Whatever bytes a model samples, and wherever its tokens cut them, there is no exception, and the parts joined are those of the whole
text, decoded and searched at once.
"""

import codecs
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.http.text.answer_format import answer_format
from svc.http.text.answer_parser import AnswerParser
from svc.http.text.answer_text import AnswerText
from svc.http.text.reasoning import ReasoningTags
from svc.http.text.stop_strings import StopStrings
from svc.http.text.tokenizer import Tokenizer
from svc.http.text.tool_calls.call_format import FORMATS, CallFormat
from tests.fakes.answers import THINK, Read, parser, read, tool, written
from tests.http.text.families import FAMILIES

QUICK, MANY = 300, 1000
TOOLS = [tool("weather", city={"type": "string"}, days={"type": "integer"}), tool("write", text={"type": ["string", "null"]})]
CALLS = [("weather", {"city": "Zürich 🌦", "days": 3}), ("write", {"text": '</function> "\\n" <think>'}), ("other", {})]
CONTROL = "<|im_end|>"


def _forms() -> dict[str, CallFormat | None]:
    """Those known by name, and those learned from templates."""
    learned = {name: answer_format(family.template()).calls for name, family in FAMILIES.items()}
    forms: dict[str, CallFormat | None] = {"none": None, **FORMATS}
    return forms | {name: form for name, form in learned.items() if form not in forms.values()}


FORMS = _forms()
REASONING: dict[str, ReasoningTags | None] = {"none": None, "think": THINK, "bracketed": ReasoningTags("[THINK]", "[/THINK]")}


@dataclass(frozen=True)
class Pieces:
    """A vocabulary made for one answer: token n is the answer's piece n. None is the control token."""

    pieces: tuple[bytes | None, ...]

    @property
    def control_spellings(self) -> dict[int, str]:
        return {n: CONTROL for n, piece in enumerate(self.pieces) if piece is None}

    def shown_bytes(self, *, show_control: bool) -> list[bytes]:
        assert not show_control
        return [piece or b"" for piece in self.pieces]

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id] or b""


def _read(pieces: tuple[bytes | None, ...], stop: list[str], made: AnswerParser, shown: frozenset[int]) -> tuple[Read, str | None]:
    """As the server reads them. A piece whose number is `shown` is a token that is a tag for the parser."""
    tokenizer = cast(Tokenizer, Pieces(pieces))
    answer, result = AnswerText(tokenizer, StopStrings(stop) if stop else None, parser=made, shown=shown), Read()
    for n in range(len(pieces)):
        result.take(answer.push(n))
        if answer.stop_hit is not None:
            break
    return result.take(answer.flush()), answer.stop_hit


def _searched(pieces: tuple[bytes | None, ...], stop: list[str]) -> tuple[str, str | None]:
    """(text shown, stop string): the whole text with its control tokens spelled, cut at the stop string that begins first, or is
    shortest."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    letters: list[tuple[str, bool]] = []
    for piece in pieces:
        letters += [(letter, False) for letter in CONTROL] if piece is None else [(c, True) for c in decoder.decode(piece)]
    letters += [(letter, True) for letter in decoder.decode(b"", True)]
    spelled = "".join(letter for letter, _ in letters)
    found = min(((spelled.find(s), len(s), s) for s in stop if s in spelled), default=(len(spelled), 0, None))
    return "".join(letter for letter, is_shown in letters[: found[0]] if is_shown), found[2]


def _cut(data: list[bytes | None], seed: int) -> tuple[bytes | None, ...]:
    """Everything between control tokens in pieces, mostly of a byte or few, whole at times."""
    rng, pieces = random.Random(seed), list[bytes | None]()
    sizes = rng.choice(((1,), (1, 2, 3, 5), (1, 1, 4, 20), (10**6,)))
    for run in data:
        at = 0
        while run is not None and at < len(run):
            size = rng.choice(sizes)
            pieces.append(run[at : at + size])
            at += size
        if run is None:
            pieces.append(None)
    return tuple(pieces)


# -- answers that are nearly right ------------------------------------------------------------------------------------------------
_BROKEN = [b"\xc3", b"\xa9", b"\xf0\x9f", b"\x8c\xa6", b"\xff", b"\xed\xa0\x80", b"\xc0\xaf", b"\x00", b"\xf4\x90\x80\x80"]
_BITS = [
    b"<", b">", b"</", b"[", b"]", b"{", b"}", b'"', b"\\", b'\\"', b"\\u00", b"\\ud83d", b":", b",", b";", b"=", b"\n", b"\r\n",
    b'"name"', b'"arguments"', b'"parameters"', b"weather", b"other", b"null", b"-1e", b"```json\n", b"```", b"<tools>",
    b"</tools>", b"<parameter=city>", b"<parameter=days>", b"</parameter>", b"<function=weather>", b"</function>",
    b"<|python_tag|>", b"ARGS", b" ", b"x", "é🌦".encode(),
]  # fmt: skip


def _tags(form: CallFormat | None, tags: ReasoningTags | None) -> list[bytes]:
    texts = [tags.open, tags.close] if tags else ["<think>"]
    if form is not None:
        texts += [form.open, form.between, form.close, form.separator, form.first, form.last, form.open_tag, form.close_tag]
    whole = [text.encode() for text in texts if text]
    return whole + [text[: len(text) // 2] for text in whole if len(text) > 1] + [text[1:] for text in whole if len(text) > 1]


def _well_formed(form: CallFormat | None, tags: ReasoningTags | None) -> bytes:
    thought = f"{tags.open}\nI think é\n{tags.close}\n\n" if tags else ""
    return (thought + "I call: " + (written(form, CALLS) if form else "nothing") + "\nDone 🌦").encode()


def _mutated(draw: Callable[[st.SearchStrategy[int]], int], data: bytes, bits: list[bytes]) -> bytes:
    """`data` with some places cut out, written twice, or overwritten."""
    for _ in range(draw(st.integers(0, 5))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 12)))
        what = draw(st.integers(0, len(bits) + 1))
        middle = b"" if what == 0 else data[start:end] * 2 if what == 1 else bits[what - 2]
        data = data[:start] + middle + data[end:]
    return data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 3)) == 0 else data


@st.composite
def _answers(draw: st.DrawFn, form: CallFormat | None, tags: ReasoningTags | None) -> list[bytes | None]:
    """Any bytes, parts of markup in any order, or a right answer with mistakes in it; control tokens between."""
    bits = [*_BITS, *_BROKEN, *_tags(form, tags)]
    kind = draw(st.integers(0, 3))
    if kind == 0:
        data = draw(st.binary(max_size=60))
    elif kind == 1:
        data = b"".join(draw(st.lists(st.sampled_from(bits), max_size=24)))
    else:
        data = _mutated(draw, _well_formed(form, tags), bits)
    if draw(st.integers(0, 2)):
        return [data]
    at = draw(st.integers(0, len(data)))
    return [data[:at], None, data[at:]]


_stops = st.lists(
    st.sampled_from(["Done", "call", "}", "\n\n", "</tool_call>", "\ufffd", "é", CONTROL, "\n" + CONTROL, "im_end|>\n", "zzz"]),
    max_size=2,
)
_seeds = st.integers(0, 2**20)


@dataclass(frozen=True)
class Case:
    form: CallFormat | None
    reasoning: ReasoningTags | None
    inside: bool

    def check(self, data: list[bytes | None], stop: list[str], seed: int, *, offered: bool, max_calls: int | None) -> None:
        def made() -> AnswerParser:
            return parser(self.form, tools, **options)

        options = {"reasoning": self.reasoning, "inside": self.inside, "max_calls": max_calls}
        tools = TOOLS if offered else []
        pieces = _cut(data, seed)
        text, hit = _searched(pieces, stop)
        streamed = _read(pieces, stop, made(), frozenset())
        assert streamed == (read([text], self.form, tools, **options), hit)
        assert all(call.complete is not None for call in streamed[0].calls)
        assert streamed == _read(pieces, stop, made(), frozenset(n for n, piece in enumerate(pieces) if _may_be_a_tag(piece)))


def _may_be_a_tag(piece: bytes | None) -> bool:
    """Tags are text: they end no character that an earlier token has begun, and leave none unfinished."""
    return piece is not None and piece[:1] in (b"<", b"[") and piece.isascii()


CASES = {
    f"{name}-{reasoning}{'-inside' * inside}": Case(form, tags, inside)
    for name, form in FORMS.items()
    for reasoning, tags in REASONING.items()
    for inside in ((False, True) if tags else (False,))
}


@settings(max_examples=QUICK, deadline=None)
@given(st.data())
def test_any_bytes_in_any_pieces(data: st.DataObject) -> None:
    """In every format and with every kind of reasoning: what comes piece by piece is what the whole text gives."""
    case = CASES[data.draw(st.sampled_from(sorted(CASES)))]
    answer, stop, seed = data.draw(_answers(case.form, case.reasoning)), data.draw(_stops), data.draw(_seeds)
    case.check(answer, stop, seed, offered=data.draw(st.booleans()), max_calls=data.draw(st.sampled_from([None, 1])))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_any_bytes_in_any_pieces_at_length(case: Case) -> None:
    """The same, for each of them three times as often as for all of them above."""

    @settings(max_examples=MANY, deadline=None)
    @given(_answers(case.form, case.reasoning), _stops, _seeds, st.booleans(), st.sampled_from([None, 1]))
    def check(answer: list[bytes | None], stop: list[str], seed: int, offered: bool, max_calls: int | None) -> None:
        case.check(answer, stop, seed, offered=offered, max_calls=max_calls)

    check()


@pytest.mark.parametrize("form", [form for form in FORMS.values() if form], ids=[name for name in FORMS if name != "none"])
@settings(max_examples=20, deadline=None)
@given(seed=_seeds)
def test_the_answers_that_mistakes_are_put_into_are_right(form: CallFormat, seed: int) -> None:
    """Without mistakes, reasoning, content and calls are found: else the tests above would look at nothing but text."""
    pieces = _cut([_well_formed(form, THINK)], seed)
    got, _ = _read(pieces, [], parser(form, TOOLS), frozenset())
    assert got.reasoning == "I think é"
    assert got.content.startswith("I call:")
    assert "Done 🌦" in got.content
    assert [call.name for call in got.calls] in ([name for name, _ in CALLS], [])
    assert bool(got.calls) == bool(form.open_tag)  # bare JSON is a call only where the answer begins
