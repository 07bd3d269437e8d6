"""How text is cut into words before BPE, and the alphabet that byte-level BPE spells bytes in.

Both are fixed by the model family: a vocabulary trained on one cut gives other ids under another one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Regex
from tokenizers import pre_tokenizers as library

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_NEWLINES_AND_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _gpt_4(letters: str, digits: str) -> str:
    """A word may begin with one character that is no letter; punctuation takes the line ends behind it."""
    return (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|{digits}"
        rf"| ?[^\s{letters}\p{{N}}]+[\r\n]*|{_NEWLINES_AND_SPACES}"
    )


# Where words begin, whatever stands further left or right: text cut there encodes to the same ids part by part.
# A space only begins a word or belongs to a run of spaces; a letter is never followed by punctuation in one word, nor a digit by
# either. (Letters: those that every version of Unicode agrees on.)
_SPACE = r"(?<=\S)(?= )"
_PUNCTUATION = r"(?<=[A-Za-z\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fd5])(?=[!-/:-@\[-`{-~\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f])"
_DIGIT = r"(?<=\S)(?=[0-9])"  # each digit is a word
_NUMBER = r"(?<=[!-/:-~])(?=[0-9])"  # the first digit of a number
_LINE = r"(?<=\n)(?=\S)"  # a word that ends in a newline takes all of them
_ONE_NEWLINE = r"(?<=\S\n)(?=\S)"  # of two, the second is a word of its own, but not where the text ends behind it


@dataclass(frozen=True, slots=True)
class Words:
    """How a family of models cuts text. The patterns are applied in turn, each to the pieces that the one before left; what none of
    them matches is a piece too."""

    patterns: tuple[str, ...]
    starts: re.Pattern[str]  # empty matches at some of the places where words begin
    whole_words: bool = False  # a word that is a token is taken whole, though no merges may lead to it
    add_bos: bool = False  # where the file does not say


def _words(*patterns: str, starts: tuple[str, ...], whole_words: bool = False, add_bos: bool = False) -> Words:
    return Words(patterns, re.compile("|".join(starts)), whole_words, add_bos)


_QWEN_STARTS = (_SPACE, _DIGIT, _LINE, _PUNCTUATION)
_QWEN2 = _words(_gpt_4(r"\p{L}", r"\p{N}"), starts=_QWEN_STARTS)
_LLAMA_3 = _words(_gpt_4(r"\p{L}", r"\p{N}{1,3}"), starts=(_SPACE, _NUMBER, _LINE, _PUNCTUATION), whole_words=True, add_bos=True)

# By their names in `tokenizer.ggml.pre`.
PRE_TOKENIZERS: Mapping[str, Words] = {
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "megrez": _QWEN2,
    "kormo": _QWEN2,
    "f2llmv2": _QWEN2,
    # Combining marks stay in the word that they belong to.
    "qwen35": _words(_gpt_4(r"\p{L}\p{M}", r"\p{N}"), starts=_QWEN_STARTS),
    "llama-bpe": _LLAMA_3,
    "llama3": _LLAMA_3,
    "llama-v3": _LLAMA_3,
    "falcon3": _LLAMA_3,
    "pixtral": _LLAMA_3,
    "gpt-2": _words(_GPT_2, starts=(_SPACE, _NUMBER, _ONE_NEWLINE, _PUNCTUATION)),
    "smollm": _words(r"\p{N}", _GPT_2, starts=(_SPACE, _DIGIT, _ONE_NEWLINE, _PUNCTUATION)),
    # Of files whose converter knew no name, as llama.cpp cuts for them: punctuation by itself, numbers in groups of three.
    "default": _words(r"[\p{P}$+<=>^~|]+", _GPT_2, r"\p{N}+", r"[0-9]{3}", starts=(_SPACE, _NUMBER, _ONE_NEWLINE, _PUNCTUATION)),
}


def pre_tokenizer(words: Words) -> library.PreTokenizer:
    """The same for the `tokenizers` library, which then spells the bytes of a word in the alphabet below."""
    cuts = [library.Split(Regex(pattern), "isolated") for pattern in words.patterns]
    return library.Sequence([*cuts, library.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_alphabet() -> dict[str, int]:
    """The 256 characters that byte-level BPE writes bytes with, as character -> byte.

    Printable Latin-1 stands for itself; the other 68 bytes are numbered from U+0100 in byte order.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if chr(byte) not in alphabet)
    return alphabet | {chr(0x100 + n): byte for n, byte in enumerate(others)}
