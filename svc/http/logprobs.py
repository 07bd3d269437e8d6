"""Log probabilities as the two OpenAI dialects and llama-server write them.

Every entry is written to JSON when its token comes: twenty names for each of many thousand tokens would take seconds at the end of
an answer, and all of them as objects a few kilobytes a token until then.
"""

import codecs
import math

import msgspec
from msgspec import Raw

from svc.http.native_schema import NativeProbabilityOut, NativeShareOut, NativeTopOut, NativeTopShareOut
from svc.http.schema import LogprobOut, TopLogprobOut
from svc.http.text.tokenizer import Tokenizer
from svc.slots.events import TokenEvent

LOWEST = -9999.0  # OpenAI's number for "impossible"; JSON has no infinity

_new_decoder = codecs.getincrementaldecoder("utf-8")
_encode = msgspec.json.Encoder().encode


class JsonList:
    """JSON values of one list, encoded as they come."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._items: list[bytes] = []

    def add(self, value: object) -> None:
        encoded = _encode(value)
        self._items.append(encoded)
        self.num_bytes += len(encoded)

    def take(self) -> bytes:
        """The list of those added since the last call."""
        items, self._items, self.num_bytes = self._items, [], 0
        return b"[" + b",".join(items) + b"]"


class ChatLogprobs:
    """One `LogprobOut` per token, with its bytes: joined, they are the answer also where a token is half a character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._content = JsonList()

    @property
    def num_bytes(self) -> int:
        return self._content.num_bytes

    def add(self, event: TokenEvent) -> None:
        top = [TopLogprobOut(*self._named(token, logprob)) for token, logprob in event.top]
        self._content.add(LogprobOut(*self._named(event.token, event.logprob), top))

    def take(self) -> Raw:
        return Raw(b'{"content":' + self._content.take() + b',"refusal":null}')

    def _named(self, token: int, logprob: float) -> tuple[str, float, list[int]]:
        text, raw = _with_bytes(token, self._tokenizer)
        return text, _finite(logprob), raw


class ResponsesLogprobs(ChatLogprobs):
    """The same entries as a bare list."""

    def take(self) -> Raw:
        return Raw(self._content.take())


class NativeProbabilities:
    """llama-server's `completion_probabilities`: one `NativeProbabilityOut` per token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._entries = JsonList()

    @property
    def num_bytes(self) -> int:
        return self._entries.num_bytes

    def add(self, event: TokenEvent) -> None:
        tokenizer = self._tokenizer
        top = [NativeTopOut(token, *_with_bytes(token, tokenizer), _finite(logprob)) for token, logprob in event.top]
        self._entries.add(NativeProbabilityOut(event.token, *_with_bytes(event.token, tokenizer), _finite(event.logprob), top))

    def take(self) -> Raw | None:
        return Raw(self._entries.take()) if self.num_bytes else None


class NativeShares(NativeProbabilities):
    """The same with probabilities from 0 to 1 in place of their logarithms."""

    def add(self, event: TokenEvent) -> None:
        tokenizer = self._tokenizer
        top = [NativeTopShareOut(token, *_with_bytes(token, tokenizer), math.exp(logprob)) for token, logprob in event.top]
        self._entries.add(NativeShareOut(event.token, *_with_bytes(event.token, tokenizer), math.exp(event.logprob), top))


class CompletionLogprobs:
    """The old form: four lists with one entry per token, and where in the text each token begins.

    A list of the best also has the sampled token when it is not among them.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._offset = 0
        self._decoder = _new_decoder("replace")
        self._lists = {name: JsonList() for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}

    @property
    def num_bytes(self) -> int:
        return sum(entries.num_bytes for entries in self._lists.values())

    def add(self, event: TokenEvent) -> None:
        name, logprob = self._name(event.token), _finite(event.logprob)
        best = {self._name(token): _finite(best) for token, best in event.top} | {name: logprob}
        for entries, value in zip(self._lists.values(), (name, logprob, best, self._offset), strict=True):
            entries.add(value)
        self._offset += len(self._decoder.decode(_bytes_of(event.token, self._tokenizer)))

    def take(self) -> Raw:
        return Raw(_encode({name: Raw(entries.take()) for name, entries in self._lists.items()}))

    def _name(self, token: int) -> str:
        """The token's text; OpenAI's spelling where it is no UTF-8 by itself, so that two such tokens keep two names."""
        raw = _bytes_of(token, self._tokenizer)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _with_bytes(token: int, tokenizer: Tokenizer) -> tuple[str, list[int]]:
    raw = _bytes_of(token, tokenizer)
    return raw.decode("utf-8", "replace"), list(raw)


def _bytes_of(token: int, tokenizer: Tokenizer) -> bytes:
    """Empty for a token beyond the vocabulary: the model's output may have more rows."""
    return tokenizer.token_bytes(token) if token < tokenizer.vocab_size else b""


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)
