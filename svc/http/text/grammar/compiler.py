"""Grammars compiled for one vocabulary."""

import json
import re
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from svc.errors import RequestError
from svc.http.text.grammar.lark import as_lark, members, path_of
from svc.http.text.grammar.matcher import Matcher, TokenTable, Words
from svc.http.text.grammar.spec import GrammarSpec, Notation
from svc.http.text.reasoning import ReasoningTags
from svc.http.text.tokenizer import Tokenizer

CACHED_GRAMMARS = 32
TRIAL_STEPS = 8
MAX_REASON_CHARS = 400
# A mask may take some 15 ms, a grammar some 50 MB of automata, and no more.
_LIMITS = LLParserLimits(max_lexer_states=50_000, max_grammar_size=250_000, verbose_errors=False)
_LISTING = re.compile(r"\n\s*\d+ \||<non-verbose/>|<state>")
_WORD = re.compile(r"[^\s\"'\[\],:()]+")


class CompiledGrammar:
    """A grammar that can be enforced; every answer held to it has a matcher of its own."""

    def __init__(self, core: LLMatcher, vocabulary: TokenTable, tokenizer: Tokenizer) -> None:
        self._core = core
        self._vocabulary = vocabulary
        self._tokenizer = tokenizer

    def matcher(self, *, reasoning: ReasoningTags | None = None, inside: bool = False) -> Matcher:
        """For an answer that may reason first, free until the reasoning ends. `inside`: the prompt has opened the reasoning."""
        core = self._core.deep_copy()
        open_id = None if reasoning is None or inside else self._tokenizer.token_id(reasoning.open)
        if reasoning is None or (open_id is None and not inside):
            return Matcher(core, self._vocabulary)
        return Matcher(core, self._vocabulary, close=reasoning.close.encode(), open_id=open_id)


class GrammarCompiler:
    """For one model. `compile` takes milliseconds, the first call half a second more: not on the event loop."""

    def __init__(self, tokenizer: Tokenizer, num_logits: int) -> None:
        """`num_logits`: how many tokens the model gives a chance to, which may be more than the tokenizer knows."""
        self._tokenizer = tokenizer
        self._num_logits = num_logits
        self._compiled = lru_cache(CACHED_GRAMMARS)(self._compile)

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """RequestError saying which part of it cannot be enforced, or what is wrong with it."""
        return self._compiled(spec)

    def check(self, spec: GrammarSpec) -> None:
        """As `compile`, where the grammar itself is not wanted."""
        self._compile(spec)

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        if not self._tokenizer.eos_ids:
            raise RequestError("this model has no token that ends an answer, so no grammar can end one")
        core = LLMatcher(self._engine, LLMatcher.grammar_from_lark(as_lark(spec)), log_level=0, limits=_LIMITS)
        error = core.get_error() or _trial(core.deep_copy())
        if error:
            raise RequestError(_sentence(spec, error))
        return CompiledGrammar(core, self._vocabulary, self._tokenizer)

    @cached_property
    def _engine(self) -> LLTokenizer:
        return LLTokenizer(TokenizerWrapper(_Tokens(self._tokenizer, self._num_logits)), eos_token=sorted(self._tokenizer.eos_ids))

    @cached_property
    def _vocabulary(self) -> TokenTable:
        tokens = [self._tokenizer.token_bytes(i) for i in range(self._tokenizer.num_tokens)]
        allowed = np.zeros(-(-self._num_logits // 32) * 32, np.bool_)
        allowed[: len(tokens)] = [bool(text) and not self._tokenizer.is_control(i) for i, text in enumerate(tokens)]
        free = as_words(allowed)
        free.setflags(write=False)
        breaks = tuple(i for i, text in enumerate(tokens) if text in (b"\n", b"\n\n"))
        single = {text: i for i, text in enumerate(tokens) if len(text) == 1}
        return TokenTable(tokens, free, breaks, tuple(single.values()) if len(single) == 256 else (), self._encode)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, parse_special=False)


class _Tokens:
    """A vocabulary as llguidance wants to see it. Rows of logits without a token are tokens without text."""

    def __init__(self, tokenizer: Tokenizer, num_logits: int) -> None:
        known = range(tokenizer.num_tokens)
        self.tokens = [tokenizer.token_bytes(i) for i in known] + [b""] * (num_logits - tokenizer.num_tokens)
        self.special_token_ids = [i for i in known if tokenizer.is_control(i) or i in tokenizer.eos_ids]
        self.eos_token_id = min(tokenizer.eos_ids)
        self.bos_token_id = tokenizer.bos_id

    def __call__(self, text: str | bytes) -> list[int]:
        """No text needs to be tokenized: grammars do not force any (`FREE_TOKENS`)."""
        return []


def as_words(allowed: NDArray[np.bool_]) -> Words:
    """`allowed` [32 n] as bits."""
    words: Words = np.packbits(allowed, bitorder="little").view(np.uint32)
    return words


def _trial(core: LLMatcher) -> str:
    """What goes wrong in the first steps of an answer, empty if nothing: some grammars turn out to be too much only there."""
    for _ in range(TRIAL_STEPS):
        words = np.frombuffer(core.compute_bitmask(), np.uint32)
        allowed = np.flatnonzero(words)
        if core.is_error() or core.is_stopped() or not len(allowed):
            break
        word = int(allowed[0])
        core.consume_token(32 * word + (int(words[word]) & -int(words[word])).bit_length() - 1)
    return core.get_error()


def _sentence(spec: GrammarSpec, error: str) -> str:
    """`error` for the client, without the grammar's own lines, with the place in the schema that it speaks of."""
    message = _LISTING.split(error, maxsplit=1)[0].rpartition("failed to compile JSON schema: ")[2]
    reason = " ".join(message.split())[:MAX_REASON_CHARS]
    place = _place(json.loads(spec.text), reason) if spec.notation is Notation.JSON_SCHEMA else None
    return f"this {spec.notation.value} cannot be enforced{f', at {place}' if place else ''}: {reason}"


def _place(schema: Any, reason: str) -> str | None:
    """The first member of `schema` whose text, or else whose name, `reason` quotes."""
    words = set(_WORD.findall(reason))
    parts = list(members(schema))
    by_text = (trail for trail, value in parts if isinstance(value, str) and value in words)
    by_name = (trail for trail, _ in parts if trail is not None and trail[1] in words)
    found = next(by_text, None) or next(by_name, None)
    return path_of(found) if found else None
