"""How text is cut into words before BPE, and the alphabet that byte-level BPE spells bytes in.

Both are fixed by the model family: a vocabulary trained on one cut gives other ids under another one.
"""

import re

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

# The two differ only in combining marks: qwen35 keeps them in the word they belong to.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_NEWLINES_AND_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS: dict[str, str] = {
    "qwen2": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_NEWLINES_AND_SPACES}",
    "qwen35": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_NEWLINES_AND_SPACES}",
}

# Where every pattern above cuts, whatever stands further left or right: text cut there encodes to the same ids part by part.
# A digit is a word of its own; a space only begins a word or belongs to a run of spaces; a word that ends in a newline takes all of
# them; a letter is never followed by punctuation in one word. (Letters: those that every version of Unicode agrees on.)
WORD_START = re.compile(
    r"(?<=\S)(?=[ 0-9])|(?<=\n)(?=\S)|(?<=[A-Za-z\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fd5])"
    r"(?=[!-/:-@\[-`{-~\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f])"
)


def pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer called `name` in `tokenizer.ggml.pre`; KeyError for a name not in `PATTERNS`."""
    words = Split(Regex(PATTERNS[name]), "isolated")
    return Sequence([words, ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_alphabet() -> dict[str, int]:
    """The 256 characters that byte-level BPE writes bytes with, as character -> byte.

    Printable Latin-1 stands for itself; the other 68 bytes are numbered from U+0100 in byte order.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if chr(byte) not in alphabet)
    return alphabet | {chr(0x100 + n): byte for n, byte in enumerate(others)}
