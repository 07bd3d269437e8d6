"""Log probabilities as the two OpenAI dialects and llama-server write them.

Every entry is written to JSON when its token comes: twenty names for each of many thousand tokens would take seconds at the end of
an answer, and all of them as objects a few kilobytes a token until then.
"""

import codecs

import msgspec
from msgspec import Raw

from svc.http.native_schema import NativeProbabilityOut, NativeTopOut
from svc.http.schema import CompletionLogprobsOut, LogprobOut, TopLogprobOut
from svc.http.text.tokenizer import Tokenizer
from svc.slots.events import TokenEvent

LOWEST = -9999.0  # OpenAI's number for "impossible"; JSON has no infinity

_new_decoder = codecs.getincrementaldecoder("utf-8")


_encode = msgspec.json.Encoder().encode


def chat_logprobs(tokens: list[TokenEvent], tokenizer: Tokenizer) -> list[Raw]:
    """One `LogprobOut` per token, with its bytes: joined, they are the answer also where a token is half a character."""
    content = []
    for event in tokens:
        top = [TopLogprobOut(*_named(token, logprob, tokenizer)) for token, logprob in event.top]
        content.append(Raw(_encode(LogprobOut(*_named(event.token, event.logprob, tokenizer), top))))
    return content


def native_probabilities(tokens: list[TokenEvent], tokenizer: Tokenizer) -> list[Raw]:
    """One `NativeProbabilityOut` per token, of llama-server's `completion_probabilities`."""
    entries = []
    for event in tokens:
        top = [NativeTopOut(token, *_with_bytes(token, tokenizer), _finite(logprob)) for token, logprob in event.top]
        out = NativeProbabilityOut(event.token, *_with_bytes(event.token, tokenizer), _finite(event.logprob), top)
        entries.append(Raw(_encode(out)))
    return entries


class CompletionLogprobs:
    """The old form needs to know where in the text each token begins. One object per answer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._offset = 0
        self._decoder = _new_decoder("replace")
        self._out = CompletionLogprobsOut()

    def add(self, tokens: list[TokenEvent]) -> None:
        """The answer's next tokens."""
        out = self._out
        for event in tokens:
            name, logprob = self._name(event.token), _finite(event.logprob)
            out.tokens.append(name)
            out.token_logprobs.append(logprob)
            best = {self._name(token): _finite(best) for token, best in event.top} | {name: logprob}
            out.top_logprobs.append(Raw(_encode(best)))
            out.text_offset.append(self._offset)
            self._offset += len(self._decoder.decode(_bytes_of(event.token, self._tokenizer)))

    def take(self) -> CompletionLogprobsOut:
        """The entries since the last call."""
        out, self._out = self._out, CompletionLogprobsOut()
        return out

    def _name(self, token: int) -> str:
        """The token's text; OpenAI's spelling where it is no UTF-8 by itself, so that two such tokens keep two names."""
        raw = _bytes_of(token, self._tokenizer)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _named(token: int, logprob: float, tokenizer: Tokenizer) -> tuple[str, float, list[int]]:
    text, raw = _with_bytes(token, tokenizer)
    return text, _finite(logprob), raw


def _with_bytes(token: int, tokenizer: Tokenizer) -> tuple[str, list[int]]:
    raw = _bytes_of(token, tokenizer)
    return raw.decode("utf-8", "replace"), list(raw)


def _bytes_of(token: int, tokenizer: Tokenizer) -> bytes:
    """Empty for a token beyond the vocabulary: the model's output may have more rows."""
    return tokenizer.token_bytes(token) if token < tokenizer.vocab_size else b""


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)
