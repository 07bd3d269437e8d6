"""The table of request fields, walked: what is done has an effect, what is refused is named, what is harmless is ignored."""

import json
from dataclasses import fields
from typing import Any

import pytest

from svc.errors import RequestError
from svc.http.decoding import ROUTES, decode
from svc.http.known_fields import KNOWN_FIELDS, PATHS, Route, done_on, refused_on
from svc.http.text.chat_template import ChatTemplate
from svc.slots.request import Request
from tests.fakes.fake_engine import FakeEngine, saying
from tests.fakes.fake_text import REASONING_CHATML
from tests.http.fields_page import PAGE, with_table
from tests.http.harness import MODEL, TOKENIZER, Harness, serving

CHAT, TEXT, NATIVE, TEMPLATE, RESPONSES, ANTHROPIC = PATHS
KINDS = {route: kind for kind, route in ROUTES.items()}
USER = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "well"}
TOOL = {"type": "function", "function": {"name": "f"}}
LEAST: dict[Route, dict[str, Any]] = {
    CHAT: {"messages": [USER]},
    TEXT: {"prompt": "hi"},
    NATIVE: {"prompt": "hi"},
    TEMPLATE: {"messages": [USER]},
    RESPONSES: {"input": "hi"},
    ANTHROPIC: {"messages": [USER]},
}
# None of them asks for nothing in every field; some are wrong in every field.
CANDIDATES: tuple[Any, ...] = (
    False, True, 0, 1, 2, -1, 0.5, "", "x", "auto", "none", "medium", [], [[]], ["text"], ["x"], {}, {"type": "text"}, {"no": [1]},
)  # fmt: skip
ROUTE = pytest.mark.parametrize("route", PATHS, ids=PATHS.values())


def _why_refused(route: Route, **fields: Any) -> RequestError | None:
    try:
        decode(KINDS[route], json.dumps(LEAST[route] | fields).encode())
    except RequestError as error:
        return error
    return None


# -- the table itself


@ROUTE
def test_the_structs_have_what_is_done(route: Route) -> None:
    """Every field of a route's Struct has its row, and every row that is done there has its field."""
    assert set(KINDS[route].__struct_encode_fields__) == done_on(route)


def test_every_field_is_handled_once() -> None:
    """No route has two rows for one field, and none is both done and refused there."""
    for route in PATHS:
        names = [known.name for known in KNOWN_FIELDS if route in known.done or route in known.refused]
        assert len(names) == len(set(names))
        assert done_on(route).isdisjoint(refused_on(route))
    harmless = [known.name for known in KNOWN_FIELDS if not known.done and not known.refused]
    others = {known.name for known in KNOWN_FIELDS if known.done or known.refused}
    assert len(harmless) == len(set(harmless))
    assert others.isdisjoint(harmless)


def test_the_page_has_the_table() -> None:
    """docs/operations.md: `python -m tests.http.fields_page` writes it anew."""
    assert PAGE.read_text() == with_table(PAGE.read_text())


# -- refused


@ROUTE
def test_refused_fields_are_named(route: Route) -> None:
    """Any value but a neutral one is an error with the field in `param` and the sentence; neutral ones and null are accepted."""
    for name, unless in refused_on(route).items():
        assert _why_refused(route, **{name: None}) is None, name
        for value in CANDIDATES:
            error = _why_refused(route, **{name: value})
            assert (error is None) == unless.holds(value), (name, value, error)
            if error is not None:
                assert (error.param, error.code) == (name, "unsupported_parameter")
                assert name in str(error)
                assert len(str(error)) < 200


@pytest.mark.parametrize(
    ("route", "name", "value"),
    [
        (CHAT, "best_of", 1), (CHAT, "echo", False), (CHAT, "suffix", ""), (NATIVE, "suffix", ""),
        (TEXT, "reasoning_effort", None),
        (CHAT, "tfs_z", 1), (TEXT, "top_a", 0), (NATIVE, "smoothing_factor", 0.0), (TEXT, "skew", 0),
        (CHAT, "skip_special_tokens", True), (CHAT, "banned_strings", []), (CHAT, "length_penalty", 1.0),
        (CHAT, "use_beam_search", False), (CHAT, "truncate_prompt_tokens", None), (CHAT, "include_stop_str_in_output", False),
        (NATIVE, "lora", []), (CHAT, "prompt_logprobs", None), (CHAT, "functions", []), (CHAT, "modalities", ["text"]),
        (TEXT, "tools", []), (TEXT, "thinking_budget", -1),
    ],
)  # fmt: skip
def test_values_that_ask_for_nothing(route: Route, name: str, value: Any) -> None:
    """What clients send for "as usual"."""
    assert name in refused_on(route)
    assert _why_refused(route, **{name: value}) is None


