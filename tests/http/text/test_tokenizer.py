"""The tokenizer against published vectors and two other implementations."""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.models import BPE

from svc.errors import ModelFileError, RequestError
from svc.http.text.pretokenize import PRE_TOKENIZERS, pre_tokenizer
from svc.http.text.tokenizer import Tokenizer
from svc.http.text.unicode import well_formed

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


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "default"])
def test_other_pre_tokenizers_agree_with_llama_cpp(metadata: Any, pre: str) -> None:
    """The same vocabulary, cut in the other ways."""
    tokenizer = Tokenizer.from_metadata(metadata("tiny", pre))
    cases = json.loads((VOCAB / "tiny.llamacpp.json").read_text())
    assert len(cases) > 200
    for case in cases:
        assert tokenizer.encode(case["text"], parse_special=False) == case[pre], case["text"]


@settings(deadline=None, max_examples=200)
@given(text=st.text(max_size=60), parse_special=st.booleans())
def test_any_text_survives_the_round_trip(tokenizer: Tokenizer, text: str, parse_special: bool) -> None:
    """Decoding gives back what was encoded, byte for byte: nothing is normalised or lost."""
    assert tokenizer.decode(tokenizer.encode(text, parse_special=parse_special)) == text


def test_words_that_are_tokens_are_taken_whole(metadata: Any) -> None:
    """In vocabularies of Llama 3 some tokens are reached by no merges: only a whole word gives them. A prompt begins with BOS there
    where the file does not say otherwise."""
    values = metadata("tiny", "llama-bpe")
    values |= {"tokenizer.ggml.tokens": [*values["tokenizer.ggml.tokens"], "Ġxqzvw"], "tokenizer.ggml.bos_token_id": 3}
    values["tokenizer.ggml.token_type"] = [*values["tokenizer.ggml.token_type"], 1]
    values.pop("tokenizer.ggml.add_bos_token", None)
    llama, qwen = (Tokenizer.from_metadata(values | {"tokenizer.ggml.pre": pre}) for pre in ("llama-bpe", "qwen2"))
    whole = len(values["tokenizer.ggml.tokens"]) - 1
    assert llama.encode(" xqzvw", parse_special=False) == [whole]
    assert whole not in qwen.encode(" xqzvw", parse_special=False)
    assert (llama.add_bos, qwen.add_bos) == (True, False)
    assert not Tokenizer.from_metadata(values | {"tokenizer.ggml.add_bos_token": False}).add_bos


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
    library.pre_tokenizer = pre_tokenizer(PRE_TOKENIZERS["qwen35"])
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


_UNITS = [
    "a",
    "Z",
    "1",
    "٣",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "\u3000",
    "\u180e",
    "\x1c",
    "\x85",
    "é",
    "e\u0301",
    "\u0301",
    "漢",
    "か",
    "ヶ",
    "。",
]
_UNITS += [
    "\n\n",
    "1234567",
    "'s",
    "'",
    ".",
    "!?",
    "_",
    "<think>",
    "🙂",
    "\ud83d",
    "\ude42",
    "\u200b",
    "а",
    "ب",
    "<|im_end|>",
    "x 1",
    "x\ny",
]


@pytest.fixture(scope="module", params=["qwen2", "qwen35", "llama-bpe", "gpt-2", "smollm", "default"])
def spaced(request: pytest.FixtureRequest, metadata: Any) -> Tokenizer:
    """A vocabulary with user-defined tokens in which a word begins."""
    values = metadata("tiny", request.param)
    changed = {"<|box_start|>": "x 1", "<|box_end|>": "x\ny"}
    tokens, types = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    types = [4 if text in changed else kind for text, kind in zip(tokens, types, strict=True)]
    tokens = [changed.get(text, text) for text in tokens]
    return Tokenizer.from_metadata(values | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types})


@settings(deadline=None, max_examples=400)
@given(units=st.lists(st.sampled_from(_UNITS) | st.characters(), max_size=40), slice_chars=st.integers(1, 6))
def test_slices_encode_to_what_they_are_in_the_whole(spaced: Tokenizer, units: list[str], slice_chars: int) -> None:
    """However short its slices, a text has the ids that the library gives the whole text at once."""
    text = "".join(units)
    whole = spaced._bpe.encode(well_formed(text), add_special_tokens=False).ids
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("svc.http.text.tokenizer._SLICE_CHARS", slice_chars)
        assert [i for part in spaced.encode_parts(text, parse_special=False) for i in part] == whole
        slices = list(spaced._slices(text))
    assert "".join(slices) == text
    assert all(slices)
    cut = spaced._bpe.pre_tokenizer.pre_tokenize_str  # a small vocabulary hides most wrong cuts: the words show them
    assert [word for part in slices for word, _ in cut(well_formed(part))] == [word for word, _ in cut(well_formed(text))]


def test_long_text_comes_in_parts(tokenizer: Tokenizer) -> None:
    """So that whoever has enough need not pay for the rest; prose, base64 and Chinese without a space have places to cut."""
    for text in ("many words " * 20_000, "QUJD0a9/" * 30_000, "漢字仮名。" * 40_000, "line\n" * 40_000):
        parts = list(tokenizer.encode_parts(text, parse_special=True))
        assert len(parts) > 4
        assert tokenizer.decode([i for part in parts for i in part]) == text
        assert tokenizer.min_tokens(text) <= sum(map(len, parts))


