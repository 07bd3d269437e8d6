"""Sampling steps as llama-server's clients ask for them: what runs, in what order, and when the usual chain does it."""

import random
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from svc.compute.backend import History
from svc.compute.sampling.chain import sample
from svc.compute.sampling.params import SamplingParams
from svc.compute.sampling.steps import AdaptiveP, Dry, Mirostat, SamplingSteps, Step
from svc.errors import RequestError
from svc.http.fields import bad_words
from svc.http.native_schema import SettingsOut
from svc.http.samplers import (
    MAX_BREAKER_CHARS,
    MAX_BREAKERS,
    MAX_NAMES,
    NO_FIELDS,
    SAMPLERS,
    SamplerFields,
    enabled_samplers,
    sampler_fields,
    set_dynamic_temperature,
    with_steps,
)
from svc.http.schema import NativeIn
from svc.http.text_threads import INLINE_BYTES, TextThreads
from tests.fakes.fake_engine import FakeEngine, saying
from tests.http.harness import TOKENIZER, serving

LLAMA = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")  # llama-server's default


@pytest.mark.parametrize(
    ("value", "enabled"),
    [
        (None, SAMPLERS),
        (list(LLAMA), LLAMA),
        ("edskypmxt", LLAMA),
        (["temperature", "top_k"], ("temperature", "top_k")),
        (["top_k", "temp"], ("top_k", "temperature")),
        (["top-k", "min-p", "top_k"], ("top_k", "min_p")),
        (["typical-p", "nucleus", "top-n-sigma", "adaptive-p"], ("typ_p", "top_p", "top_n_sigma", "adaptive_p")),
        ("ay", ("adaptive_p", "typ_p")),
        (["nothing", "min_p"], ("min_p",)),
        ("?k", ("top_k",)),
        (["top_k", "top_p", "infill"], ("top_k", "top_p")),
        ("ki", ("top_k",)),
        ([], ()),
        ("", ()),
    ],
)
def test_what_runs(value: str | list[str] | None, enabled: tuple[str, ...]) -> None:
    """Those named, in that order; names of samplers that do not exist count for nothing."""
    assert enabled_samplers(value) == enabled


def test_what_is_refused() -> None:
    """Endless lists."""
    with pytest.raises(RequestError) as error:
        enabled_samplers(["top_k"] * (MAX_NAMES + 1))
    assert error.value.param == "samplers"


def fields_of(**sent: Any) -> SamplerFields:
    return sampler_fields(NativeIn(prompt="", **sent), post_sampling_probs=False)


def steps_of(params: SamplingParams = SamplingParams(), **sent: Any) -> SamplingSteps | None:  # noqa: B008
    return with_steps(params, fields_of(**sent), TOKENIZER).steps


USUAL = SamplingParams(
    temperature=0.5, top_k=5, top_p=0.9, min_p=0.1, seed=1, repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.25
)


def test_what_is_not_named_is_off() -> None:
    """A sampler left out leaves no trace, and the others keep their values."""
    assert with_steps(USUAL, NO_FIELDS, TOKENIZER) == USUAL
    assert with_steps(USUAL, fields_of(samplers=[]), TOKENIZER) == SamplingParams(seed=1)
    for name in ("temperature", "top_k", "top_p", "min_p"):
        rest = with_steps(USUAL, fields_of(samplers=[other for other in SAMPLERS if other != name]), TOKENIZER)
        assert rest == replace(USUAL, **{name: getattr(SamplingParams(), name)})
    assert with_steps(USUAL, fields_of(samplers="tkpm"), TOKENIZER).penalizes is False
    everything = {
        "typical_p": 0.5, "top_n_sigma": 1.0, "xtc_probability": 0.5, "dynatemp_range": 0.5, "dry_multiplier": 1.0,
        "adaptive_target": 0.5,
    }  # fmt: skip
    assert with_steps(USUAL, fields_of(samplers="ekpm", **everything), TOKENIZER) == replace(USUAL, temperature=1.0)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"typ_p": 0.5}, {"typical_p": 0.5}),
        ({"nsigma": 2}, {"top_n_sigma": 2.0}),
        ({"xtc_probability": 0.5}, {"xtc_probability": 0.5, "xtc_threshold": 0.1}),
        ({"xtc_probability": 1, "xtc_threshold": 0.3}, {"xtc_probability": 1.0, "xtc_threshold": 0.3}),
        ({"dynatemp_range": 0.5, "dynatemp_exponent": 2}, {"dynatemp_range": 0.5, "dynatemp_exponent": 2.0}),
        ({"mirostat": 2}, {"mirostat": Mirostat(2, 5.0, 0.1)}),
        ({"mirostat_mode": 1.0, "mirostat_tau": 3, "mirostat_eta": 0.2}, {"mirostat": Mirostat(1, 3.0, 0.2)}),
        ({"adaptive_target": 0.4}, {"adaptive": AdaptiveP(0.4, 0.9)}),
        ({"adaptive_target": 0, "adaptive_decay": 1}, {"adaptive": AdaptiveP(0.0, 0.99)}),
        ({"min_keep": 4}, {"min_keep": 4}),
    ],
)
def test_each_field(sent: dict[str, Any], expected: dict[str, Any]) -> None:
    """What reaches the sampling, with llama-server's defaults beside; nothing else differs from none."""
    found = steps_of(**sent)
    assert found is not None
    assert found == replace(SamplingSteps(xtc_threshold=0.1), **expected)