@pytest.mark.parametrize("value", ["[" * 300 + "]" * 300, '"' + "x" * 10_000 + '"', "1e999", "1" * 500])
def test_hostile_values_are_refused_unbuilt(value: str) -> None:
    """A value that is long, deep or out of range is refused like any other."""
    with pytest.raises(RequestError) as error:
        decode(KINDS[CHAT], b'{"messages": [], "audio": ' + value.encode() + b"}")
    assert (error.value.param, len(str(error.value)) < 200) == ("audio", True)


@ROUTE
async def test_a_refusal_over_http(route: Route) -> None:
    """The answer is an error object, and nothing is generated."""
    name = next(iter(refused_on(route)))
    async with serving(FakeEngine(saying("x"))) as at:
        status, answer = await at.post(PATHS[route], LEAST[route] | {name: {"a": 1}})
    assert status == 400
    if route is ANTHROPIC:
        assert name in answer["error"]["message"]
    else:
        assert (answer["error"]["param"], answer["error"]["code"]) == (name, "unsupported_parameter")
    assert at.engine.sequences == []


# -- done and harmless: what reaches the engine, and what is answered

VOLATILE = ("id", "created", "created_at", "completed_at", "request_id", "arrival_s", "on_token")
# Field -> a value with an effect; a pair is what must be sent beside it, and that with the field.
EFFECTS: dict[str, Any] = {
    "model": "other", "messages": [USER, ANSWER, USER], "prompt": "ho", "stream": True, "max_tokens": 2, "n_predict": 2,
    "num_predict": 2, "max_new_tokens": 2, "max_completion_tokens": 2, "min_tokens": 1, "temperature": 0.25, "top_p": 0.5,
    "top_k": 7, "min_p": 0.25, "seed": 8, "stop": "b", "stop_token_ids": [98], "n": 2, "ignore_eos": True, "logit_bias": {"5": 1},
    "presence_penalty": 1, "frequency_penalty": 1, "repetition_penalty": 1.5, "repeat_penalty": 1.5, "repeat_last_n": 9,
    "cache_prompt": False, "return_token_ids": True, "cache_report": True, "cache_salt": "x", "id_slot": 1, "tools": [TOOL],
    "speculative.n_max": 3, "speculative.n_min": 2, "speculative.p_min": 0.5, "speculative.type": "none",
    "chat_template_kwargs": {"mood": "x"}, "add_generation_prompt": False, "enable_thinking": False, "reasoning_effort": "low",
    "thinking": {"type": "disabled"}, "reasoning": {"enabled": False}, "n_probs": 3, "return_tokens": True,
    "response_fields": ["content"], "t_max_predict_ms": 1e-6, "echo": True, "suffix": "x", "verbose": True,
    "samplers": ({"temperature": 0.5}, ["top_k"]),
    "typical_p": 0.5, "typ_p": 0.5, "typical": 0.5, "top_n_sigma": 1, "nsigma": 1, "xtc_probability": 0.5,
    "xtc_threshold": ({"xtc_probability": 0.5}, 0.2), "min_keep": 3,
    "dry_multiplier": 0.8, "dry_base": ({"dry_multiplier": 0.8}, 2), "dry_allowed_length": ({"dry_multiplier": 0.8}, 3),
    "dry_penalty_last_n": ({"dry_multiplier": 0.8}, 9), "dry_range": ({"dry_multiplier": 0.8}, 9),
    "dry_sequence_breakers": ({"dry_multiplier": 0.8}, ["a"]),
    "mirostat": 2, "mirostat_mode": 1, "mirostat_tau": ({"mirostat": 2}, 3), "mirostat_eta": ({"mirostat": 2}, 0.2),
    "adaptive_target": 0.5, "adaptive_decay": ({"adaptive_target": 0.5}, 0.5),
    "dynamic_temperature": ({"dynatemp_range": 0.5}, False), "dynatemp_low": ({"dynatemp_high": 2}, 0.5), "dynatemp_high": 2,
    "dynatemp_min": ({"dynatemp_max": 2}, 0.5), "dynatemp_max": 2,
    "dynatemp_range": 0.5, "dynatemp_exponent": ({"dynatemp_range": 0.5}, 2), "bad_words": ["ab"],
    "post_sampling_probs": ({"n_probs": 3}, True),
    "tool_choice": ({"tools": [TOOL]}, "none"),
    "continue_final_message": ({"messages": [USER, ANSWER]}, True),
    "return_progress": ({"stream": True}, True), "timings_per_token": ({"stream": True}, True),
    "stream_options": ({"stream": True}, {"include_usage": True}),
    "top_logprobs": ({"logprobs": True}, 3),
    "response_format": {"type": "json_object"}, "json_schema": {"type": "object"}, "guided_json": {"type": "object"},
    "structured_outputs": {"json_object": True}, "guided_choice": ["yes", "no"], "format": "json", "grammar": 'root ::= "x"',
    "grammar_string": 'root ::= "x"', "guided_grammar": 'root ::= "x"', "ebnf": 'root ::= "x"', "regex": "x+", "guided_regex": "x+",
    "reasoning_format": "none", "include_reasoning": False, "separate_reasoning": False, "thinking_budget": 1,
    "thinking_budget_tokens": 1, "thinking_token_budget": 1, "reasoning_budget": 1, "reasoning_budget_tokens": 1,
    "input": "ho", "instructions": "x", "include": ["message.output_text.logprobs"], "text": {"format": {"type": "json_object"}},
    "max_output_tokens": 2, "system": "x", "stop_sequences": ["b"], "output_config": {"effort": "low"},
    "output_format": {"type": "json_schema", "schema": {}},
    "preserve_thinking": True, "parallel_tool_calls": ({"tools": [TOOL]}, False),
}  # fmt: skip
OTHER_EFFECTS: dict[Route, dict[str, Any]] = {
    ANTHROPIC: {"tool_choice": ({"tools": [{"name": "f"}]}, {"type": "none"}), "tools": [{"name": "f"}]},
    RESPONSES: {"tools": [{"type": "function", "name": "f"}], "top_logprobs": 3},
}
# A number that `n` must equal; usage and the whole form always come; the indentation of lines, and comments for a silence: there
# are neither here.
ONLY_CHECKED = {
    (TEXT, "best_of"),
    (NATIVE, "stream_options"),
    (NATIVE, "verbose"),
    (NATIVE, "n_indent"),
    *((route, "sse_ping_interval") for route in PATHS),
}


