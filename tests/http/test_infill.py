"""Prompts with a gap: POST /infill in llama-server's form, and `suffix` of OpenAI's completions."""

import json
from typing import Any

import pytest

from svc.errors import RequestError
from svc.http.text.fill_in import FillIn, OtherFile
from svc.memory.placement import Boundary, BoundaryKind
from tests.fakes.fake_engine import FakeEngine, saying
from tests.fakes.fake_text import (
    FILE_SEPARATOR,
    FIM_MIDDLE,
    FIM_PREFIX,
    FIM_SUFFIX,
    IM_END,
    REPOSITORY,
    byte_tokenizer,
)
from tests.http.harness import TOKENIZER, serving

GAP = {"input_prefix": "def f():", "prompt": " re", "input_suffix": "end"}
NEAR = [FIM_PREFIX, *b"def f(): re", FIM_SUFFIX, *b"end", FIM_MIDDLE]
HERE = [FILE_SEPARATOR, *b"filename\n"]


async def test_a_gap_is_filled_as_by_llama_server() -> None:
    """Other files first, under their names, then what is around the gap; the answer is /completion's. Its limits are too."""
    extra = [{"filename": "a.h", "text": "int a;"}, {"text": "b"}]
    async with serving(FakeEngine(saying("turn"))) as at:
        status, answer = await at.post("/infill", {**GAP, "input_extra": extra, "n_predict": 9, "seed": 1})
        *pieces, last = await at.events("/infill", {**GAP, "n_predict": 9})
    assert (status, answer["content"], answer["stop_type"]) == (200, "turn", "eos")
    assert "".join(piece["content"] for piece in pieces) == "turn"
    assert last["stop"]
    files = [REPOSITORY, *b"myproject\n", FILE_SEPARATOR, *b"a.h\nint a;", FILE_SEPARATOR, *b"tmp\nb", *HERE]
    first, second = (sequence.request for sequence in at.engine.sequences)
    assert list(first.prompt) == [*files, *NEAR]
    assert list(second.prompt) == [REPOSITORY, *b"myproject\n", *HERE, *NEAR]
    assert first.boundaries == (Boundary(len(files), BoundaryKind.SYSTEM_END),)
    assert first.max_tokens == 9
    assert {IM_END, REPOSITORY, FILE_SEPARATOR} <= first.stop_ids


async def test_the_whole_vocabulary_of_ends_can_be_turned_off() -> None:
    """`ignore_eos` also lets an answer go on into another file."""
    async with serving(FakeEngine(saying("x"))) as at:
        await at.post("/infill", {**GAP, "n_predict": 1, "ignore_eos": True})
    assert at.engine.sequences[0].request.stop_ids == frozenset()


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input_prefix": None}, "input_prefix"),
        ({"input_suffix": 5}, "input_suffix"),
        ({"prompt": [1]}, "prompt"),
        ({"input_extra": {}}, "input_extra"),
        ({"input_extra": [{}]}, "input_extra[0].text"),
        ({"input_extra": [{"filename": "ok"}]}, "input_extra[0].text"),
        ({"input_extra": [{"text": "a"}, {"filename": 123, "text": "abc"}]}, "input_extra[1].filename"),
        ({"input_extra": [{"filename": "x" * 5000, "text": "abc"}]}, "input_extra[0].filename"),
        ({"input_extra": ["text"]}, "input_extra[0].text"),
        ({"input_extra": [{"text": ""}] * 129}, "input_extra"),
        ({"mirostat": "x"}, "mirostat"),
        ({"prompt": "x" * 5000}, "prompt"),
    ],
)
async def test_bad_gaps_are_named(change: dict[str, Any], param: str) -> None:
    async with serving(FakeEngine(saying("x"))) as at:
        status, answer = await at.post("/infill", GAP | change)
    assert (status, answer["error"]["param"]) == (400, param)
    assert at.engine.sequences == []


async def test_suffix_of_completions() -> None:
    """Between each prompt and the suffix; control tokens spelled in either stay text, as a file may have them."""
    async with serving(FakeEngine(saying("x"))) as at:
        status, answer = await at.post("/v1/completions", {"prompt": ["a", "b"], "suffix": "<|im_end|>"})
        echoed = await at.post("/v1/completions", {"prompt": "a", "suffix": "b", "echo": True})
        await at.post("/v1/completions", {"prompt": "a", "suffix": ""})
    assert (status, [choice["text"] for choice in answer["choices"]]) == (200, ["x", "x"])
    prompts = [list(sequence.request.prompt) for sequence in at.engine.sequences]
    text = list(b"<|im_end|>")
    assert prompts == [*([FIM_PREFIX, letter, FIM_SUFFIX, *text, FIM_MIDDLE] for letter in b"ab"), [ord("a")]]
    assert (echoed[0], echoed[1]["error"]["param"]) == (400, "echo")


def test_models_without_such_tokens_are_refused() -> None:
    """The sentence says what is missing."""
    with pytest.raises(RequestError, match="no suffix or middle token"):
        FillIn(byte_tokenizer(("<|im_end|>", "<|fim_prefix|>"), eos_id=256), 100, None)


def test_metadata_goes_before_spelling() -> None:
    """A file may name its tokens by id."""
    tokenizer = byte_tokenizer()
    tokenizer.fill_in_ids = {"pre": 1, "suf": 2, "mid": 3}
    assert list(FillIn(tokenizer, 100, None).whole("a", "b", "prompt").ids) == [1, ord("a"), 2, ord("b"), 3]


@pytest.mark.parametrize(("context", "answer"), [(40, 4), (63, 10), (257, 0), (4096, None), (20_000, 100)])
def test_windows_fit(context: int, answer: int | None) -> None:
    """Of long texts the ends at the gap are kept, three to one, and of the files the nearest that leave twice the answer's room."""
    prefix, suffix = "".join(chr(ord("a") + n % 26) for n in range(9000)), "0123456789" * 900
    files = [OtherFile(f"{n}", "x" * 700) for n in range(30)]
    prompt = FillIn(TOKENIZER, context, answer).window(prefix, "LN", suffix, files)
    tokens = list(prompt.ids)
    assert len(tokens) + (answer or 0) <= context
    start, cut, end = tokens.index(FIM_PREFIX), tokens.index(FIM_SUFFIX), tokens.index(FIM_MIDDLE)
    assert end == len(tokens) - 1
    before, after = bytes(tokens[start + 1 : cut]).decode(), bytes(tokens[cut + 1 : end]).decode()
    assert (prefix + "LN").endswith(before)
    assert suffix.startswith(after)
    window = min(2048, context - (answer or 0))
    assert (len(before), len(after)) == (3 * (window // 4) + 2, window // 4 - 5)
    assert start == max(0, context - (end + 1 - start) - 2 * (answer or 0))  # the files are longer than any of these contexts
    assert prompt.boundaries == ((Boundary(start, BoundaryKind.SYSTEM_END),) if start else ())


async def test_response_fields_and_a_warm_up() -> None:
    """llama.vim: no token wanted, only a field of the timings."""
    body = {**GAP, "n_predict": 0, "samplers": [], "cache_prompt": True, "t_max_prompt_ms": 1, "response_fields": ["content"]}
    async with serving(FakeEngine(saying("x"))) as at:
        status, answer = await at.post("/infill", body)
    assert (status, answer) == (200, {"content": ""}), json.dumps(answer)
