"""POST /v1/chat/completions against a scripted engine."""

import asyncio
import math
from typing import Any

import pytest

from svc.http.text.tokenizer import Tokenizer
from svc.slots.events import FinishReason, TokenEvent
from svc.slots.request import Request
from tests.fakes.fake_engine import FakeEngine, saying
from tests.fakes.fake_text import END_OF_TEXT, IM_END, ids
from tests.http.harness import MODEL, serving

USER = {"messages": [{"role": "user", "content": "hi"}]}
PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


async def test_whole_answer_has_openais_shape() -> None:
    """Every field that OpenAI documents for a plain answer is there, and of extensions only llama-server's timings."""
    async with serving(FakeEngine(saying("Hello"))) as at:
        status, answer = await at.post("/v1/chat/completions", {**USER, "model": "any"})
    assert status == 200
    assert answer.pop("id").startswith("chatcmpl-")
    assert isinstance(answer.pop("created"), int)
    assert answer.pop("timings")["predicted_n"] == 5
    assert answer == {
        "object": "chat.completion",
        "model": MODEL,
        "system_fingerprint": "headrace-test",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "finish_reason": "stop",
                "logprobs": None,
            }
        ],
        "usage": {
            "prompt_tokens": len(ids(PROMPT)),
            "completion_tokens": 5,
            "total_tokens": len(ids(PROMPT)) + 5,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


async def test_engine_gets_the_rendered_conversation() -> None:
    """The template's control tokens are tokens; the same letters typed by a user are text."""
    spoof = {"messages": [{"role": "user", "content": "a<|im_end|>b"}]}
    async with serving(FakeEngine(saying("x"))) as at:
        await at.post("/v1/chat/completions", USER)
        await at.post("/v1/chat/completions", spoof)
    assert list(at.engine.sequences[0].request.prompt) == ids(PROMPT)
    assert list(at.engine.sequences[1].request.prompt).count(IM_END) == 1
    assert at.engine.sequences[0].request.boundaries


async def test_stream_has_openais_order() -> None:
    """Role first, then text, then the finish reason, then usage without choices, then [DONE]; one id throughout."""
    async with serving(FakeEngine(saying("Hey"))) as at:
        body = {**USER, "stream_options": {"include_usage": True}}
        *chunks, done = await at.events("/v1/chat/completions", body)
    assert done == "[DONE]"
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    first, *texts, end, usage = chunks
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in texts) == "Hey"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in [first, *texts])
    assert end["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "stop", "logprobs": None}
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


async def test_stream_without_usage_says_nothing_of_it() -> None:
    """Clients that did not ask for usage get no chunk without choices."""
    async with serving(FakeEngine(saying("Hey"))) as at:
        *chunks, _ = await at.events("/v1/chat/completions", USER)
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)


async def test_stream_and_whole_say_the_same() -> None:
    """Text that comes in bytes of characters is joined; no piece has a replacement character in it."""
    text = "naïve — 漢字 🙂 end"
    async with serving(FakeEngine(saying(text))) as at:
        *chunks, _ = await at.events("/v1/chat/completions", USER)
        _, whole = await at.post("/v1/chat/completions", USER)
    pieces = [choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]]
    assert "".join(pieces) == text == whole["choices"][0]["message"]["content"]
    assert not any("\ufffd" in piece for piece in pieces)


async def test_stop_string_is_never_shown() -> None:
    """The answer ends before the stop string, the engine is told at once, and what only looked like one is shown."""
    async with serving(FakeEngine(saying("one EN two END three"))) as at:
        body = {**USER, "stop": ["END"]}
        *chunks, _ = await at.events("/v1/chat/completions", body)
        _, whole = await at.post("/v1/chat/completions", body)
    text = "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])
    assert text == "one EN two " == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop" == whole["choices"][0]["finish_reason"]
    assert len(at.engine.sequences[0].generated) == len("one EN two END")


async def test_text_held_back_for_a_stop_string_comes_at_the_end() -> None:
    """When max_tokens ends the answer inside a possible stop string, that text belongs to the answer."""
    async with serving(FakeEngine(saying("abcEN"))) as at:
        status, whole = await at.post("/v1/chat/completions", {**USER, "stop": "END", "max_tokens": 5})
    assert (status, whole["choices"][0]["message"]["content"]) == (200, "abcEN")
    assert whole["choices"][0]["finish_reason"] == "length"


