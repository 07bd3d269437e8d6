"""POST /completion in llama-server's form, against a scripted engine."""

import math
import secrets
from typing import Any

import pytest

from svc.slots.events import TokenEvent
from svc.slots.request import Request
from tests.fakes.fake_engine import FakeEngine, saying
from tests.fakes.fake_text import END_OF_TEXT, IM_END, ids
from tests.http.harness import MODEL, Harness, serving

TIMINGS = {
    "cache_n": 1, "prompt_n": 2, "prompt_ms": 500.0, "prompt_per_token_ms": 250.0, "prompt_per_second": 4.0,
    "predicted_n": 5, "predicted_ms": 1000.0, "predicted_per_token_ms": 200.0, "predicted_per_second": 5.0,
}  # fmt: skip


async def ask(at: Harness, **body: Any) -> Any:
    status, answer = await at.post("/completion", body)
    assert status == 200, answer
    return answer


async def test_whole_answer_is_llama_servers() -> None:
    """Every field of its documentation, with what the fake engine says of times and counts (three prompt tokens, one reused)."""
    async with serving(FakeEngine(saying("Hello"), cached=lambda request: 1)) as at:
        answer = await ask(at, prompt="Say", seed=7)
    settings = answer.pop("generation_settings")
    assert answer == {
        "index": 0, "content": "Hello", "tokens": [], "id_slot": -1, "stop": True, "model": MODEL, "prompt": "Say",
        "tokens_predicted": 5, "tokens_evaluated": 3, "tokens_cached": 1, "has_new_line": False, "truncated": False,
        "stop_type": "eos", "stopping_word": "", "timings": TIMINGS,
    }  # fmt: skip
    assert settings == {
        "n_predict": -1, "max_tokens": -1, "min_tokens": 0, "seed": 7, "temperature": 0.8, "top_k": 40, "top_p": 0.95,
        "min_p": 0.05, "repeat_last_n": 64, "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
        "logit_bias": [], "stop": [], "ignore_eos": False, "stream": False, "n_probs": 0,
        "samplers": ["penalties", "dry", "top_n_sigma", "temperature", "top_k", "typ_p", "top_p", "min_p", "xtc", "adaptive_p"],
        "typical_p": 1.0, "top_n_sigma": 0.0, "xtc_probability": 0.0, "xtc_threshold": 0.1, "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0, "dry_multiplier": 0.0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1,
        "dry_sequence_breakers": ["\n", ":", '"', "*"], "mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1,
        "adaptive_target": -1.0, "adaptive_decay": 0.9, "min_keep": 0, "post_sampling_probs": False, "n_ctx": 4096, "model": MODEL,
    }  # fmt: skip


