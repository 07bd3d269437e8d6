"""Sums and lengths that cost something have a bound, and what is beyond it is refused by name before the work is done."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.errors import RequestError
from svc.http.fields import (
    MAX_BIAS_CHARS,
    MAX_BIAS_CHARS_IN_ALL,
    MAX_RESPONSE_FIELD_CHARS,
    MAX_RESPONSE_FIELDS,
    MAX_SHOWN_CHARS,
    logit_bias,
    response_fields,
    shown,
)
from svc.http.prompts import MAX_TOKENS_IN_ALL
from svc.http.text.tokenizer import Tokenizer
from tests.fakes.fake_engine import FakeEngine, saying
from tests.fakes.fake_text import VOCAB_SIZE, byte_tokenizer
from tests.http.harness import serving

TOKENIZER = byte_tokenizer()
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=100),
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(max_size=9), inner, max_size=40),
    max_leaves=60,
)


@given(values)
def test_what_is_shown_is_the_beginning_of_it(value: Any) -> None:
    """The whole, where that is short; never more than a line."""
    text, whole = shown(value), repr(value)
    if isinstance(value, int) and abs(value) >= 10**30:
        assert text == "a number of more than 30 digits"
    elif len(whole) <= MAX_SHOWN_CHARS:
        assert text == whole
    else:
        assert len(text) == MAX_SHOWN_CHARS
        assert text.endswith("...")
        assert whole.startswith(text[:-4])  # a text that is cut off inside ends in a quote


class Watched(list[Any]):
    """Counts the items that are looked at."""

    num_seen = 0

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self.num_seen += 1
            yield item


def test_only_the_beginning_is_looked_at() -> None:
    """A value may be as large as a request."""
    value = Watched([1] * 10**6)
    assert shown([["x"], value]).endswith("...")
    assert value.num_seen < MAX_SHOWN_CHARS


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def test_deep_values_can_be_shown() -> None:
    assert shown(_nested(900)) == "[" * (MAX_SHOWN_CHARS - 3) + "..."


@pytest.mark.parametrize("as_list", [False, True])
def test_texts_of_logit_bias_together(as_list: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many characters are tokenized, one more is not."""
    texts = [f"{n:05}" + "x" * 995 for n in range(MAX_BIAS_CHARS_IN_ALL // 1000)]
    texts.append("y" * (MAX_BIAS_CHARS_IN_ALL - sum(map(len, texts))))

    def biases(texts: list[str]) -> Any:
        return [[text, 1] for text in texts] if as_list else dict.fromkeys(texts, 1)

    logit_bias(biases(texts), TOKENIZER, VOCAB_SIZE)
    monkeypatch.setattr(Tokenizer, "encode", lambda *_, **__: pytest.fail("tokenized"))
    with pytest.raises(RequestError, match=str(MAX_BIAS_CHARS_IN_ALL)) as error:
        logit_bias(biases([*texts, "z"]), TOKENIZER, VOCAB_SIZE)
    assert error.value.param == "logit_bias"


@pytest.mark.parametrize("key", ["9" * (MAX_BIAS_CHARS - 1) + "x", " " * (MAX_BIAS_CHARS - 1) + "x", "x" * MAX_BIAS_CHARS])
def test_texts_that_are_almost_numbers(key: str) -> None:
    """They are texts; longer ones are refused before anybody tries to read a number in them."""
    biases, never = logit_bias({key: 1}, TOKENIZER, VOCAB_SIZE)
    assert (dict(biases), never) == (dict.fromkeys(key.encode(), 1.0), frozenset())
    with pytest.raises(RequestError, match="longer than"):
        logit_bias({key + "9": 1}, TOKENIZER, VOCAB_SIZE)


def test_response_fields_once_each() -> None:
    """Repetitions cost nothing; many or long ones are refused."""
    assert response_fields(None) == []
    assert response_fields(["a", "b", "a"] * 10**5) == ["a", "b"]
    assert len(response_fields([str(n) for n in range(MAX_RESPONSE_FIELDS)])) == MAX_RESPONSE_FIELDS
    for values in ([str(n) for n in range(MAX_RESPONSE_FIELDS + 1)], ["/" * (MAX_RESPONSE_FIELD_CHARS + 1)]):
        with pytest.raises(RequestError) as error:
            response_fields(values)
        assert error.value.param == "response_fields"


async def test_tokens_of_all_prompts_together() -> None:
    """Each fits the context, together they would keep a text thread busy for long: refused as soon as they are too many."""
    engine = FakeEngine(saying("x"), context_tokens=100_000)
    async with serving(engine, max_body_bytes=2**26) as at:
        for path, name in (("/v1/completions", "prompt"), ("/completion", "prompt")):
            status, answer = await at.post(path, {name: ["a " * 49_000] * 20})
            assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, name, "too_many_tokens")
            assert str(MAX_TOKENS_IN_ALL) in answer["error"]["message"]
    assert engine.sequences == []


async def test_tokenizing_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every character is a token: no more are made than the bound says."""
    monkeypatch.setattr("svc.http.endpoints.tokens.MAX_TOKENIZE_TOKENS", 100_000)
    async with serving(FakeEngine(), max_body_bytes=2**26) as at:
        status, answer = await at.post("/tokenize", {"content": "1 " * 2**20})
        assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, "content", "content_too_long")
        for pieces in (False, True):
            status, answer = await at.post("/tokenize", {"content": "1 " * 30_000, "with_pieces": pieces})
            assert status == 200
            one, space = (({"id": ord(c), "piece": c} if pieces else ord(c)) for c in "1 ")
            assert answer["tokens"] == [one, space] * 30_000
        assert (await at.post("/tokenize", {"content": ""}))[1] == {"tokens": []}
