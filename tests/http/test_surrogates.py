"""Half an emoji: lone surrogates in a request are U+FFFD, on every route and wherever they are."""

import json
import random
from collections.abc import Iterator
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from svc.http.text import json_escapes
from svc.http.text.json_escapes import well_formed_json
from svc.http.text.unicode import well_formed
from tests.fakes.fake_engine import FakeEngine, saying
from tests.http.harness import serving

HALVES = ("\ud83d", "\ude00", "\ud800", "\udfff", "\udbff\ud800", "\udc00\udbff")
PARAMETERS = {"type": "object", "properties": {"key": {"enum": ["word"], "description": "word"}}}
CALL = {"id": "word", "type": "function", "function": {"name": "word", "arguments": {"key": "word"}}}
OTHER = {"id": "word", "type": "function", "function": {"name": "word", "arguments": '{"key": "word"}'}}
CHAT: dict[str, Any] = {
    "model": "word",
    "messages": [
        {"role": "system", "content": "word", "name": "word"},
        {"role": "user", "content": [{"type": "text", "text": "word"}], "extra": {"word": "word"}},
        {"role": "assistant", "content": None, "reasoning_content": "word", "tool_calls": [CALL, OTHER]},
        {"role": "tool", "content": "word", "tool_call_id": "word"},
    ],
    "tools": [{"type": "function", "function": {"name": "word", "parameters": PARAMETERS}}],
    "chat_template_kwargs": {"mood": "word"},
    "user": "word",
}
SAMPLING: dict[str, Any] = {"seed": 1, "max_tokens": 3, "stop": ["word", "words"], "logit_bias": {"word": 1.5}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT | SAMPLING,
    "/v1/completions": {"prompt": ["word", "a word"], "model": "word", "user": "word", **SAMPLING},
    "/completion": {"prompt": ["word", ["word", 7]], "response_fields": ["content", "word"], **SAMPLING},
    "/apply-template": CHAT,
    "/tokenize": {"content": "word", "with_pieces": True, "word": "word"},
    "/detokenize": {"tokens": [5, 6], "word": "word"},
}


def _with_half(value: Any, rng: random.Random, share: float) -> Any:
    """`value` with halves of emojis in some of its "word"s, object keys included."""
    if isinstance(value, dict):
        return {_with_half(key, rng, share): _with_half(item, rng, share) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_half(item, rng, share) for item in value]
    if isinstance(value, str) and "word" in value and rng.random() < share:
        at = rng.randrange(len(value) + 1)
        return value[:at] + rng.choice(HALVES) + value[at:]
    return value


def _replaced(value: Any) -> Any:
    """The same with U+FFFD in their place."""
    if isinstance(value, dict):
        return {_replaced(key): _replaced(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item) for item in value]
    return well_formed(value) if isinstance(value, str) else value


def _spellings(body: Any) -> Iterator[bytes]:
    """Hexadecimal digits of escapes in lower and in upper case."""
    text = json.dumps(body)
    yield text.encode()
    yield text.replace("\\ud", "\\uD").replace("\\ue", "\\uE").encode()


@pytest.mark.parametrize("path", BODIES)
async def test_half_an_emoji_is_the_replacement_character(path: str) -> None:
    """The answer, and what the engine is asked for, are those of the same request with U+FFFD written out."""
    rng = random.Random(path)
    async with serving(FakeEngine(saying("abc"))) as at:

        async def outcome(raw: bytes) -> Any:
            before = len(at.engine.sequences)
            status, answer = await at.post(path, raw)
            assert status == 200, (raw, answer)
            asked = [(sequence.request.prompt, sequence.request.params) for sequence in at.engine.sequences[before:]]
            return asked or answer

        for share in (0.1, 0.5, 1.0):
            cut = _with_half(BODIES[path], rng, share)
            expected = await outcome(json.dumps(_replaced(cut)).encode())
            for raw in _spellings(cut):
                assert await outcome(raw) == expected, raw


any_json = st.recursive(
    st.none() | st.integers(-9, 9) | st.text(st.characters(codec=None) | st.sampled_from('\ud83d\ude00\\u"d')),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.sampled_from("\ud83d\ude00\\a")), inner, max_size=4),
    max_leaves=20,
)


@given(any_json)
@example(
    ["\\ud83d", "\\\ud83d", "\\\\\ud83d\\", "\ud83d\ud83d\ude00", "\ude00\ud83d\ude00\ud83d", "\ud83d\\ude00", "\\ud83d\ude00"]
)
def test_any_document_reads_as_its_well_formed_one(value: Any) -> None:
    """Escaped backslashes are backslashes and pairs are pairs: what is decoded is the document, its strings made well-formed.

    The second opinion is Python's json, which takes lone surrogates.
    """
    raw = json.dumps(value).encode()
    mended = well_formed_json(raw)
    assert msgspec.json.decode(mended) == _replaced(json.loads(raw))
    assert len(mended) == len(raw)
    assert well_formed_json(mended) == mended


@given(any_json, st.integers(1, 20))
def test_slices_do_not_show(value: Any, size: int) -> None:
    """A large text is read slice by slice: wherever they end, the outcome is the same."""
    raw = json.dumps(value).encode()
    whole = well_formed_json(raw)
    with mock.patch.object(json_escapes, "SLICE_BYTES", size):
        assert well_formed_json(raw) == whole


@pytest.mark.parametrize(
    "raw", [b"", b'"\\ud8', b'"\\ud83', b"\\", b'"\\ud83g"', b'"\\\\ud83d"', b'"\\ud83d\\ude00"', b'"\\u00e9"']
)
def test_what_is_no_lone_surrogate_is_left_alone(raw: bytes) -> None:
    """Cut and wrong escapes stay what they are (the decoder refuses them), as do pairs, other escapes and escaped backslashes."""
    assert well_formed_json(raw) == raw