async def test_stream() -> None:
    """Text with its tokens, then one event with all the rest and no text; no [DONE], which llama-server has only for OpenAI."""
    async with serving(FakeEngine(saying("Hé!"), cached=lambda request: 1)) as at:
        *pieces, last = await at.events("/completion", {"prompt": "Say"})
        whole = await ask(at, prompt="Say", return_tokens=True)
    assert [(piece["content"], piece["tokens"]) for piece in pieces] == [("H", [72]), ("é", [0xC3, 0xA9]), ("!", [33])]
    assert [piece["tokens_predicted"] for piece in pieces] == [1, 3, 4]
    assert all((piece["stop"], piece["index"], piece["tokens_evaluated"]) == (False, 0, 3) for piece in pieces)
    assert whole["tokens"] == [72, 0xC3, 0xA9, 33]
    changed = {"content": "", "tokens": [], "generation_settings": last["generation_settings"]}
    assert last == whole | changed


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab<|im_end|>", [[97, 98, IM_END]]),
        ([1, 2, IM_END], [[1, 2, IM_END]]),
        ([1, "bc", IM_END], [[1, 98, 99, IM_END]]),
        (["a", 5], [[97, 5]]),
        (["a", "bc"], [[97], [98, 99]]),
        (["a", [1, "b"], [2]], [[97], [1, 98], [2]]),
        ({"prompt_string": "a"}, [[97]]),
    ],
)
async def test_forms_of_a_prompt(prompt: Any, expected: list[list[int]]) -> None:
    """A list with a token id in it is one prompt, any other a list of prompts; several prompts make a list of answers."""
    async with serving(FakeEngine(saying("x"))) as at:
        answer = await ask(at, prompt=prompt)
    assert [list(sequence.request.prompt) for sequence in at.engine.sequences] == expected
    answers = answer if len(expected) > 1 else [answer]
    assert [(one["index"], one["content"]) for one in answers] == [(index, "x") for index in range(len(expected))]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [1, None]}, "prompt[1]"),
        ({"prompt": [1, True]}, "prompt[1]"),
        ({"prompt": ["a", [1, 2.5]]}, "prompt[1][1]"),
        ({"prompt": ["a", None]}, "prompt[1]"),
        ({"prompt": [999]}, "prompt[0]"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": "a", "n_predict": 1.5}, "n_predict"),
        ({"prompt": "a", "n_probs": 21}, "n_probs"),
        ({"prompt": "a", "mirostat": 3}, "mirostat"),
        ({"prompt": "a", "typical_p": 1.5}, "typical_p"),
        ({"prompt": "a", "tfs_z": 0.5}, "tfs_z"),
        ({"prompt": "a", "bad_words": ["x" * 101]}, "bad_words[0]"),
        ({"prompt": "a", "samplers": 5}, "samplers"),
        ({"prompt": "a", "n_indent": -1}, "n_indent"),
        ({"prompt": "a", "grammar": "root ::= x"}, "grammar"),
        ({"prompt": "a", "response_fields": "content"}, "response_fields"),
    ],
)
async def test_bad_field_is_named(body: Any, param: str) -> None:
    async with serving(FakeEngine(saying("x"))) as at:
        status, answer = await at.post("/completion", body)
    assert (status, answer["error"]["param"]) == (400, param)
    assert at.engine.sequences == []


async def test_options_reach_the_engine() -> None:
    """With llama-server's names; its penalties count the prompt as well."""
    body = {
        "prompt": "a", "n_predict": 9, "temperature": 0.5, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "seed": 3,
        "repeat_penalty": 1.1, "repeat_last_n": 32, "presence_penalty": 0.5, "frequency_penalty": -0.25,
        "logit_bias": [[5, 1.5], ["ab", -2], [6, False], [5, 0.5]], "cache_prompt": False, "n_probs": 4, "min_tokens": 2,
    }  # fmt: skip
    async with serving(FakeEngine(saying("x"))) as at:
        await ask(at, **body)
    request = at.engine.sequences[0].request
    params = request.params
    assert (params.temperature, params.top_k, params.top_p, params.min_p, params.seed) == (0.5, 5, 0.9, 0.1, 3)
    assert (params.repetition_penalty, params.repeat_last_n, params.penalize_prompt) == (1.1, 32, True)
    assert (params.presence_penalty, params.frequency_penalty, params.num_logprobs) == (0.5, -0.25, 4)
    assert params.logit_bias == ((5, 2.0), (97, -2.0), (98, -2.0))
    assert (request.banned, request.use_cache, request.max_tokens, request.min_tokens) == ((6,), False, 9, 2)
    assert request.stop_ids == {IM_END, END_OF_TEXT}


