"""Sampling that people set, over HTTP: a real process and the bundled model."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from svc.config import BUNDLED_MODEL
from tests.scenarios.server import Server

PROMPT = "Once upon a time there was a river, and the river"
SETS: dict[str, dict[str, Any]] = {
    "typical-p": {"typ_p": 0.7, "top_p": 1, "min_p": 0, "top_k": 0},
    "top-n-sigma": {"top_n_sigma": 1.5, "top_p": 1, "min_p": 0, "top_k": 0},
    "xtc": {"xtc_probability": 0.7, "xtc_threshold": 0.05},
    "dry": {"dry_multiplier": 2, "dry_allowed_length": 1, "temperature": 0.3},
    "mirostat 1": {"mirostat": 1, "mirostat_tau": 4},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 4},
    "dynamic temperature": {"dynatemp_range": 0.7, "dynatemp_exponent": 1.5},
    "adaptive-p": {"adaptive_target": 0.3, "adaptive_decay": 0.8},
    "llama.cpp's order": {"samplers": "edskypmxt", "xtc_probability": 0.5, "temperature": 1.3},
}


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(Server, "model", BUNDLED_MODEL)
    async with Server() as running:
        yield running


async def answer(server: Server, **fields: Any) -> dict[str, Any]:
    body = {"prompt": PROMPT, "n_predict": 40, "seed": 5, "ignore_eos": True, "return_tokens": True, "temperature": 1.2} | fields
    status, found = await server.status("/completion", body)
    assert status == 200, found
    return found


async def test_each_is_its_own_answer_again(server: Server) -> None:
    """With one seed: the same answer alone and beside all the others, and another than that of plain sampling."""
    plain = await answer(server)
    alone = [await answer(server, **fields) for fields in SETS.values()]
    together = await asyncio.gather(*(answer(server, **fields) for fields in SETS.values()))
    assert [one["tokens"] for one in together] == [one["tokens"] for one in alone]
    for name, one in zip(SETS, alone, strict=True):
        assert len(one["tokens"]) == 40
        assert one["tokens"] != plain["tokens"], name


async def test_words_that_must_not_come(server: Server) -> None:
    """Neither tokens nor sequences of tokens that the answer would have had."""
    words = [word for word in (await answer(server, temperature=0))["content"].split() if word.isalpha()]
    never = sorted(set(words[:3]))
    found = await answer(server, temperature=0, bad_words=never)
    _, spelled = await server.status("/tokenize", {"content": f" {never[0]}"})
    tokens = [str(token) for token in spelled["tokens"]]
    assert f" {' '.join(tokens)} " not in f" {' '.join(map(str, found['tokens']))} "
    assert found["content"] != (await answer(server, temperature=0))["content"]


async def test_probabilities_after_sampling(server: Server) -> None:
    """Those of the three tokens that top-k leaves, which are all there are."""
    found = await answer(server, top_k=3, top_p=1, min_p=0, n_probs=10, post_sampling_probs=True, n_predict=5)
    for entry in found["completion_probabilities"]:
        assert sum(top["prob"] for top in entry["top_probs"]) == pytest.approx(1)
        assert len(entry["top_probs"]) == 3
        assert entry["id"] in [top["id"] for top in entry["top_probs"]]


async def test_the_operators_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags reach the answers: greedy and five tokens long, unless the request says otherwise."""
    monkeypatch.setattr(Server, "model", BUNDLED_MODEL)
    async with Server("--default-temperature", "0", "--default-max-tokens", "5") as server:
        found = [(await server.status("/completion", {"prompt": PROMPT, "seed": seed}))[1] for seed in (1, 2)]
        _, longer = await server.status("/completion", {"prompt": PROMPT, "n_predict": 7})
    assert found[0]["content"] == found[1]["content"]
    assert [one["tokens_predicted"] for one in (*found, longer)] == [5, 5, 7]
    assert longer["content"].startswith(found[0]["content"])