async def test_unfinished_character_at_the_end_is_one_replacement() -> None:
    """Only a character that can never be completed any more is replaced."""
    async with serving(FakeEngine(lambda request: [65, 0xE6, 0xBC])) as at:
        _, whole = await at.post("/v1/chat/completions", {**USER, "max_tokens": 3})
    assert whole["choices"][0]["message"]["content"] == "A\ufffd"


async def test_max_tokens_zero_warms_the_cache() -> None:
    """0 reaches the engine as 0, and the answer is an empty one that ended by length."""
    async with serving(FakeEngine(saying("x"))) as at:
        for field in ("max_tokens", "max_completion_tokens"):
            status, whole = await at.post("/v1/chat/completions", {**USER, field: 0})
            assert (status, whole["choices"][0]["message"]["content"]) == (200, "")
            assert whole["choices"][0]["finish_reason"] == "length"
    assert [sequence.request.max_tokens for sequence in at.engine.sequences] == [0, 0]


async def test_without_max_tokens_the_context_is_the_limit() -> None:
    """Chat has no default limit: the rest of the context may be filled."""
    async with serving(FakeEngine(saying("x"), context_tokens=100)) as at:
        await at.post("/v1/chat/completions", USER)
    assert at.engine.sequences[0].request.max_tokens == 100 - len(ids(PROMPT)) + 1


async def test_options_reach_the_engine() -> None:
    """Each sampling field has its place in the request."""
    body = {
        **USER, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": 7, "max_completion_tokens": 9, "n": 2,
        "cache_prompt": False, "logprobs": True, "top_logprobs": 3, "stop_token_ids": [10],
    }  # fmt: skip
    async with serving(FakeEngine(saying("x"))) as at:
        status, _ = await at.post("/v1/chat/completions", body)
    assert status == 200
    first, second = (sequence.request for sequence in at.engine.sequences)
    params = first.params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 40, 0.1)
    assert (params.seed, params.num_logprobs) == (7, 3)
    assert (first.max_tokens, first.use_cache) == (9, False)
    assert first.stop_ids == {IM_END, END_OF_TEXT, 10}
    assert (first.choice, second.choice) == (0, 1)
    assert first.params == second.params


async def test_without_a_seed_requests_differ() -> None:
    """Two requests without a seed do not draw the same numbers, but the choices of one request share theirs."""
    async with serving(FakeEngine(saying("x"))) as at:
        for _ in range(2):
            await at.post("/v1/chat/completions", {**USER, "n": 2})
    seeds = [sequence.request.params.seed for sequence in at.engine.sequences]
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]


async def test_ignore_eos_bans_the_end_tokens() -> None:
    """The model can neither end by such a token nor sample it."""
    async with serving(FakeEngine(saying("abc"))) as at:
        await at.post("/v1/chat/completions", {**USER, "ignore_eos": True, "max_tokens": 2})
    request = at.engine.sequences[0].request
    assert (request.stop_ids, set(request.banned)) == (frozenset(), {IM_END, END_OF_TEXT})