@pytest.mark.parametrize("unit", [" ", "x", "=", "\n"])
def test_text_without_a_place_to_cut(tokenizer: Tokenizer, unit: str) -> None:
    """Eleven million spaces made the library panic: what is too long to be encoded at once is refused and not tried."""
    assert tokenizer.decode(tokenizer.encode(unit * 40_000, parse_special=True)) == unit * 40_000
    with pytest.raises(RequestError, match="262144 characters in which no word ends"):
        tokenizer.encode("a " + unit * 11_000_000, parse_special=True)


def test_a_panic_of_the_library_is_the_requests_fault(metadata: Any) -> None:
    """Its class is no Exception, so that nobody else would catch it; what does not come from the library goes on its way."""
    tokenizer = Tokenizer.from_metadata(metadata("tiny", "qwen35"))

    class PanicException(BaseException):
        pass

    class Broken:
        def __init__(self, error: type[BaseException]) -> None:
            self._error = error

        def encode(self, text: str, **_: Any) -> None:
            raise self._error

    for error, seen in ((PanicException, RequestError), (KeyboardInterrupt, KeyboardInterrupt)):
        tokenizer._bpe = Broken(error)  # type: ignore[assignment]
        with pytest.raises(seen):
            tokenizer.encode("a", parse_special=True)


def test_other_threads_run_during_a_long_encoding(tokenizer: Tokenizer) -> None:
    """The library holds the interpreter only between slices, so that another thread gets its turns."""
    began, turns = threading.Event(), 0
    encoding = threading.Thread(target=lambda: (began.set(), tokenizer.encode("many words " * 50_000, parse_special=True)))
    encoding.start()
    began.wait()
    while encoding.is_alive():
        encoding.join(0.001)
        turns += 1
    assert turns > 5


def test_of_equal_tokens_the_first_is_encoded(metadata: Any) -> None:
    """Some vocabularies hold a text twice: text encodes to the first, and both decode."""
    values = metadata("tiny", "qwen35")
    tokens = [*values["tokenizer.ggml.tokens"], "a"]
    types = [*values["tokenizer.ggml.token_type"], 1]
    tokenizer = Tokenizer.from_metadata(values | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types})
    assert tokenizer.encode("a", parse_special=True) == [tokens.index("a")]
    assert tokenizer.decode([tokens.index("a"), 2048]) == "aa"
    assert tokenizer.token_id("a") == tokens.index("a")
    assert [tokenizer.token_text(i) for i in range(len(tokens))] == tokens


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\ud800b", "a\ufffdb"), ("\udc00", "\ufffd"), ("\ud83d\ude42", "🙂"), ("\0\x07\x1b", "\0\x07\x1b"), ("\ue000", "\ue000")],
)
def test_hostile_strings_encode(tokenizer: Tokenizer, text: str, shown: str) -> None:
    """Lone surrogates become U+FFFD and split pairs are joined; control and private-use characters are ordinary text."""
    assert tokenizer.decode(tokenizer.encode(text, parse_special=True)) == shown
    assert tokenizer.decode(tokenizer.encode(text + " " * 2000, parse_special=False)) == shown + " " * 2000


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
        ("pre", "tekken", "'tekken'.*supported: qwen2, .*qwen35, llama-bpe"),
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


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ({}, ["<|im_end|>"]),
        ({"eos_token_id": "<eos>", "bos_token_id": "<s>"}, ["<eos>", "<s>", "<|im_end|>"]),
        ({"eot_token_id": "<eos>"}, ["<eos>", "<|im_end|>"]),
        ({"eos_token_id": "a"}, ["<|im_end|>"]),
    ],
)
def test_control_tokens_of_another_type(metadata: Any, ids: dict[str, str], expected: list[str]) -> None:
    """The well-known ones, the file's own begin and end if they look like control tokens, and what the template writes, as far as
    the vocabulary has them; what has the right type already is not named. A word that ends answers stays a word."""
    plain = metadata("tiny", "qwen35")
    tokens, types = plain["tokenizer.ggml.tokens"] + ["<eos>", "<s>", "<turn>"], plain["tokenizer.ggml.token_type"] + [1, 4, 1]
    types[tokens.index("<|im_end|>")] = 4
    changed = plain | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    changed |= {f"tokenizer.ggml.{key}": tokens.index(text) for key, text in ids.items()}
    tokenizer = Tokenizer.from_metadata(changed)
    assert sorted(tokenizer.mistyped([])) == expected
    assert sorted(tokenizer.mistyped(["<turn>", "<absent>", "<|im_start|>"])) == sorted([*expected, "<turn>"])
    repaired = Tokenizer.from_metadata(changed, tokenizer.mistyped(["<turn>"]))
    assert repaired.mistyped(["<turn>"]) == []
    assert repaired.decode(repaired.encode("a<turn><|im_end|>", parse_special=False)) == "a<turn><|im_end|>"
    assert repaired.encode("a<turn>", parse_special=True)[1:] == [tokens.index("<turn>")]
