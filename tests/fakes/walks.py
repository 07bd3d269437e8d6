"""Answers held to a grammar, drawn at random: at each step any token that the mask allows, or the end where that is allowed."""

import random
from collections.abc import Iterable, Iterator

import numpy as np

from svc.http.text.grammar.compiler import CompiledGrammar
from svc.http.text.grammar.matcher import Matcher, Words
from svc.http.text.tokenizer import Tokenizer


def allowed(words: Words) -> list[int]:
    """The tokens whose bits are set."""
    return [int(token) for token in np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))]


def walk(grammar: CompiledGrammar, tokenizer: Tokenizer, seed: int, most_tokens: int, hurry: int = 0) -> str | None:
    """The text of one answer, None if it did not end within `most_tokens`. From `hurry` tokens on it ends wherever it may."""
    rng, matcher, taken = random.Random(seed), grammar.matcher(), list[int]()
    while len(taken) < most_tokens:
        tokens = allowed(matcher.mask())
        ends = [token for token in tokens if token in tokenizer.eos_ids]
        assert tokens, "a dead end"
        assert bool(ends) == matcher.is_accepting
        token = ends[0] if ends and len(taken) >= hurry else rng.choice(tokens)
        if token in tokenizer.eos_ids:
            return tokenizer.decode(taken)
        taken.append(token)
        matcher.accept(token)
    return None


def accepts(matcher: Matcher, tokens: Iterable[int]) -> bool:
    """Whether these tokens, and then the end, are an answer."""
    for token in tokens:
        if not is_allowed(matcher.mask(), token):
            return False
        matcher.accept(token)
    return matcher.is_accepting


def accepted_texts(matcher: Matcher, alphabet: str, longest: int) -> set[str]:
    """All texts of these ASCII characters, one token each, up to that length that are answers: by going forth and back."""
    found = {""} if matcher.is_accepting else set()
    words = matcher.mask()
    for char in alphabet if longest else "":
        if is_allowed(words, ord(char)):
            matcher.accept(ord(char))
            found |= {char + rest for rest in accepted_texts(matcher, alphabet, longest - 1)}
            matcher.rollback(1)
    return found


def is_allowed(words: Words, token: int) -> bool:
    return bool(words[token // 32] >> np.uint32(token % 32) & np.uint32(1))


def texts(alphabet: str, longest: int) -> Iterator[str]:
    """All texts of these characters up to that length."""
    newest = [""]
    for _ in range(longest + 1):
        yield from newest
        newest = [text + char for text in newest for char in alphabet]
