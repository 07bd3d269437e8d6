"""The weight of a JSON text is counted exactly, however it is cut into slices, and what is too heavy is refused by its field."""

import json
import re
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Struct

from svc.errors import RequestError
from svc.http.decoding import REQUESTS, decode
from svc.http.json_scan import (
    ESCAPES_PER_VALUE,
    EXTRA_WEIGHT,
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_WEIGHT,
    UNCOUNTED_BYTES,
    _Scan,
    check_weight,
)
from svc.http.schema import ChatIn, CompletionIn

ESCAPE = re.compile(rb"\\.", re.DOTALL)
SLICE = 64  # the shortest that the scan takes
texts = st.text(st.sampled_from('\\"[]{},:0a\u00e9\U0001f600\n'), max_size=90)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(texts, inner, max_size=6),
    max_leaves=40,
)


def weight(value: Any) -> int:
    """Every value 1; objects, arrays and keys more."""
    if isinstance(value, dict):
        return 1 + EXTRA_WEIGHT + sum(EXTRA_WEIGHT + weight(item) for item in value.values())
    if isinstance(value, list):
        return 1 + EXTRA_WEIGHT + sum(map(weight, value))
    return 1


def depth(value: Any) -> int:
    """Objects and arrays around the innermost value."""
    if isinstance(value, dict | list):
        return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)
    return 0


def empty(value: Any) -> int:
    """Objects and arrays with nothing in them: they are counted as if they had one value, which no comma tells from none."""
    if isinstance(value, dict | list):
        return (not value) + sum(map(empty, value.values() if isinstance(value, dict) else value))
    return 0


def scanned(body: bytes) -> _Scan:
    scan = _Scan()
    text = np.frombuffer(body, np.uint8)
    for start in range(0, len(text), SLICE):
        scan.add(text[start : start + SLICE])
    return scan


@given(values, st.booleans(), st.sampled_from([None, 1]))
@example(["\\" * n for n in range(60, 70)], True, None)
@example(["a" * n + '"' for n in range(60, 70)], True, None)
def test_weight_is_that_of_the_values(value: Any, ascii_only: bool, indent: int | None) -> None:
    """Brackets, commas and quotes in strings count for nothing, whatever is escaped and wherever a slice ends; escapes do."""
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert scanned(body).weight == weight(value) + empty(value) + len(ESCAPE.findall(body)) // ESCAPES_PER_VALUE


@given(values)
def test_depth_is_that_of_the_values(value: Any) -> None:
    assert scanned(json.dumps(value).encode()).max_depth == depth(value)


@given(st.lists(st.integers(1, 3 * MAX_DIGITS), min_size=1, max_size=6), st.booleans())
def test_long_numbers_are_seen(lengths: list[int], in_strings: bool) -> None:
    """A number shorter than the bound never counts as long, one of a block more always; digits in strings are no number."""
    numbers = ["1" * length for length in lengths]
    body = json.dumps(numbers).encode() if in_strings else f"[{','.join(numbers)}]".encode()
    long = scanned_long(body)
    if in_strings or max(lengths) < MAX_DIGITS:
        assert not long
    elif max(lengths) >= MAX_DIGITS + 64:
        assert long


def scanned_long(body: bytes) -> bool:
    scan, seen = _Scan(), False
    text = np.frombuffer(body, np.uint8)
    for start in range(0, len(text), 4 * SLICE):
        scan.add(text[start : start + 4 * SLICE])
        seen = seen or scan.long_number
    return seen