def test_dry() -> None:
    """llama-server's defaults; its breakers are the tokens that have them."""
    found = steps_of(dry_multiplier=0.8)
    assert found is not None
    assert found.dry == Dry(0.8, 1.75, 2, -1, TOKENIZER.breakers.find(("\n", ":", '"', "*")))
    assert steps_of(dry_multiplier=0.8, dry_penalty_last_n=0) is None
    assert steps_of(dry_multiplier=0, dry_base=0) is None
    sent = {"dry_base": 3, "dry_allowed_length": 4.0, "dry_range": 9, "dry_sequence_breakers": '["a", "bc"]'}
    other = steps_of(dry_multiplier=1, **sent)
    assert other is not None
    assert other.dry == Dry(1.0, 3.0, 4, 9, TOKENIZER.breakers.find(("a", "bc")))
    without = steps_of(dry_multiplier=1, dry_sequence_breakers=[])
    assert without is not None
    assert without.dry is not None
    assert len(without.dry.breakers.single) == 0


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"dynatemp_low": 0.5, "dynatemp_high": 2}, (1.25, 0.75)),
        ({"dynatemp_min": 0.5, "dynatemp_max": 1.5, "temperature": 0.7, "dynamic_temperature": True}, (1.0, 0.5)),
        ({"dynatemp_low": 0.5, "dynatemp_high": 2, "dynatemp_range": 0.25, "temperature": 0.7}, (0.7, 0.25)),
        ({"dynatemp_low": 0.5, "dynatemp_high": 2, "dynamic_temperature": False, "temperature": 0.7}, (0.7, None)),
        ({"dynatemp_range": 0.25, "dynamic_temperature": False}, (None, None)),
        ({"dynatemp_low": 0, "dynatemp_high": 0, "temperature": 0.7}, (0.7, None)),
        ({"dynatemp_high": 1}, (0.5, 0.5)),
    ],
)
def test_lowest_and_highest_temperature(sent: dict[str, Any], expected: tuple[float | None, float | None]) -> None:
    """(temperature, range) that they come to."""
    body = NativeIn(prompt="", **sent)
    set_dynamic_temperature(body)
    assert (body.temperature, body.dynatemp_range) == expected


