"""POST /v1/completions against a scripted engine."""

from typing import Any

import pytest

from svc.slots.events import TokenEvent
from svc.slots.request import Request
from tests.fakes.fake_engine import FakeEngine, saying
from tests.fakes.fake_text import IM_END, VOCAB_SIZE, ids
from tests.http.harness import MODEL, serving


async def test_whole_answer_has_openais_shape() -> None:
    """Every field that OpenAI documents, and of extensions only llama-server's timings."""
    async with serving(FakeEngine(saying("Hello"))) as at:
        status, answer = await at.post("/v1/completions", {"prompt": "Say"})
    assert status == 200
    assert answer.pop("id").startswith("cmpl-")
    assert isinstance(answer.pop("created"), int)
    assert answer.pop("timings")["predicted_n"] == 5
    assert answer == {
        "object": "text_completion",
        "model": MODEL,
        "system_fingerprint": "headrace-test",
        "choices": [{"index": 0, "text": "Hello", "finish_reason": "stop", "logprobs": None}],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 5,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab<|im_end|>", [[97, 98, IM_END]]),
        (["a", "bc"], [[97], [98, 99]]),
        ([1, 2, IM_END], [[1, 2, IM_END]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
async def test_the_four_forms_of_a_prompt(prompt: Any, expected: list[list[int]]) -> None:
    """A string, strings, token ids and lists of them; token ids reach the engine as they are."""
    async with serving(FakeEngine(saying("x"))) as at:
        status, answer = await at.post("/v1/completions", {"prompt": prompt})
    assert status == 200
    assert [list(sequence.request.prompt) for sequence in at.engine.sequences] == expected
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(expected)))


async def test_choices_belong_to_prompts_in_order() -> None:
    """With n choices for each of several prompts, choice i belongs to prompt i // n; usage counts each prompt once."""

    def script(request: Request) -> list[int]:
        return [request.prompt[0], ord("0") + request.choice, IM_END]

    engine = FakeEngine(script, cached=lambda request: len(request.prompt) if request.choice else 0)
    async with serving(engine) as at:
        _, answer = await at.post("/v1/completions", {"prompt": ["aa", "b"], "n": 2})
        *chunks, _ = await at.events("/v1/completions", {"prompt": ["aa", "b"], "n": 2})
    assert [choice["text"] for choice in answer["choices"]] == ["a0", "a1", "b0", "b1"]
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    texts = ["".join(c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == index) for index in range(4)]
    assert texts == ["a0", "a1", "b0", "b1"]


async def test_default_limit_is_openais() -> None:
    """16 tokens when max_tokens is not given."""
    async with serving(FakeEngine(saying("x" * 100))) as at:
        _, answer = await at.post("/v1/completions", {"prompt": "a"})
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("x" * 16, "length")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_llama_servers_name_of_the_limit(path: str) -> None:
    """`n_predict` is read beside OpenAI's names, which win over it; a wrong one is named."""
    body = {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}
    async with serving(FakeEngine(saying("x" * 100))) as at:
        for limits in ({"n_predict": 20}, {"n_predict": 20, "max_tokens": 3}, {"n_predict": 0}):
            await at.post(path, body | limits)
        status, refused = await at.post(path, body | {"n_predict": 1.5})
    assert [sequence.request.max_tokens for sequence in at.engine.sequences] == [20, 3, 0]
    assert (status, refused["error"]["param"]) == (400, "n_predict")


async def test_echo_puts_the_prompt_before_the_answer() -> None:
    """Whole and streamed, for text and for token ids."""
    async with serving(FakeEngine(saying("!"))) as at:
        _, whole = await at.post("/v1/completions", {"prompt": "Say", "echo": True})
        *chunks, _ = await at.events("/v1/completions", {"prompt": [83, 97], "echo": True})
    assert whole["choices"][0]["text"] == "Say!"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Sa!"


async def test_tokens_beyond_the_tokenizer_have_no_text() -> None:
    """The embedding may have more rows than the vocabulary: as prompt, echoed, sampled and among the best, whole and streamed."""
    padding = VOCAB_SIZE + 5
    script = [TokenEvent(padding, -0.5, ((padding, -0.5),)), TokenEvent(33, -1.0, ((33, -1.0), (padding, -2.0))), IM_END]
    prompt = [83, padding, 97]
    async with serving(FakeEngine(lambda request: script), vocab_size=VOCAB_SIZE + 10) as at:
        status, echoed = await at.post("/v1/completions", {"prompt": prompt, "echo": True})
        *chunks, _ = await at.events("/v1/completions", {"prompt": prompt, "echo": True})
        _, named = await at.post("/v1/completions", {"prompt": prompt, "logprobs": 2})
        _, chat = await at.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "logprobs": True})
        _, native = await at.post("/completion", {"prompt": prompt, "n_probs": 2})
        refused, error = await at.post("/v1/completions", {"prompt": [VOCAB_SIZE + 10]})
    assert (status, echoed["choices"][0]["text"]) == (200, "Sa!")
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Sa!"
    assert named["choices"][0]["logprobs"]["tokens"] == ["", "!"]
    assert [entry["bytes"] for entry in chat["choices"][0]["logprobs"]["content"]] == [[], [33]]
    assert (native["prompt"], native["content"]) == ("Sa", "!")
    assert (refused, error["error"]["param"]) == (400, "prompt[0]")