NUMBERS = b"[" + b"1," * (MAX_WEIGHT + 1) + b"1]"
MESSAGES = b'"messages":[{"role":"user","content":"a, b: [c] {d}"}]'


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{" + MESSAGES + b',"logit_bias":' + NUMBERS + b"}", "logit_bias"),
        (b'{"response_format" : [' + b"[]," * (MAX_WEIGHT // 5) + b"[]]}", "response_format"),
        (b'{"messages":[{"content":"' + rb"\n" * (ESCAPES_PER_VALUE * MAX_WEIGHT) + b'"}]}', "messages"),
        (b'{"messages":[' + b"{}," * (MAX_WEIGHT // 5) + b"{}]}", "messages"),
        (b'{"tools":[{"a":{"b":' + NUMBERS + b"}}]," + MESSAGES + b"}", "tools"),
        (b'{"logit_bias":{' + b",".join(b'"%d":1' % n for n in range(MAX_WEIGHT // 5)) + b"}}", "logit_bias"),
        (b'{"no such field":' + NUMBERS + b"}", None),
        (NUMBERS, None),
    ],
)
def test_heavy_text_is_refused_by_its_field(body: bytes, param: str | None) -> None:
    """Before anything is built, and whatever field it is in, one that nobody knows included."""
    with pytest.raises(RequestError) as error:
        decode(ChatIn, body)
    assert (error.value.code, error.value.param) == ("too_many_values", param)
    assert str(MAX_WEIGHT) in str(error.value)


def test_what_is_just_light_enough() -> None:
    """The bound itself is taken: an object with one key, its array, and numbers for the rest."""
    others = 1 + EXTRA_WEIGHT + EXTRA_WEIGHT + 1 + EXTRA_WEIGHT
    count = MAX_WEIGHT - others
    assert len(decode(CompletionIn, b'{"prompt":[' + b"1," * (count - 1) + b"1]}").prompt) == count
    with pytest.raises(RequestError):
        decode(CompletionIn, b'{"prompt":[' + b"1," * count + b"1]}")


@pytest.mark.parametrize("digits", [2 * MAX_DIGITS, UNCOUNTED_BYTES, 10**6])
def test_a_long_number_is_refused_by_its_field(digits: int) -> None:
    body = b'{"prompt":"' + b"a" * UNCOUNTED_BYTES + b'","seed":' + b"1" * digits + b"}"
    with pytest.raises(RequestError, match="digits") as error:
        decode(CompletionIn, body)
    assert error.value.param == "seed"


@pytest.mark.parametrize("padding", [0, 2 * UNCOUNTED_BYTES])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_a_deep_text_is_refused_by_its_field(padding: int, opening: bytes, closing: bytes) -> None:
    """The levels allowed are taken by all that works on them later, one more is refused, however long or short the text is."""
    for levels in (MAX_DEPTH - 1, MAX_DEPTH):
        value = opening * levels + b"0" + closing * levels
        body = b'{"prompt":"' + b"a" * padding + b'","suffix":' + value + b"}"
        with pytest.raises(RequestError) as error:
            decode(CompletionIn, body)
        assert error.value.param == "suffix"
        assert (str(MAX_DEPTH) in str(error.value)) == (levels == MAX_DEPTH)


FRAGMENTS = [
    *(b"{", b"}", b"[", b"]", b":", b",", b'"', b"-", b" ", b"\0", b"null", b"true", b"NaN", b"1e999", b"1" * 400, b"1" * 5000),
    *(b'"prompt"', b'"messages"', b'"tokens"', b'"content"', b'"logit_bias"', b'"suffix"'),
    *(b'"\xff"', b"\xed\xa0\x80", rb'"\ud800"', rb"\u12"),
]


@given(
    st.sampled_from(REQUESTS),
    st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=3), max_size=12).map(b"".join),
    st.booleans(),
)
@example(CompletionIn, b'{"prompt":"\xff"}', False)
@example(CompletionIn, b'{"prompt":"a","suffix":"\xff"}', False)
@example(CompletionIn, b'{"prompt":"a","seed":' + b"1" * 5000 + b"}", False)
@example(ChatIn, '{"messages":[]}'.encode("utf-16"), False)
def test_whatever_the_parser_raises_is_a_refusal(kind: type[Struct], text: bytes, inside: bool) -> None:
    """No bytes make anything else of it, neither as a body nor as a field's value."""
    body = (
        b'{"prompt":"a","messages":[{"role":"user","content":"a"}],"tokens":[1],"content":"a","n":' + text + b"}"
        if inside
        else text
    )
    with suppress(RequestError):
        decode(kind, body)


def test_brackets_in_strings_have_no_depth() -> None:
    assert decode(CompletionIn, b'{"prompt":"' + b"[{" * 10_000 + b'"}').prompt == "[{" * 10_000


def test_long_texts_weigh_nothing() -> None:
    """Prose with all its commas, quotes and brackets."""
    check_weight(json.dumps({"prompt": "[{'a': 1, 'b': [2, 3]}], " * 200_000}).encode())
