"""The operator's defaults of sampling: as if the client had sent them, where it has sent nothing."""

from typing import Any

import pytest

from svc.config import load_config
from svc.http.service import AnswerSettings
from svc.sampling_defaults import PREFIX, SamplingDefaults
from svc.slots.request import Request
from tests.fakes.fake_engine import FakeEngine, saying
from tests.http.harness import serving

ALL: dict[str, Any] = {
    "temperature": 0.25, "top_k": 7, "top_p": 0.5, "min_p": 0.125, "typical_p": 0.75, "repeat_penalty": 1.5, "repeat_last_n": 9,
    "presence_penalty": 0.5, "frequency_penalty": -0.5, "seed": 11, "max_tokens": 3,
}  # fmt: skip
USER = [{"role": "user", "content": "hi"}]
LEAST: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "hi"},
    "/completion": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": USER, "max_tokens": 3},
}


async def asked(path: str, settings: AnswerSettings, **fields: Any) -> Request:
    async with serving(FakeEngine(saying("x")), answers=settings) as at:
        status, answer = await at.post(path, LEAST[path] | fields)
        assert status == 200, answer
    return at.engine.sequences[0].request


def test_the_examples_are_all_there_are() -> None:
    assert {PREFIX + name for name in ALL} == set(SamplingDefaults.__struct_fields__)


@pytest.mark.parametrize("path", LEAST)
async def test_as_if_it_had_been_sent(path: str) -> None:
    """Each of them, on each route: the request that reaches the engine is that of a client who sends the value."""
    for name, value in ALL.items():
        sent = {"seed": 5} | {name: value}
        expected = await asked(path, AnswerSettings(), **sent)
        found = await asked(path, AnswerSettings(sampling={name: value}), **({"seed": 5} if name != "seed" else {}))
        assert (found.params, found.max_tokens) == (expected.params, expected.max_tokens), name
        if (path, name) != ("/v1/messages", "max_tokens"):  # which every client of that sends
            other = await asked(path, AnswerSettings(), seed=5)
            assert (found.params, found.max_tokens) != (other.params, other.max_tokens), name


@pytest.mark.parametrize(
    ("name", "value", "sent"),
    [
        ("temperature", 0.25, {"temperature": 0}),
        ("max_tokens", 3, {"max_completion_tokens": 5}),
        ("max_tokens", 3, {"num_predict": 5}),
        ("repeat_penalty", 1.5, {"repetition_penalty": 1.0}),
        ("typical_p", 0.5, {"typ_p": 1}),
    ],
)
async def test_a_client_has_the_last_word(name: str, value: float, sent: dict[str, Any]) -> None:
    """Under any name of the field, also to turn it off."""
    path = "/v1/chat/completions"
    found, expected = [await asked(path, AnswerSettings(sampling=unsaid), seed=5, **sent) for unsaid in ({name: value}, {})]
    assert (found.params, found.max_tokens) == (expected.params, expected.max_tokens)


async def test_null_and_props() -> None:
    """null says nothing. /props tells what a request to /completion gets, the seed too."""
    settings = AnswerSettings(sampling={"temperature": 0.25, "seed": 11})
    assert (await asked("/completion", settings, temperature=None)).params.temperature == 0.25
    async with serving(FakeEngine(saying("x")), answers=settings) as at, at.client.get("/props") as response:
        params = (await response.json())["default_generation_settings"]["params"]
    assert (params["temperature"], params["seed"], params["top_k"]) == (0.25, 11, 40)


def test_from_file_environment_and_flags() -> None:
    """A value that is not set is not there; the names are those of the request fields."""
    assert load_config(environ={}).config.sampling_defaults == {}
    environ = {f"HEADRACE_DEFAULT_{name.upper()}": str(value) for name, value in ALL.items()}
    assert load_config(environ=environ).config.sampling_defaults == ALL
    flags = {"default_temperature": "0", "default_max_tokens": "-1"}
    assert load_config(environ={}, flags=flags).config.sampling_defaults == {"temperature": 0.0, "max_tokens": -1}