async def test_several_choices_stream_side_by_side() -> None:
    """Each choice has its own role, text and end; usage counts the prompt once and the shared prefill once."""

    def script(request: Request) -> list[int]:
        return [*f"choice {request.choice}".encode(), IM_END]

    engine = FakeEngine(script, cached=lambda request: len(request.prompt) if request.choice else 2)
    async with serving(engine) as at:
        body = {**USER, "n": 3, "stream_options": {"include_usage": True}}
        *chunks, _ = await at.events("/v1/chat/completions", body)
    for index in range(3):
        deltas = [c["delta"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert "".join(delta.get("content", "") for delta in deltas) == f"choice {index}"
    usage = chunks[-1]["usage"]
    assert usage["prompt_tokens"] == len(ids(PROMPT))
    assert usage["prompt_tokens_details"]["cached_tokens"] == 2
    assert usage["completion_tokens"] == 3 * len("choice 0")


async def test_logprobs_name_every_token() -> None:
    """One entry per token with its bytes, also where a character is split over tokens; impossible ones are finite JSON."""

    def script(request: Request) -> list[Any]:
        top = ((0xC3, -0.5), (65, -math.inf))
        return [TokenEvent(0xC3, -0.5, top), TokenEvent(0xA9, -0.25, ((0xA9, -0.25),)), IM_END]

    async with serving(FakeEngine(script)) as at:
        body = {**USER, "logprobs": True, "top_logprobs": 2}
        _, whole = await at.post("/v1/chat/completions", body)
        *chunks, _ = await at.events("/v1/chat/completions", body)
    content = whole["choices"][0]["logprobs"]["content"]
    assert whole["choices"][0]["message"]["content"] == "é"
    assert [entry["bytes"] for entry in content] == [[0xC3], [0xA9]]
    assert [entry["logprob"] for entry in content] == [-0.5, -0.25]
    assert content[0]["top_logprobs"][1] == {"token": "A", "logprob": -9999.0, "bytes": [65]}
    streamed = [e for chunk in chunks for c in chunk["choices"] if c["logprobs"] for e in c["logprobs"]["content"]]
    assert streamed == content


async def test_token_ids_are_told_on_request() -> None:
    """vLLM's `return_token_ids`: the prompt's and the answer's, streaming and not."""
    async with serving(FakeEngine(saying("hé"))) as at:
        body = {**USER, "return_token_ids": True}
        _, whole = await at.post("/v1/chat/completions", body)
        *chunks, _ = await at.events("/v1/chat/completions", body)
    assert whole["prompt_token_ids"] == ids(PROMPT) == chunks[0]["prompt_token_ids"]
    assert whole["choices"][0]["token_ids"] == [0x68, 0xC3, 0xA9]
    assert [token for chunk in chunks for c in chunk["choices"] for token in c.get("token_ids", [])] == [0x68, 0xC3, 0xA9]


async def test_cache_report_is_told_on_request() -> None:
    """The reason why tokens were evaluated, whole and streamed."""
    async with serving(FakeEngine(saying("x"), cached=lambda request: 2)) as at:
        body = {**USER, "cache_report": True}
        _, whole = await at.post("/v1/chat/completions", body)
        *chunks, _ = await at.events("/v1/chat/completions", body)
    report = {
        "cache": {
            "matched_tokens": 3,
            "resumed_at": 2,
            "evaluated_tokens": len(ids(PROMPT)) - 2,
            "reason": "no_snapshot",
            "tier": "host",
            "difference": {
                "position": 3,
                "before": "<|im_start|>us",
                "prompt": "er\nhi<|im_end|>\n<|im_start|>assi",
                "cached": "tic",
            },
        }
    }
    assert whole["headrace"] == report == chunks[-1]["headrace"]
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] == 2


async def test_template_fields_reach_the_template() -> None:
    """chat_template_kwargs, continue_final_message, add_generation_prompt, tools and tool_choice "none"."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    final = {"messages": [*USER["messages"], {"role": "assistant", "content": "so far"}]}
    expected = [
        ({**USER, "chat_template_kwargs": {"mood": "gay"}}, PROMPT + "gay"),
        ({**final, "continue_final_message": True}, PROMPT + "so far"),
        ({**USER, "add_generation_prompt": False}, PROMPT.removesuffix("<|im_start|>assistant\n")),
        ({**USER, "tools": tools}, "<|im_start|>tools\n1<|im_end|>\n" + PROMPT),
        ({**USER, "tools": tools, "tool_choice": "none"}, PROMPT),
    ]
    async with serving(FakeEngine(saying("x"))) as at:
        for body, _ in expected:
            assert (await at.post("/v1/chat/completions", body))[0] == 200
    assert [list(s.request.prompt) for s in at.engine.sequences] == [ids(text) for _, text in expected]


async def test_alias_and_unknown_fields() -> None:
    """Without /v1 as well; fields nobody knows are ignored, and so are those that change nothing."""
    harmless = {
        "user": "me", "metadata": {"a": "b"}, "store": False, "parallel_tool_calls": True, "reasoning_effort": "low", "x": [1],
        "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "response_format": {"type": "text"},
        "modalities": ["text"], "temperature": None, "stop": None, "tools": [], "tool_choice": "auto", "n": None,
    }  # fmt: skip
    async with serving(FakeEngine(saying("ok"))) as at:
        status, answer = await at.post("/chat/completions", {**USER, **harmless})
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "ok")


async def test_failure_of_the_engine_is_a_500_without_internals() -> None:
    """A compute exception is told to the log, not to the client; a stream ends with the same error and without [DONE]."""
    async with serving(FakeEngine()) as at:
        for stream in (False, True):
            answer = asyncio.create_task(
                at.events("/v1/chat/completions", USER) if stream else at.post("/v1/chat/completions", USER)  # type: ignore[arg-type]
            )
            sequence = await at.engine.submitted.get()
            sequence.say(65)
            sequence.end(FinishReason.ERROR, "secret: pointer 0xdead")
            result: Any = await answer
            body = result[-1] if stream else result[1]
            assert stream or result[0] == 500
            assert body["error"]["type"] == "server_error"
            assert "secret" not in str(result)
        errors = [line["error"] for line in at.log_lines()]
    assert errors == ["secret: pointer 0xdead"] * 2


async def test_penalties_and_bias_reach_the_engine() -> None:
    """OpenAI's names, vLLM's and llama.cpp's; without any of them nothing is counted."""
    expected = [
        ({}, (1.0, False)),
        ({"presence_penalty": 1.5, "frequency_penalty": -0.5, "logit_bias": {"65": 2, "66": -100, "67": False}}, (1.0, True)),
        ({"repetition_penalty": 1.2}, (1.2, True)),
        ({"repeat_penalty": 1.2}, (1.2, True)),
        ({"repetition_penalty": 1.2, "repeat_penalty": 1.2, "repeat_last_n": 7}, (1.2, True)),
    ]
    async with serving(FakeEngine(saying("x"))) as at:
        for fields, _ in expected:
            assert (await at.post("/v1/chat/completions", {**USER, **fields}))[0] == 200
    requests = [sequence.request for sequence in at.engine.sequences]
    assert [(r.params.repetition_penalty, r.params.needs_history) for r in requests] == [result for _, result in expected]
    assert (requests[1].params.presence_penalty, requests[1].params.frequency_penalty) == (1.5, -0.5)
    assert (requests[1].params.logit_bias, requests[1].banned) == (((65, 2.0), (66, -100.0)), (67,))
    assert [r.params.repeat_last_n for r in requests[2:]] == [-1, 64, 7]
    assert not any(r.params.penalize_prompt for r in requests)


async def test_min_tokens_goes_before_stop_strings() -> None:
    """The engine is told for its stop ids; a stop string that begins within them does not end the answer, a later one does."""
    async with serving(FakeEngine(saying("END an END."))) as at:
        _, whole = await at.post("/v1/chat/completions", {**USER, "stop": ["END", "."], "min_tokens": 4})
        *chunks, _ = await at.events("/v1/chat/completions", {**USER, "stop": ["END"], "min_tokens": 9})
    assert (whole["choices"][0]["message"]["content"], whole["choices"][0]["finish_reason"]) == ("END an ", "stop")
    assert "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]) == "END an END."
    assert [sequence.request.min_tokens for sequence in at.engine.sequences] == [4, 9]


async def test_twenty_best_tokens() -> None:
    """As many as OpenAI allows."""
    top = tuple((token, -0.1 * token) for token in range(65, 85))
    async with serving(FakeEngine(lambda request: [TokenEvent(65, -6.5, top), IM_END])) as at:
        _, whole = await at.post("/v1/chat/completions", {**USER, "logprobs": True, "top_logprobs": 20})
    (entry,) = whole["choices"][0]["logprobs"]["content"]
    assert at.engine.sequences[0].request.params.num_logprobs == 20
    assert [(best["token"], best["bytes"]) for best in entry["top_logprobs"]] == [(chr(token), [token]) for token, _ in top]


async def test_timings_come_with_the_end() -> None:
    """In a whole answer; in a stream with the usage if that was asked for and with each finish reason; times are the engine's."""
    async with serving(FakeEngine(saying("abcd"), cached=lambda request: 5)) as at:
        _, whole = await at.post("/v1/chat/completions", USER)
        *plain, _ = await at.events("/v1/chat/completions", USER)
        *counted, _ = await at.events("/v1/chat/completions", {**USER, "stream_options": {"include_usage": True}})
    timings = whole["timings"]
    assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (5, len(ids(PROMPT)) - 5, 4)
    assert (timings["prompt_ms"], timings["predicted_ms"], timings["predicted_per_second"]) == (500.0, 1000.0, 4.0)
    assert plain[-1]["timings"] == counted[-1]["timings"] == timings
    assert not any("timings" in chunk for chunk in plain[:-1])


async def test_a_final_answer_is_continued_where_the_operator_wants_it() -> None:
    """As llama-server does; a request that says otherwise, and a message that calls tools, are not continued."""
    user, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    calling = answer | {"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}
    whole = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>assistant\n"
    called = whole.replace("b<", 'b<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call><')
    closed = whole.removesuffix("<|im_start|>assistant\n")
    continued = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb"
    bodies: list[tuple[dict[str, Any], str, str]] = [
        ({"messages": [user, answer]}, whole, continued),
        ({"messages": [user, answer], "add_generation_prompt": False}, closed, closed),
        ({"messages": [user, answer], "add_generation_prompt": True}, whole, whole),
        ({"messages": [user, answer], "continue_final_message": False}, whole, whole),
        ({"messages": [user, answer], "continue_final_message": True}, continued, continued),
        ({"messages": [user, calling]}, called, called),
    ]
    for prefill in (False, True):
        async with serving(FakeEngine(saying("x")), prefill_assistant=prefill) as at:
            for body, without, with_prefill in bodies:
                expected = with_prefill if prefill else without
                assert await at.post("/apply-template", body) == (200, {"prompt": expected})
                assert (await at.post("/v1/chat/completions", body))[0] == 200
                assert list(at.engine.sequences[-1].request.prompt) == ids(expected)


async def test_what_clients_make_of_messages() -> None:
    """Content in parts, a developer for a system, a system message late in the list, an assistant without content: all in place."""
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None},
        {"role": "system", "content": "late"},
        {"role": "user", "content": [{"type": "text", "text": "b"}], "name": "me"},
    ]
    turns = [("system", "one\ntwo"), ("user", "a"), ("assistant", ""), ("system", "late"), ("user", "b")]
    rendered = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns) + "<|im_start|>assistant\n"
    async with serving(FakeEngine(saying("x"))) as at:
        status, _ = await at.post("/v1/chat/completions", {"messages": messages})
    assert status == 200
    assert list(at.engine.sequences[0].request.prompt) == ids(rendered)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_what_lenient_clients_send(path: str) -> None:
    """LM Studio's and llama.cpp's words for "no limit" and "any seed", integers written as floats, empty stop strings."""
    body = {
        **(USER if "chat" in path else {"prompt": "a"}), "max_tokens": -1, "seed": -1, "top_k": 40.0, "n": 2.0, "min_tokens": 1.0,
        "repeat_last_n": 64.0, "stop": ["", "."], "stop_token_ids": [66.0],
    }  # fmt: skip
    async with serving(FakeEngine(saying("ab. c"), context_tokens=200)) as at:
        status, first = await at.post(path, body)
        await at.post(path, body | {"stop": ""})
        await at.post(path, body | {"max_tokens": 7.0, "seed": 5.0})
    assert status == 200
    assert [choice["finish_reason"] for choice in first["choices"]] == ["stop"] * 2
    texts = [choice["message"]["content"] if "chat" in path else choice["text"] for choice in first["choices"]]
    assert texts == ["ab"] * 2
    requests = [sequence.request for sequence in at.engine.sequences]
    assert len({request.params.seed for request in requests[::2]}) == 3
    assert (requests[4].params.seed, requests[4].max_tokens) == (5, 7)
    assert [request.max_tokens for request in requests[:4]] == [200 - len(requests[0].prompt) + 1] * 4
    assert (requests[0].params.top_k, requests[0].params.repeat_last_n, requests[0].min_tokens) == (40, 64, 1)
    assert 66 in requests[0].stop_ids


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {**USER, "logprobs": True, "top_logprobs": 1}),
        ("/v1/completions", {"prompt": "a", "logprobs": 1}),
        ("/completion", {"prompt": "a", "n_probs": 1}),
    ],
)
async def test_logprobs_are_written_as_they_come(path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token's names are looked up before the next one comes, not all of them at the end of a long answer."""
    named: asyncio.Queue[int] = asyncio.Queue()
    token_bytes = Tokenizer.token_bytes

    def watched(self: Tokenizer, token: int) -> bytes:
        named.put_nowait(token)
        return token_bytes(self, token)

    monkeypatch.setattr(Tokenizer, "token_bytes", watched)
    async with asyncio.timeout(10), serving(FakeEngine()) as at:
        answer = asyncio.create_task(at.post(path, body))
        sequence = await at.engine.submitted.get()
        for token in (65, 66, 67):
            sequence.say(TokenEvent(token, -1.0, ((token, -1.0),)))
            while await named.get() != token:
                pass
        assert not answer.done()
        sequence.end(FinishReason.STOP)
        status, _ = await answer
    assert status == 200
