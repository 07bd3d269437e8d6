"""Breakers as tokens, against a search through the texts of all tokens one by one."""

import random

import numpy as np
import pytest

from svc.http.text.breakers import MAX_CHARS, MAX_REST_TOKENS, BreakerIndex

TEXTS = [
    b"\n", b"a", b"b", b"ab", b"ba", b"a\n", b"\nb", b"", b"USE", b"US", b"R:", b":",
    b"xU", b"\xff", b"\xffU", b"U\xff", b"\xc3", b"\xc3\xa9",
    b"aUSERb",
]  # fmt: skip


def letters(text: str) -> list[int]:
    return [TEXTS.index(bytes([byte])) if bytes([byte]) in TEXTS else 99 for byte in text.encode()]


INDEX = BreakerIndex(TEXTS, letters)


def by_definition(breaker: str) -> tuple[set[int], set[tuple[int, tuple[int, ...]]]]:
    """(tokens that contain it, (token that ends with its beginning, tokens of the rest))"""
    whole = breaker.encode()
    single = {token for token, text in enumerate(TEXTS) if whole in text}
    longer = {
        (token, tuple(letters(breaker[length:])[:MAX_REST_TOKENS]))
        for length in range(1, len(breaker))
        for token, text in enumerate(TEXTS)
        if text.endswith(breaker[:length].encode())
    }
    return single, longer


@pytest.mark.parametrize("breaker", ["\n", "ab", "USER:", "é", "ba\n", "x", "aé", "abababababab"])
def test_each_alone(breaker: str) -> None:
    found = INDEX.find((breaker,))
    single, longer = by_definition(breaker)
    assert found.single.tolist() == sorted(single)
    assert {(head, rest) for heads, rest in found.longer for head in heads.tolist()} == longer
    assert all(heads.tolist() == sorted(set(heads.tolist())) for heads, _ in found.longer)


def test_several_together() -> None:
    """The union of what each gives."""
    rng = random.Random(5)
    for _ in range(100):
        breakers = tuple({"".join(rng.choices("abU:\nSE", k=rng.randrange(1, 5))) for _ in range(3)})
        found = INDEX.find(breakers)
        each = [by_definition(breaker) for breaker in breakers]
        assert set(found.single.tolist()) == set().union(*(single for single, _ in each))
        longer = {(head, rest) for heads, rest in found.longer for head in heads.tolist()}
        assert longer == set().union(*(longer for _, longer in each))
        assert len({rest for _, rest in found.longer}) == len(found.longer)


def test_bounds() -> None:
    """Of a long breaker, the first MAX_CHARS count, and of a rest MAX_REST_TOKENS; the same breakers are looked for once."""
    found = INDEX.find(("b" * 100,))
    assert max(len(rest) for _, rest in found.longer) == MAX_REST_TOKENS
    assert found.longer[0][1] == INDEX.find(("b" * MAX_CHARS,)).longer[0][1]
    assert INDEX.find(("b" * 100,)) is found
    assert INDEX.find(()).single.dtype == np.int32
