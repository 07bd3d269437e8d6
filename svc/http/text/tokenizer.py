"""Text to token ids and back: byte-level BPE as the model file describes it.

No Unicode normalisation: what is encoded is what was written, and decoding gives it back byte for byte.
"""

import enum
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Any

import tokenizers
from tokenizers.models import BPE

from svc.errors import ModelFileError, RequestError
from svc.http.text.breakers import BreakerIndex
from svc.http.text.long_search import WINDOW_CHARS, matches
from svc.http.text.pretokenize import PRE_TOKENIZERS, Words, byte_alphabet, pre_tokenizer
from svc.http.text.unicode import well_formed

_KEY = "tokenizer.ggml."
_SHORT_CHARS = 1000  # encoded with the GIL held: letting it go costs more than the 0.3 ms
_SLICE_CHARS = 2**15  # encoded at once: the library takes about 150 bytes of memory for one of text
_MAX_UNCUT_CHARS = 2**18  # of spaces, say, or of one word: beyond it the library gets slow, and at ten million it panics
_END_TOKENS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
)  # end an answer whatever the file's eos_token_id says


_FILL_IN = ("pre", "suf", "mid", "rep", "sep", "pad")
_OTHER_CONTROL_TOKENS = ("<|im_start|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>")
CONTROL_SHAPE = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")