async def test_stream_ends_with_reason_usage_and_done() -> None:
    """The last choice chunk carries the finish reason, usage comes alone, [DONE] last."""
    async with serving(FakeEngine(saying("Hey"))) as at:
        *chunks, usage, done = await at.events("/v1/completions", {"prompt": "a", "stream_options": {"include_usage": True}})
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hey"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 3)


async def test_logprobs_in_the_old_form() -> None:
    """Parallel lists; the sampled token is always in its best list; offsets count characters, also over split ones."""

    def script(request: Request) -> list[Any]:
        best = ((ord("b"), -0.1),)
        return [TokenEvent(ord("a"), -2.0, best), TokenEvent(0xC3, -0.5, ()), TokenEvent(0xA9, -0.25, ()), TokenEvent(33, -1.5, ())]

    async with serving(FakeEngine(script)) as at:
        body = {"prompt": "p", "logprobs": 1, "max_tokens": 4}
        _, whole = await at.post("/v1/completions", body)
        *chunks, _ = await at.events("/v1/completions", body)
    logprobs = whole["choices"][0]["logprobs"]
    assert whole["choices"][0]["text"] == "aé!"
    assert logprobs == {
        "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9", "!"],
        "token_logprobs": [-2.0, -0.5, -0.25, -1.5],
        "top_logprobs": [{"b": -0.1, "a": -2.0}, {"bytes:\\xc3": -0.5}, {"bytes:\\xa9": -0.25}, {"!": -1.5}],
        "text_offset": [0, 1, 1, 2],
    }
    for key in logprobs:
        assert [entry for chunk in chunks for entry in chunk["choices"][0]["logprobs"][key]] == logprobs[key]


async def test_token_ids_are_told_on_request() -> None:
    """In each choice: the prompt's once, the answer's with its text."""
    async with serving(FakeEngine(saying("hi"))) as at:
        body = {"prompt": "ab", "return_token_ids": True}
        _, whole = await at.post("/v1/completions", body)
        *chunks, _ = await at.events("/v1/completions", body)
    assert whole["choices"][0]["prompt_token_ids"] == [97, 98]
    assert whole["choices"][0]["token_ids"] == [104, 105]
    assert [chunk["choices"][0].get("prompt_token_ids") for chunk in chunks] == [[97, 98]] + [None] * (len(chunks) - 1)
    assert [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]] == [104, 105]


async def test_reports_of_several_answers() -> None:
    """With several answers the report has one entry for each."""
    async with serving(FakeEngine(saying("x"))) as at:
        _, answer = await at.post("/v1/completions", {"prompt": ["a", "b"], "cache_report": True})
    assert len(answer["headrace"]["caches"]) == 2
    assert answer["headrace"]["cache"] == answer["headrace"]["caches"][0]


async def test_tokenize_and_detokenize_are_llama_servers() -> None:
    """The shapes that scripts written for llama-server send and expect."""
    text = "hé<|im_end|>"
    async with serving(FakeEngine()) as at:
        assert await at.post("/tokenize", {"content": text}) == (200, {"tokens": ids(text)})
        spelled = await at.post("/tokenize", {"content": "<|im_end|>", "parse_special": False})
        assert spelled == (200, {"tokens": list(b"<|im_end|>")})
        _, pieces = await at.post("/tokenize", {"content": "hé", "with_pieces": True})
        assert pieces == {"tokens": [{"id": 104, "piece": "h"}, {"id": 0xC3, "piece": [0xC3]}, {"id": 0xA9, "piece": [0xA9]}]}
        assert await at.post("/detokenize", {"tokens": ids(text)}) == (200, {"content": text})