@pytest.mark.parametrize("sent", [{"dynatemp_low": 2, "dynatemp_high": 1}, {"dynatemp_low": 1}, {"dynatemp_low": -1}])
def test_wrong_lowest_temperature(sent: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as error:
        set_dynamic_temperature(NativeIn(prompt="", **sent))
    assert error.value.param == "dynatemp_low"


@pytest.mark.parametrize(
    "sent",
    [
        {"typical_p": 1.0, "typ_p": 1}, {"top_n_sigma": 0}, {"top_n_sigma": -1.0}, {"xtc_probability": 0, "xtc_threshold": 0.5},
        {"dry_multiplier": 0.0, "dry_base": 2}, {"mirostat": 0, "mirostat_tau": 9}, {"adaptive_target": -0.01}, {"min_keep": 1},
        {"dynatemp_range": 0, "dynatemp_exponent": 9}, {"min_keep": 0}, {"adaptive_decay": 0.5},
    ],
)  # fmt: skip
def test_what_asks_for_nothing(sent: dict[str, Any]) -> None:
    """The usual chain draws, on whatever device."""
    assert steps_of(**sent) is None


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ({"typical_p": 1.5}, "typical_p"), ({"typ_p": 0.5, "typical": 0.6}, "typical"), ({"mirostat": 3}, "mirostat"),
        ({"mirostat": 1.5}, "mirostat"), ({"xtc_threshold": -1}, "xtc_threshold"), ({"xtc_probability": 2}, "xtc_probability"),
        ({"dynatemp_range": -1}, "dynatemp_range"), ({"dynatemp_exponent": -1}, "dynatemp_exponent"),
        ({"dry_multiplier": -1}, "dry_multiplier"), ({"dry_multiplier": 1, "dry_base": 0.5}, "dry_base"),
        ({"dry_allowed_length": -1}, "dry_allowed_length"), ({"dry_penalty_last_n": -2}, "dry_penalty_last_n"),
        ({"dry_sequence_breakers": "x"}, "dry_sequence_breakers"), ({"dry_sequence_breakers": "[1]"}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": "[" * 4000}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": " " * 10**6}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": ["a"] * (MAX_BREAKERS + 1)}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": ["a" * (MAX_BREAKER_CHARS + 1)]}, "dry_sequence_breakers"),
        ({"adaptive_target": 1.1}, "adaptive_target"), ({"adaptive_decay": -0.1}, "adaptive_decay"), ({"min_keep": -1}, "min_keep"),
        ({"top_n_sigma": 1e300}, "top_n_sigma"), ({"mirostat_tau": -1}, "mirostat_tau"), ({"mirostat_eta": 1e9}, "mirostat_eta"),
    ],
)  # fmt: skip
def test_wrong_values(sent: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as error:
        fields_of(**sent)
    assert error.value.param == param
    assert len(str(error.value)) < 200


def test_the_usual_chain_only_where_it_draws_the_same() -> None:
    """Any order of the usual samplers: either the chain draws what the steps draw one by one, or the steps are asked for."""
    rng, kept = random.Random(3), 0
    for seed in range(600):
        order = rng.sample(["penalties", "temperature", "top_k", "top_p", "min_p"], rng.randrange(1, 6))
        params = SamplingParams(
            temperature=rng.choice([0.0, 0.5, 1.0, 1.5]),
            top_k=rng.choice([0, 5]),
            top_p=rng.choice([1.0, 0.6]),
            min_p=rng.choice([0.0, 0.2]),
            seed=seed,
            repetition_penalty=rng.choice([1.0, 1.8]),
        )
        chosen = with_steps(params, fields_of(samplers=order), TOKENIZER)
        if chosen.steps is not None:
            assert [step.value for step in chosen.steps.order] == order
            continue
        kept += 1
        one_by_one = replace(params, steps=SamplingSteps(order=tuple(map(Step, order))))
        logits = np.random.default_rng(seed).normal(0, 2, 40).astype(np.float32)
        history = History(np.arange(9, dtype=np.int32), 3)
        for position in (9, 10):
            tokens = [
                sample(logits, each, (), 0, position, history if each.needs_history else None).token
                for each in (chosen, one_by_one)
            ]
            assert tokens[0] == tokens[1], (order, params)
    assert 200 < kept < 550


async def test_dry_is_prepared_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short the request is, and however its field is spelled: looking through the vocabulary would stop the loop."""
    lengths: list[int] = []
    run = TextThreads.run

    async def noted(self: TextThreads, num_bytes: int, *work: Any, **fields: Any) -> Any:
        lengths.append(num_bytes)
        return await run(self, num_bytes, *work, **fields)

    monkeypatch.setattr(TextThreads, "run", noted)
    bodies = ['{"prompt": "a", "dry_multiplier": 1}', r'{"prompt": "a", "d\u0072\u0079\u005fmultiplier": 1}', '{"prompt": "a"}']
    async with serving(FakeEngine(saying("x"))) as at:
        for body in bodies:
            async with at.client.post("/completion", data=body) as response:
                assert response.status == 200
    assert [length > INLINE_BYTES for length in lengths] == [True, True, False]
    assert [sequence.request.params.steps is not None for sequence in at.engine.sequences] == [True, True, False]


def test_the_settings_name_every_field() -> None:
    """`generation_settings` tells each of them."""
    assert {field.name for field in fields(SamplerFields)} <= set(SettingsOut.__struct_fields__)


def test_bad_words_are_tokens() -> None:
    """Each text by itself and behind a space, once; an empty one is none."""
    encoded = {text: tuple(TOKENIZER.encode(text, parse_special=True)) for text in ("ab", " ab", " c")}
    assert set(bad_words(["ab", "", " ab"], TOKENIZER)) == {encoded["ab"], encoded[" ab"]}
    assert set(bad_words([" c"], TOKENIZER)) == {encoded[" c"]}
    for wrong in (["x"] * 257, ["x" * 101]):
        with pytest.raises(RequestError) as error:
            bad_words(wrong, TOKENIZER)
        assert (error.value.param or "").startswith("bad_words")