async def test_a_drawn_seed_can_be_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed that an answer names is the one that was used, and is a number that JavaScript reads without rounding."""
    monkeypatch.setattr(secrets, "randbits", lambda bits: 2**bits - 1)
    async with serving(FakeEngine(saying("x"))) as at:
        answer = await ask(at, prompt="a")
    seed = answer["generation_settings"]["seed"]
    assert seed == at.engine.sequences[0].request.params.seed
    assert int(float(seed)) == seed <= 2**53


async def test_what_silly_tavern_sends() -> None:
    """Every field of a request with its default settings: its words for "off" and "any", and one thing under several names."""
    body = {
        "prompt": "a", "n_predict": -1, "max_tokens": 7, "max_new_tokens": 7, "num_predict": 7, "seed": -1, "temperature": -1,
        "top_k": -1, "typical_p": 1, "typical": 1, "mirostat": 0, "mirostat_mode": 0, "mirostat_tau": 5, "mirostat_eta": 0.1,
        "tfs_z": 1, "tfs": 1, "top_a": 0, "skew": 0, "dynatemp_range": 0, "dry_multiplier": 0, "dry_base": 1.75,
        "dry_allowed_length": 2, "dry_penalty_last_n": 0, "dry_sequence_breakers": ["\n"],
        "xtc_probability": 0, "xtc_threshold": 0.1, "top_n_sigma": 0, "nsigma": 0, "min_keep": 0, "adaptive_target": -0.01,
        "adaptive_decay": 0.9, "smoothing_factor": 0, "smoothing_curve": 1,
        "grammar": "", "stop": ["", "x"], "stopping_strings": ["", "x"], "banned_strings": [],
        "custom_token_bans": "", "logit_bias": [], "guidance_scale": 1, "negative_prompt": "", "rep_pen": 1.1, "rep_pen_slope": 1,
        "rep_pen_range": 0, "repetition_penalty_range": 0, "repeat_penalty": 1.1, "repetition_penalty": 1.1, "repeat_last_n": 0,
        "min_tokens": 0, "truncation_length": 2048, "num_ctx": 2048, "ban_eos_token": False, "ignore_eos": False,
        "skip_special_tokens": True, "include_reasoning": True, "add_bos_token": True, "max_tokens_second": 0,
        "api_type": "llamacpp", "api_server": "http://localhost", "cache_prompt": True, "n": 1,
        "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "tfs_z", "typical_p", "xtc", "top_p", "min_p", "temp"],
        "n_keep": 0, "id_slot": 3, "t_max_predict_ms": -1, "n_indent": 0, "lora": [],
    }  # fmt: skip
    async with serving(FakeEngine(saying("ax"), context_tokens=100)) as at:
        first = await ask(at, **body)
        second = await ask(at, **body)
    request = at.engine.sequences[0].request
    assert (request.params.temperature, request.params.top_k, request.max_tokens) == (0, 0, 100)
    assert first["generation_settings"]["seed"] != second["generation_settings"]["seed"]
    assert (first["content"], first["stop_type"], first["stopping_word"]) == ("a", "word", "x")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, ("one two END", "eos", "", False)),
        ({"stop": ["two", "END"]}, ("one ", "word", "two", False)),
        ({"stop": ["END", "e t"]}, ("on", "word", "e t", False)),
        ({"n_predict": 4}, ("one ", "limit", "", False)),
        ({"n_predict": 0}, ("", "limit", "", False)),
        ({"stop_token_ids": [ord("t")]}, ("one ", "eos", "", False)),
        ({"prompt": "12345", "ignore_eos": True}, ("one two", "limit", "", True)),
    ],
)
async def test_stop_types(body: dict[str, Any], expected: tuple[Any, ...]) -> None:
    """ "word" for a stop string, "eos" for a stop token, "limit" for a length; truncated only where the context was the limit."""
    async with serving(FakeEngine(saying("one two END"), context_tokens=100 if "prompt" not in body else 11)) as at:
        answer = await ask(at, **{"prompt": "a", **body})
    assert tuple(answer[key] for key in ("content", "stop_type", "stopping_word", "truncated")) == expected


async def test_probabilities() -> None:
    """With the tokens, whole and streamed; -inf becomes a number that JSON has."""

    def script(request: Request) -> list[Any]:
        return [TokenEvent(0xC3, -0.5, ((0xC3, -0.5), (65, float("-inf")))), TokenEvent(0xA9, -0.25, ((0xA9, -0.25),)), IM_END]

    async with serving(FakeEngine(script)) as at:
        whole = await ask(at, prompt="a", n_probs=2)
        *pieces, last = await at.events("/completion", {"prompt": "a", "n_probs": 2})
    assert whole["completion_probabilities"] == [
        {
            "id": 0xC3, "token": "\ufffd", "bytes": [0xC3], "logprob": -0.5,
            "top_logprobs": [
                {"id": 0xC3, "token": "\ufffd", "bytes": [0xC3], "logprob": -0.5},
                {"id": 65, "token": "A", "bytes": [65], "logprob": -9999.0},
            ],
        },
        {
            "id": 0xA9, "token": "\ufffd", "bytes": [0xA9], "logprob": -0.25,
            "top_logprobs": [{"id": 0xA9, "token": "\ufffd", "bytes": [0xA9], "logprob": -0.25}],
        },
    ]  # fmt: skip
    assert [entry for piece in pieces for entry in piece["completion_probabilities"]] == whole["completion_probabilities"]
    assert "completion_probabilities" not in last


async def test_probabilities_after_sampling() -> None:
    """From 0 to 1, under llama-server's other names, and the engine is told to give them."""

    def script(request: Request) -> list[Any]:
        return [TokenEvent(65, math.log(0.25), ((66, math.log(0.75)), (65, math.log(0.25)), (67, -math.inf))), IM_END]

    async with serving(FakeEngine(script)) as at:
        whole = await ask(at, prompt="a", n_probs=3, post_sampling_probs=True)
        without = await ask(at, prompt="a", post_sampling_probs=True)
    (entry,) = whole["completion_probabilities"]
    assert (entry["id"], entry["prob"], "logprob" in entry) == (65, pytest.approx(0.25), False)
    assert [(top["token"], top["prob"]) for top in entry["top_probs"]] == [
        ("B", pytest.approx(0.75)), ("A", pytest.approx(0.25)), ("C", 0.0)
    ]  # fmt: skip
    assert whole["generation_settings"]["post_sampling_probs"] is True
    asked = [sequence.request.params.steps for sequence in at.engine.sequences]
    assert asked[0] is not None
    assert asked[0].post_sampling_probs
    assert asked[1] is None
    assert "completion_probabilities" not in without


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_n_probs_on_every_route(path: str) -> None:
    """They get their own log probabilities for it, as if they had asked in their own words; the larger number counts."""
    own: dict[str, Any] = {"logprobs": True, "top_logprobs": 2} if "chat" in path else {"logprobs": 2}
    least: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]} if "chat" in path else {"prompt": "a"}

    async with serving(FakeEngine(lambda request: [TokenEvent(65, -0.5, ((65, -0.5), (66, -2.0)))])) as at:
        _, expected = await at.post(path, least | own)
        _, found = await at.post(path, least | {"n_probs": 2})
        for both in ({"n_probs": 5}, {"n_probs": 1}, {"n_probs": 0}):
            await at.post(path, least | own | both)
        await at.post(path, least | {"n_probs": 0})
    assert expected["choices"][0]["logprobs"] is not None
    assert found["choices"] == expected["choices"]
    assert [sequence.request.params.num_logprobs for sequence in at.engine.sequences] == [2, 2, 5, 2, 2, None]


