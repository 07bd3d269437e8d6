"""How text is cut into words: against scanners written from the published descriptions, one character at a time."""

import unicodedata
from collections.abc import Callable, Iterator
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.http.text.pretokenize import PRE_TOKENIZERS, byte_alphabet, pre_tokenizer

Scanner = Callable[[str], Iterator[str]]
CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")


def kind(char: str) -> str:
    """L(etter), N(umber), S(pace) or O(ther)."""
    if char.isspace():
        return "S"
    first = unicodedata.category(char)[0]
    return first if first in "LN" else "O"


def run_end(text: str, start: int, of: str) -> int:
    end = start
    while end < len(text) and kind(text[end]) == of:
        end += 1
    return end


def gpt_2(text: str) -> Iterator[str]:
    """Contractions; a run of letters, of numbers or of others, with one space before it; of other white space all but the last
    character before a word, which stands alone."""
    at = 0
    while at < len(text):
        end = next((at + len(short) for short in CONTRACTIONS if text.startswith(short, at)), at)
        if end == at:
            word = at + (text[at] == " ")
            if word < len(text) and kind(text[word]) != "S":
                end = run_end(text, word, kind(text[word]))
            else:
                end = run_end(text, at, "S")
                end -= end < len(text) and end - at > 1
        yield text[at:end]
        at = end


def smollm(text: str) -> Iterator[str]:
    """Every digit by itself, what is between them as GPT-2."""
    for is_number, group in groupby(text, lambda char: kind(char) == "N"):
        chars = list(group)
        yield from chars if is_number else gpt_2("".join(chars))


def default(text: str) -> Iterator[str]:
    """Runs of punctuation apart, all as GPT-2, then numbers apart from the space before them, and three ASCII digits apart."""

    def is_punctuation(char: str) -> bool:
        return unicodedata.category(char)[0] == "P" or char in "$+<=>^~|"

    for _, group in groupby(text, is_punctuation):
        for word in gpt_2("".join(group)):
            for _, part in groupby(word, lambda char: kind(char) == "N"):
                yield from threes("".join(part))


def threes(text: str) -> Iterator[str]:
    start = at = 0
    while at < len(text):
        if len(text[at : at + 3]) == 3 and all(char in "0123456789" for char in text[at : at + 3]):
            if at > start:
                yield text[start:at]
            yield text[at : at + 3]
            start = at = at + 3
        else:
            at += 1
    if start < len(text):
        yield text[start:]


def gpt_4(text: str, most_digits: int) -> Iterator[str]:
    """Contractions in any case; letters, with one character before them that is no letter, number or line end; numbers of so many
    digits at most; others, with a space before and line ends behind them; white space up to its last line end, or as GPT-2."""
    at = 0
    while at < len(text):
        end = next((at + len(short) for short in CONTRACTIONS if text[at : at + len(short)].lower() == short), at)
        word = at + (kind(text[at]) not in "LN" and text[at] not in "\r\n")
        others = at + (text[at] == " ")
        if end > at:
            pass
        elif word < len(text) and kind(text[word]) == "L":
            end = run_end(text, word, "L")
        elif kind(text[at]) == "N":
            end = min(run_end(text, at, "N"), at + most_digits)
        elif others < len(text) and kind(text[others]) == "O":
            end = run_end(text, others, "O")
            while end < len(text) and text[end] in "\r\n":
                end += 1
        else:
            end = run_end(text, at, "S")
            last_line_end = max(text.rfind("\r", at, end), text.rfind("\n", at, end))
            if last_line_end >= 0:
                end = last_line_end + 1
            else:
                end -= end < len(text) and end - at > 1
        yield text[at:end]
        at = end


SCANNERS: dict[str, Scanner] = {
    "gpt-2": gpt_2,
    "smollm": smollm,
    "default": default,
    "llama-bpe": lambda text: gpt_4(text, 3),
    "qwen2": lambda text: gpt_4(text, 1),
}
UNITS = [
    "a",
    "Z",
    "it",
    "é",
    "漢",
    "か",
    "а",
    "1",
    "23",
    "45678",
    "٣",
    "½",
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "\n\n",
    "\u3000",
    "'",
    "'s",
]
UNITS += ["'LL", "'re", "'x", ".", "!?", "$", "+", "`", "_", "<|", "。", "¿", "€", "🙂", "\u0301", "3.14", " 1,000 "]


@pytest.mark.parametrize("name", SCANNERS)
@settings(deadline=None, max_examples=500)
@given(units=st.lists(st.sampled_from(UNITS), max_size=12))
def test_words_are_those_of_a_scanner(name: str, units: list[str]) -> None:
    """The library cuts any mixture of letters, digits, spaces, line ends, contractions and punctuation as the scanner does."""
    text, alphabet = "".join(units), byte_alphabet()
    words = pre_tokenizer(PRE_TOKENIZERS[name]).pre_tokenize_str(text)
    assert [bytes(alphabet[char] for char in word).decode() for word, _ in words] == list(SCANNERS[name](text))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt-2", ["In", " 2024", ",", " it", "'s", " 1234567", "!"]),
        ("smollm", ["In", " ", "2", "0", "2", "4", ",", " it", "'s", " ", "1", "2", "3", "4", "5", "6", "7", "!"]),
        ("default", ["In", " ", "202", "4", ",", " it", "'", "s", " ", "123", "456", "7", "!"]),
        ("llama-bpe", ["In", " ", "202", "4", ",", " it", "'s", " ", "123", "456", "7", "!"]),
        ("qwen2", ["In", " ", "2", "0", "2", "4", ",", " it", "'s", " ", "1", "2", "3", "4", "5", "6", "7", "!"]),
    ],
)
def test_digits_and_contractions(name: str, words: list[str]) -> None:
    """What tells the families apart, spelled out."""
    assert list(SCANNERS[name]("".join(words))) == words
    cut = pre_tokenizer(PRE_TOKENIZERS[name]).pre_tokenize_str("".join(words))
    assert [word.replace("Ġ", " ") for word, _ in cut] == words


def test_other_names_of_the_same() -> None:
    """Files of derived models name their own pre-tokenizer where it is another's."""
    for name in ("deepseek-r1-qwen", "megrez", "kormo", "f2llmv2"):
        assert PRE_TOKENIZERS[name] is PRE_TOKENIZERS["qwen2"]
    for name in ("llama3", "llama-v3"):
        assert PRE_TOKENIZERS[name] is PRE_TOKENIZERS["llama-bpe"]