class TokenType(enum.IntEnum):
    """Values of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Tokenizer:
    """Immutable after construction. Build it with `from_metadata`.

    `encode` looks for USER_DEFINED tokens (`<think>`) in any text; CONTROL tokens (`<|im_end|>`) only with `parse_special`.
    """

    def __init__(
        self,
        tokens: list[str],
        types: list[int],
        merges: list[tuple[str, str]],
        words: Words,
        *,
        eos_ids: Iterable[int] = (),
        eos_id: int | None = None,
        bos_id: int | None = None,
        pad_id: int | None = None,
        add_bos: bool = False,
        fill_in_ids: Mapping[str, int] | None = None,
    ) -> None:
        self.num_tokens = len(tokens)  # entries of the vocabulary, unused ones included: ids are 0..num_tokens-1
        self._types = types
        ids = {text: i for i, text in reversed(list(enumerate(tokens)))}  # the first of equal texts counts
        self._repeated = {i: text for i, text in enumerate(tokens) if ids[text] != i}  # the library knows the others
        self._bytes = _token_bytes(tokens, types)
        self.control_tokens = _of_type(tokens, types, TokenType.CONTROL)
        self.control_spellings = {i: text for i, text in enumerate(tokens) if types[i] == TokenType.CONTROL and text}
        self._bytes_without_control = [b"" if i in self.control_spellings else shown for i, shown in enumerate(self._bytes)]
        self.eos_id, self.bos_id, self.pad_id = eos_id, bos_id, pad_id
        self.add_bos = add_bos and bos_id is not None  # whether a prompt begins with bos_id
        self.fill_in_ids = dict(fill_in_ids or {})  # by the word in the file's keys: "pre", "suf", "mid", "rep", "sep", "pad"
        known_ends = (self.control_tokens.get(text) for text in _END_TOKENS)
        self.eos_ids: frozenset[int] = frozenset(eos_ids) | {i for i in known_ends if i is not None}
        user_defined = _of_type(tokens, types, TokenType.USER_DEFINED)
        self._bpe = _bpe(ids, merges, words, user_defined)
        self._word_start = words.starts
        decisive = _decisive(list(self.control_tokens), list(user_defined))
        self._added, self._longest_added = _any_of(decisive), max(map(len, decisive), default=0)
        self._uncuttable = [(text, cut.start()) for text in user_defined for cut in words.starts.finditer(text)]
        self._longest = max(map(len, self._bytes), default=1) or 1

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], control: Iterable[str] = ()) -> "Tokenizer":
        """Build it from a GGUF file's metadata (arrays as lists or numpy arrays); ModelFileError names the key at fault.

        Tokens spelled as in `control` are control tokens whatever type the file gives them (see `mistyped`).
        """
        _expect(metadata, "model", ("gpt2",))
        words = PRE_TOKENIZERS[_expect(metadata, "pre", tuple(PRE_TOKENIZERS))]
        tokens = _array(metadata, "tokens", str)
        types = _array(metadata, "token_type", int)
        if not tokens or len(types) != len(tokens):
            raise ModelFileError(f"{_KEY}token_type has {len(types)} entries but {_KEY}tokens has {len(tokens)}")
        if spelled := frozenset(control):
            types = [TokenType.CONTROL if text in spelled else kind for text, kind in zip(tokens, types, strict=True)]
        special = {name: _token_id(metadata, f"{name}_token_id", len(tokens)) for name in ("eos", "eot", "bos", "padding")}
        fill_in = {name: _token_id(metadata, f"fim_{name}_token_id", len(tokens)) for name in _FILL_IN}
        return cls(
            tokens,
            types,
            _merges(metadata),
            words,
            eos_ids=[i for name in ("eos", "eot") if (i := special[name]) is not None],
            eos_id=special["eos"],
            bos_id=special["bos"],
            pad_id=special["padding"],
            add_bos=bool(metadata.get(f"{_KEY}add_bos_token", words.add_bos)),
            fill_in_ids={name: i for name, i in fill_in.items() if i is not None},
        )

    def __repr__(self) -> str:
        return f"Tokenizer({self.num_tokens} tokens, {len(self.control_tokens)} control)"

    @cached_property
    def breakers(self) -> BreakerIndex:
        """Made when a request asks for it first."""
        return BreakerIndex(self._bytes, partial(self.encode, parse_special=False))

    @property
    def vocab_size(self) -> int:
        """The same as `num_tokens`."""
        return self.num_tokens

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """Token ids of `text`, without BOS. Lone surrogates become U+FFFD. RequestError for more than a quarter of a million
        characters in which no word ends.
        """
        return list(chain.from_iterable(self.encode_parts(text, parse_special=parse_special)))

    def encode_parts(self, text: str, *, parse_special: bool) -> Iterator[list[int]]:
        """`encode` part by part, at most some ten thousand ids each: what is not asked for any more is not encoded.

        About 0.25 us a character; the GIL is free during most of a long text.
        """
        for piece in self.split_control(text) if parse_special else [text]:
            if isinstance(piece, int):
                yield [piece]
            else:
                yield from map(self._encode_plain, self._slices(piece))

    def min_tokens(self, text: str) -> int:
        """What `text` has at least, known by its length alone."""
        return -(-len(text) // self._longest)

    def split_control(self, text: str) -> list[int | str]:
        """Cut `text` at the control tokens spelled in it: their ids, and the non-empty texts between them, in order."""
        pieces: list[int | str] = []
        start = 0
        for match in matches(self._added, text, self._longest_added) if self._added else ():
            control = self.control_tokens.get(match.group())
            if control is None:  # a user-defined token: stays text, but hides what overlaps it
                continue
            if match.start() > start:
                pieces.append(text[start : match.start()])
            pieces.append(control)
            start = match.end()
        if start < len(text):
            pieces.append(text[start:])
        return pieces

    def decode(self, ids: Iterable[int], *, show_control: bool = True) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD. RequestError for an id that is not in the vocabulary."""
        return _text(self.token_bytes(i) for i in ids if show_control or not self.is_control(i))

    def decode_known(self, ids: Sequence[int]) -> str:
        """`decode` of ids that the model takes: one beyond the vocabulary (a row that only pads the embedding) has no text."""
        known = self.num_tokens
        return _text(map(self._bytes.__getitem__, ids if max(ids, default=0) < known else [i for i in ids if i < known]))

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds to the text; empty for an unused one. RequestError for an id that is not in the vocabulary."""
        return self._bytes[self._checked(token_id)]

    def token_text(self, token_id: int) -> str:
        """The token as the vocabulary spells it (bytes in the byte-level alphabet)."""
        repeated = self._repeated.get(self._checked(token_id))
        return str(self._bpe.id_to_token(token_id)) if repeated is None else repeated

    def token_id(self, text: str) -> int | None:
        """The token spelled `text` in the vocabulary, or None."""
        token_id: int | None = self._bpe.token_to_id(text)
        return token_id

    def mistyped(self, markers: Iterable[str]) -> list[str]:
        """Control tokens that the file gives another type, in the order of their ids.

        They are `markers` (what the chat template writes), well-known ones, and the file's own begin and end tokens. As text,
        people could spell them, and the starts of messages would not be found.
        """
        own = {self.token_text(i) for i in (*self.eos_ids, self.bos_id) if i is not None}
        spelled = {*markers, *_END_TOKENS, *_OTHER_CONTROL_TOKENS, *filter(CONTROL_SHAPE.fullmatch, own)}
        ids = {text: self.token_id(text) for text in spelled - self.control_tokens.keys()}
        return [text for _, text in sorted((i, text) for text, i in ids.items() if i is not None)]

    def is_control(self, token_id: int) -> bool:
        """Whether it is of type CONTROL: structure, never shown as text. RequestError as in `token_bytes`."""
        return self._types[self._checked(token_id)] == TokenType.CONTROL

    def shown_bytes(self, *, show_control: bool) -> list[bytes]:
        """`token_bytes` of every id as one list, control tokens empty unless `show_control`. Not to be changed."""
        return self._bytes if show_control else self._bytes_without_control

    def _slices(self, text: str) -> Iterator[str]:
        """`text` in parts that encode by themselves to what they are in the whole."""
        start = 0
        while len(text) - start > _SLICE_CHARS:
            cuts = self._cuts(text, start + _SLICE_CHARS, start + _MAX_UNCUT_CHARS)
            end = next((cut for cut in cuts if not self._in_user_defined(text, cut)), len(text))
            if end - start > _MAX_UNCUT_CHARS:
                raise RequestError(f"the text has more than {_MAX_UNCUT_CHARS} characters in which no word ends")
            yield text[start:end]
            start = end
        if start < len(text):
            yield text[start:]

    def _cuts(self, text: str, first: int, last: int) -> Iterator[int]:
        """Where words begin from `first` to about `last`; `re` holds the lock only for a window at a time."""
        for start in range(first, min(last, len(text)) + 1, WINDOW_CHARS):
            yield from (cut.start() for cut in self._word_start.finditer(text, start, start + WINDOW_CHARS))

    def _in_user_defined(self, text: str, cut: int) -> bool:
        """Whether a user-defined token lies across `cut`."""
        return any(text.startswith(token, cut - n) for token, n in self._uncuttable if cut >= n)

    def _encode_plain(self, text: str) -> list[int]:
        text = well_formed(text)
        try:
            if len(text) <= _SHORT_CHARS:
                ids: list[int] = self._bpe.encode(text, add_special_tokens=False).ids
            else:
                ids = self._bpe.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # the library's Rust code gave up; the class cannot be imported
                raise
            raise RequestError("the text cannot be tokenized") from error
        return ids

    def _checked(self, token_id: int) -> int:
        if 0 <= token_id < self.num_tokens:
            return token_id
        raise RequestError(f"token id {token_id} is not in the vocabulary of {self.num_tokens} tokens")


def _of_type(tokens: list[str], types: list[int], kind: TokenType) -> dict[str, int]:
    return {text: i for i, text in enumerate(tokens) if types[i] == kind and text}


def _text(parts: Iterable[bytes]) -> str:
    return b"".join(parts).decode("utf-8", "replace")


def _bpe(vocab: dict[str, int], merges: list[tuple[str, str]], words: Words, user: dict[str, int]) -> tokenizers.Tokenizer:
    """The encoder without control tokens: those are cut out before, by `split_control`."""
    try:
        bpe = tokenizers.Tokenizer(BPE(vocab=vocab, merges=merges, ignore_merges=words.whole_words))
    except Exception as error:  # the library raises bare Exception for a merge of unknown tokens
        raise ModelFileError(f"{_KEY}merges does not fit {_KEY}tokens: {error}") from error
    bpe.pre_tokenizer = pre_tokenizer(words)
    bpe.add_tokens([tokenizers.AddedToken(text, normalized=False, special=False) for text in user])
    return bpe


def _decisive(control: list[str], user_defined: list[str]) -> list[str]:
    """The control tokens, and the user-defined ones that can begin before and overlap them, or each other and so on."""
    texts, rest = list(control), user_defined
    while True:
        beginnings = {text[:n] for text in texts for n in range(1, len(text) + 1)}
        hiding = [u for u in rest if any(u[n:] in beginnings for n in range(len(u))) or any(text in u for text in texts)]
        if not hiding:
            return texts
        texts += hiding
        rest = [u for u in rest if u not in hiding]


def _any_of(texts: list[str]) -> re.Pattern[str] | None:
    """Matches the leftmost of `texts`, the longest of those that begin there."""
    return re.compile("|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True))) if texts else None


def _token_bytes(tokens: list[str], types: list[int]) -> list[bytes]:
    latin1 = {ord(char): chr(byte) for char, byte in byte_alphabet().items()}
    return [_bytes_of(text, kind, latin1) for text, kind in zip(tokens, types, strict=True)]


def _bytes_of(text: str, kind: int, latin1: dict[int, str]) -> bytes:
    if kind in (TokenType.UNUSED, TokenType.UNKNOWN):  # rows that only pad the vocabulary; no text encodes to them
        return b""
    if kind == TokenType.NORMAL:
        try:
            return text.translate(latin1).encode("latin-1")
        except UnicodeEncodeError:
            pass  # not spelled in the byte alphabet
    byte = re.fullmatch("<0x([0-9A-Fa-f]{2})>", text) if kind == TokenType.BYTE else None
    return bytes.fromhex(byte.group(1)) if byte else text.encode("utf-8", "replace")


def _expect(metadata: Mapping[str, Any], name: str, supported: tuple[str, ...]) -> str:
    value = metadata.get(_KEY + name)
    if isinstance(value, str) and value in supported:
        return value
    found = "is missing" if value is None else f"is {value!r}, which is not supported"
    raise ModelFileError(f"{_KEY}{name} {found} (supported: {', '.join(supported)})")


def _array(metadata: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    value = metadata.get(_KEY + name)
    if value is None:
        raise ModelFileError(f"{_KEY}{name} is missing")
    items = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, kind) for item in items):
        raise ModelFileError(f"{_KEY}{name} is not an array of {kind.__name__}")
    return list(items)


def _merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    pairs = []
    for n, merge in enumerate(_array(metadata, "merges", str)):
        left, space, right = merge.partition(" ")
        if not (left and space and right):
            raise ModelFileError(f"{_KEY}merges[{n}] is {merge!r}, not two tokens with a space between them")
        pairs.append((left, right))
    return pairs


def _token_id(metadata: Mapping[str, Any], name: str, num_tokens: int) -> int | None:
    value = metadata.get(_KEY + name)
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= int(value) < num_tokens:
        raise ModelFileError(f"{_KEY}{name} is {value!r}, not a token of the vocabulary of {num_tokens}")
    return int(value)