async def test_sampling_steps_reach_the_engine() -> None:
    """In the order asked for; words that must not come, as tokens; and the settings tell."""
    sent = {
        "samplers": ["xtc", "typ_p", "top_k", "temp"], "typ_p": 0.5, "top_k": 7, "mirostat": 0, "min_keep": 2,
        "bad_words": ["ab", "c"],
    }  # fmt: skip
    async with serving(FakeEngine(saying("x"))) as at:
        answer = await ask(at, prompt="a", **sent)
    request = at.engine.sequences[0].request
    steps = request.params.steps
    assert steps is not None
    assert [step.value for step in steps.order] == ["xtc", "typ_p", "top_k", "temperature"]
    assert (steps.typical_p, request.params.top_k, request.params.top_p, steps.min_keep) == (0.5, 7, 1.0, 2)
    assert set(request.params.bad_words) == {(97, 98), (32, 97, 98), (32, 99)}
    assert request.banned == (99,)
    settings = answer["generation_settings"]
    assert (settings["samplers"], settings["typical_p"], settings["min_keep"]) == (["xtc", "typ_p", "top_k", "temperature"], 0.5, 2)


@pytest.mark.parametrize(("words", "param"), [([chr(code) for code in range(32, 127)], None), (["a"] * 257, "bad_words")])
async def test_bad_words_have_bounds(words: list[str], param: str | None) -> None:
    async with serving(FakeEngine(saying("x"))) as at:
        status, answer = await at.post("/completion", {"prompt": "a", "bad_words": words})
    assert status == (400 if param else 200)
    assert param is None or answer["error"]["param"] == param


