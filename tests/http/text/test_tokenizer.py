"""The tokenizer against published vectors and two other implementations."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.models import BPE

from svc.errors import ModelFileError, RequestError
from svc.http.text.pretokenize import pre_tokenizer
from svc.http.text.tokenizer import Tokenizer

VOCAB = Path(__file__).parents[2] / "data" / "vocab"


def _vectors(pre: str) -> list[tuple[str, list[int]]]:
    texts = (VOCAB / f"ggml-vocab-{pre}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")[:-1]
    lines = (VOCAB / f"ggml-vocab-{pre}.out").read_text().splitlines()
    assert len(texts) == len(lines)
    return [(text, [int(number) for number in line.split()]) for text, line in zip(texts, lines, strict=True)]


@pytest.mark.parametrize(("pre", "num_cases"), [("qwen2", 46), ("qwen35", 50)])
def test_published_vectors_are_exact_and_decode_back(metadata: Any, pre: str, num_cases: int) -> None:
    """Every published vector of the real vocabularies gives exactly its ids, and they decode to the same text."""
    tokenizer = Tokenizer.from_metadata(metadata("qwen2", pre))
    assert tokenizer.num_tokens == 151936
    cases = _vectors(pre)
    assert len(cases) == num_cases
    for text, ids in cases:
        assert tokenizer.encode(text, parse_special=False) == ids, text
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(("name", "pre"), [("tiny-qwen35.qwen35", "qwen35"), ("tiny-qwen3next.qwen2", "qwen2")])
def test_tiny_vocabularies_agree_with_other_implementations(metadata: Any, name: str, pre: str) -> None:
    """Ids equal Hugging Face's without NFC and llama.cpp's, with and without parsing of control tokens."""
    tokenizer = Tokenizer.from_metadata(metadata("tiny", pre))
    cases = json.loads((VOCAB / f"{name}.json").read_text())
    assert len(cases) > 100
    assert any(case["llamacpp"] != case["llamacpp_no_parse_special"] for case in cases)
    for case in cases:
        with_special = tokenizer.encode(case["text"], parse_special=True)
        assert with_special == case["hf_without_nfc"] == case["llamacpp"], case["text"]
        assert tokenizer.encode(case["text"], parse_special=False) == case["llamacpp_no_parse_special"]
        assert tokenizer.decode(with_special) == case["text"]
        assert tokenizer.decode(case["hf"]) == case["decode_hf"]


@settings(deadline=None, max_examples=200)
@given(text=st.text(max_size=60), parse_special=st.booleans())
def test_any_text_survives_the_round_trip(tokenizer: Tokenizer, text: str, parse_special: bool) -> None:
    """Decoding gives back what was encoded, byte for byte: nothing is normalised or lost."""
    assert tokenizer.decode(tokenizer.encode(text, parse_special=parse_special)) == text


def test_control_token_text_is_only_a_control_token_when_asked(tokenizer: Tokenizer) -> None:
    """`<|im_end|>` in text becomes its token only with parse_special; `<think>` (user-defined) always."""
    end = tokenizer.control_tokens["<|im_end|>"]
    think = tokenizer.token_id("<think>")
    assert tokenizer.encode("a<|im_end|><think>", parse_special=True)[-2:] == [end, think]
    plain = tokenizer.encode("a<|im_end|><think>", parse_special=False)
    assert end not in plain
    assert plain[-1] == think
    assert tokenizer.decode(plain) == "a<|im_end|><think>"


_OVERLAPPING = {"<|box_start|>": "x<|im", "<|box_end|>": "axx", "<|quad_start|>": "a<|im_end|>", "<|quad_end|>": "<|im_end|>b"}


@pytest.fixture(scope="module")
def overlapping(metadata: Any) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    """A vocabulary whose user-defined tokens overlap control tokens, and the `tokenizers` library knowing all of them itself."""
    values = metadata("tiny", "qwen35")
    tokens, types = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    types = [4 if text in _OVERLAPPING else kind for text, kind in zip(tokens, types, strict=True)]
    tokens = [_OVERLAPPING.get(text, text) for text in tokens]
    ours = Tokenizer.from_metadata(values | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types})
    merges = [tuple(merge.split(" ", 1)) for merge in values["tokenizer.ggml.merges"]]
    library = tokenizers.Tokenizer(BPE(vocab={text: i for i, text in enumerate(tokens)}, merges=merges))
    library.pre_tokenizer = pre_tokenizer("qwen35")
    for kind, add in ((3, library.add_special_tokens), (4, library.add_tokens)):
        add([tokenizers.AddedToken(t, normalized=False) for t, k in zip(tokens, types, strict=True) if k == kind])
    return ours, library


@settings(deadline=None, max_examples=300)
@given(parts=st.lists(st.sampled_from(["a", "x", "b", "<", "|", "<|im", "<|im_end|>", "_end|>", "<think>"]), max_size=12))
def test_overlapping_added_tokens_are_found_as_the_library_finds_them(overlapping: Any, parts: list[str]) -> None:
    """Where control and user-defined tokens overlap, the leftmost and longest counts, as in the `tokenizers` library."""
    ours, library = overlapping
    text = "".join(parts)
    assert ours.encode(text, parse_special=True) == library.encode(text, add_special_tokens=False).ids


def test_long_text_encodes_the_same_off_the_loop(tokenizer: Tokenizer) -> None:
    """`encode_async` gives the ids of `encode` for short, long and many-piece text."""
    for text in ("", "short", "word é 漢 " * 500, "<|im_start|>user\nhi there, all of you\n<|im_end|>\n" * 100):
        for parse_special in (False, True):
            expected = tokenizer.encode(text, parse_special=parse_special)
            assert asyncio.run(tokenizer.encode_async(text, parse_special=parse_special)) == expected


@pytest.mark.parametrize("text", ["many words " * 20_000, "<|im_start|>user\nhi\n<|im_end|>\n" * 1000])
async def test_the_loop_goes_on_during_a_long_encoding(tokenizer: Tokenizer, text: str) -> None:
    """While one long text or very many short ones are encoded, other tasks of the loop run."""
    task = asyncio.ensure_future(tokenizer.encode_async(text, parse_special=True))
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 5
    assert len(task.result()) > 5000


def test_of_equal_tokens_the_first_is_encoded(metadata: Any) -> None:
    """Some vocabularies hold a text twice: text encodes to the first, and both decode."""
    values = metadata("tiny", "qwen35")
    tokens = [*values["tokenizer.ggml.tokens"], "a"]
    types = [*values["tokenizer.ggml.token_type"], 1]
    tokenizer = Tokenizer.from_metadata(values | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types})
    assert tokenizer.encode("a", parse_special=True) == [tokens.index("a")]
    assert tokenizer.decode([tokens.index("a"), 2048]) == "aa"


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\ud800b", "a\ufffdb"), ("\udc00", "\ufffd"), ("\ud83d\ude42", "🙂"), ("\0\x07\x1b", "\0\x07\x1b"), ("\ue000", "\ue000")],
)
def test_hostile_strings_encode(tokenizer: Tokenizer, text: str, shown: str) -> None:
    """Lone surrogates become U+FFFD and split pairs are joined; control and private-use characters are ordinary text."""
    assert tokenizer.decode(tokenizer.encode(text, parse_special=True)) == shown
    assert tokenizer.decode(asyncio.run(tokenizer.encode_async(text + " " * 2000, parse_special=False))) == shown + " " * 2000


def test_ids_that_do_not_exist_are_the_requests_fault(tokenizer: Tokenizer) -> None:
    """Decoding an id outside 0..num_tokens-1 is a RequestError that names it."""
    for bad in (-1, tokenizer.num_tokens, 10**12):
        for use in (lambda i: tokenizer.decode([0, i]), tokenizer.token_bytes, tokenizer.token_text, tokenizer.is_control):
            with pytest.raises(RequestError, match=str(bad)):
                use(bad)


def test_token_kinds(tokenizer: Tokenizer) -> None:
    """End tokens, control and user-defined tokens and unused rows are told apart."""
    control = tokenizer.control_tokens
    assert tokenizer.eos_ids == {control["<|im_end|>"], control["<|endoftext|>"]}
    assert tokenizer.is_control(control["<|im_start|>"])
    think = tokenizer.token_id("<think>")
    assert think is not None
    assert not tokenizer.is_control(think)
    assert tokenizer.token_bytes(think) == b"<think>"
    unused = tokenizer.token_id("[PAD2047]")
    assert unused == tokenizer.num_tokens - 1 == tokenizer.vocab_size - 1
    assert tokenizer.token_bytes(unused) == b""
    assert tokenizer.token_text(unused) == "[PAD2047]"
    assert tokenizer.encode("[PAD2047]", parse_special=True) != [unused]
    assert tokenizer.decode([control["<|im_end|>"], think], show_control=False) == "<think>"


def test_metadata_from_arrays_gives_the_same_tokenizer(metadata: Any, tokenizer: Tokenizer) -> None:
    """token_type may be a numpy array and numbers numpy scalars, as a file reader has them."""
    given_ = metadata("tiny", "qwen35")
    given_["tokenizer.ggml.token_type"] = np.array(given_["tokenizer.ggml.token_type"], np.int32)
    given_["tokenizer.ggml.eos_token_id"] = np.uint32(given_["tokenizer.ggml.eos_token_id"])
    other = Tokenizer.from_metadata(given_)
    assert other.eos_ids == tokenizer.eos_ids
    assert other.control_tokens == tokenizer.control_tokens


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("model", "llama", "'llama'.*supported: gpt2"),
        ("model", None, "model is missing"),
        ("pre", "llama-bpe", "'llama-bpe'.*supported: qwen2, qwen35"),
        ("pre", 7, "pre is 7"),
        ("tokens", None, "tokens is missing"),
        ("tokens", [], "tokens has 0"),
        ("tokens", [1, 2], "tokens is not an array of str"),
        ("token_type", None, "token_type is missing"),
        ("token_type", [1, 1], "token_type has 2 entries"),
        ("merges", None, "merges is missing"),
        ("merges", "a b", "merges is not an array"),
        ("merges", ["ab"], r"merges\[0\] is 'ab'"),
        ("merges", ["a nosuchtoken"], "merges does not fit"),
        ("eos_token_id", 2048, "eos_token_id is 2048"),
        ("eos_token_id", "x", "eos_token_id is 'x'"),
        ("bos_token_id", -1, "bos_token_id is -1"),
    ],
)
def test_a_bad_key_is_named(metadata: Any, key: str, value: Any, says: str) -> None:
    """A vocabulary that cannot be used is a ModelFileError naming key, value and what is supported."""
    broken = metadata("tiny", "qwen35") | {f"tokenizer.ggml.{key}": value}
    with pytest.raises(ModelFileError, match=rf"^tokenizer\.ggml\.(?s:.)*{says}"):
        Tokenizer.from_metadata({k: v for k, v in broken.items() if v is not None})