async def _outcome(at: Harness, route: Route, body: dict[str, Any]) -> Any:
    """Everything that the engine and the client get of a request."""
    before = len(at.engine.sequences)
    async with at.client.post(PATHS[route], json=LEAST[route] | body) as response:
        raw = await response.read()
    names = [field.name for field in fields(Request) if field.name not in VOLATILE]
    asked = [[getattr(sequence.request, name) for name in names] for sequence in at.engine.sequences[before:]]
    if response.content_type != "application/json":
        return response.status, [line for line in raw.decode().splitlines() if "usage" in line and "prompt_tokens" in line], asked
    answer = json.loads(raw)
    return response.status, _lasting(answer), asked


def _lasting(value: Any) -> Any:
    """A JSON value without what is new in every answer."""
    if isinstance(value, dict):
        return {name: _lasting(member) for name, member in value.items() if name not in VOLATILE}
    return [_lasting(member) for member in value] if isinstance(value, list) else value


@ROUTE
async def test_done_fields_have_an_effect(route: Route) -> None:
    """Each, set to a suitable value, changes the request to the engine or the answer, and the error is not why."""
    template = ChatTemplate(REASONING_CHATML, TOKENIZER)
    async with serving(FakeEngine(saying("a\nbc"), context_tokens=128), strict_name=True, template=template) as at:
        for name in sorted(done_on(route)):
            if (route, name) in ONLY_CHECKED:
                continue
            special = {"logprobs": True if route is CHAT else 2}
            special |= OTHER_EFFECTS.get(route, {})
            effect = special.get(name, EFFECTS.get(name))
            assert effect is not None, f"no example for {name}"
            beside, value = effect if isinstance(effect, tuple) else ({}, effect)
            sent = {"seed": 7} | beside if route is not TEMPLATE else beside
            without, changed = await _outcome(at, route, sent), await _outcome(at, route, sent | {name: value})
            assert changed != without, name
            assert changed[0] == (404 if name == "model" else 200), (name, changed)


@ROUTE
async def test_done_fields_are_checked(route: Route) -> None:
    """Some value is wrong in each, and the error names the field."""
    async with serving(FakeEngine(saying("x"))) as at:
        for name in sorted(done_on(route)):
            answers = [await at.post(PATHS[route], LEAST[route] | {name: value}) for value in ({"no": [1]}, [[{}]], 5, "x")]
            errors = [answer["error"] for status, answer in answers if status == 400]
            params = [error.get("param") or error["message"] for error in errors]
            assert any(param.startswith(name) for param in params), (name, params)


@ROUTE
async def test_harmless_fields_are_ignored(route: Route) -> None:
    """Whatever their values are, the request and the answer are those without them."""
    names = {known.name for known in KNOWN_FIELDS} - done_on(route) - set(refused_on(route))
    sent = {"seed": 7} if route is not TEMPLATE else {}
    async with serving(FakeEngine(saying("abc"))) as at:
        expected = await _outcome(at, route, sent)
        for value in ({"no": [1]}, "x", 5):
            assert await _outcome(at, route, sent | dict.fromkeys(names - {"seed"}, value)) == expected
    assert expected[0] == 200
    assert expected[1].get("model", MODEL) == MODEL