async def test_response_fields() -> None:
    """Only what was asked for; a field in a field keeps its path as its name; unknown ones are left out."""
    fields = ["content", "timings/prompt_n", "generation_settings/n_predict", "no/such", "content/x"]
    async with serving(FakeEngine(saying("hi"))) as at:
        whole = await ask(at, prompt="abc", n_predict=5, response_fields=fields)
        *pieces, last = await at.events("/completion", {"prompt": "abc", "n_predict": 5, "response_fields": fields})
    assert whole == {"content": "hi", "timings/prompt_n": 3, "generation_settings/n_predict": 5}
    assert "".join(piece["content"] for piece in pieces) == "hi"
    assert last == whole | {"content": ""}


async def test_completions_without_v1() -> None:
    """llama-server's clients ask there for its own form; OpenAI's is under /v1."""
    async with serving(FakeEngine(saying("hi"))) as at:
        _, native = await at.post("/completions", {"prompt": "a", "n_predict": 5})
        _, openai = await at.post("/v1/completions", {"prompt": "a"})
    assert (native["content"], native["stop"]) == ("hi", True)
    assert (openai["object"], openai["choices"][0]["text"]) == ("text_completion", "hi")


async def test_biases_are_told_as_objects() -> None:
    """A token that is never sampled, by the request or by `ignore_eos`, has no number: JSON has no infinity."""
    async with serving(FakeEngine(saying("x"))) as at:
        biased = await ask(at, prompt="a", n_predict=1, logit_bias=[[5, 1.5], [6, False]])
        endless = await ask(at, prompt="a", n_predict=1, ignore_eos=True)
    assert biased["generation_settings"]["logit_bias"] == [{"token": 5, "bias": 1.5}, {"token": 6, "bias": None}]
    told = endless["generation_settings"]["logit_bias"]
    assert {entry["token"] for entry in told} == {IM_END, END_OF_TEXT}
    assert {entry["bias"] for entry in told} == {None}


async def test_time_limit_waits_for_a_line() -> None:
    """Long over, it ends the answer at the first complete line, as a limit; without one it goes on."""
    async with serving(FakeEngine(saying("ab\ncd"))) as at:
        answer = await ask(at, prompt="a", t_max_predict_ms=1e-6)
        other = await ask(at, prompt="a", t_max_predict_ms=1e9)
    assert (answer["content"], answer["stop_type"], answer["has_new_line"]) == ("ab\n", "limit", True)
    assert (other["content"], other["stop_type"]) == ("ab\ncd", "eos")


async def test_choices_and_cache_report() -> None:
    """n answers to one prompt are told apart by index; a report comes with each that was asked for."""

    def script(request: Request) -> list[int]:
        return [ord("0") + request.choice, IM_END]

    async with serving(FakeEngine(script)) as at:
        answers = await ask(at, prompt="a", n=2, cache_report=True)
        events = await at.events("/v1/completion", {"prompt": "a", "n": 2})
    assert [answer["content"] for answer in answers] == ["0", "1"]
    assert [answer["headrace"]["cache"]["reason"] for answer in answers] == ["no_snapshot"] * 2
    assert {event["index"]: event["content"] for event in events if not event["stop"]} == {0: "0", 1: "1"}
    assert sorted(event["index"] for event in events if event["stop"]) == [0, 1]


async def test_apply_template() -> None:
    """The text whose tokens /v1/chat/completions evaluates; a template's refusal and a missing template are 400s."""
    user = {"messages": [{"role": "user", "content": "hi"}]}
    async with serving(FakeEngine(saying("x"))) as at:
        status, answer = await at.post("/apply-template", user)
        await at.post("/v1/chat/completions", user)
        await ask(at, prompt=answer["prompt"])
        closed = await at.post("/v1/apply-template", {**user, "add_generation_prompt": False})
        refused = await at.post("/apply-template", {"messages": [{"role": "assistant", "content": "refuse"}]})
    assert (status, answer) == (200, {"prompt": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"})
    assert [list(sequence.request.prompt) for sequence in at.engine.sequences[:2]] == 2 * [ids(answer["prompt"])]
    assert closed == (200, {"prompt": "<|im_start|>user\nhi<|im_end|>\n"})
    assert (refused[0], refused[1]["error"]["param"]) == (400, "messages")
    async with serving(FakeEngine(saying("x")), template=False) as at:
        status, answer = await at.post("/apply-template", user)
    assert (status, answer["error"]["code"]) == (400, "no_chat_template")
