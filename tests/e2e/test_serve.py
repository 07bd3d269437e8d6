"""The whole server as a process of its own, with the `openai` SDK as its client."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import numpy as np
import openai
import pytest

from tests.e2e.server_process import GGUF, PATIENCE_S, ServerProcess, serving

HYBRID, GOLDEN_MODEL = "tiny-qwen35moe-Q4_K_M", "tiny-qwen35-hd128-bf16"
GOLDEN = GGUF.parent / "golden"
CHAT: Any = {"model": "any", "messages": [{"role": "user", "content": "Tell me about rivers."}], "temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with serving(HYBRID, "--ctx", "512") as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


async def test_stream_equals_whole_and_the_second_time_is_cached(client: openai.AsyncOpenAI) -> None:
    """Greedy: the same text streamed and not; the identical prompt again evaluates nothing."""
    first = await client.chat.completions.create(**CHAT)
    stream = await client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == first.choices[0].message.content
    usage = chunks[-1].usage
    assert first.usage
    assert usage
    assert usage.prompt_tokens_details
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens == first.usage.prompt_tokens


async def test_completions_and_choices(client: openai.AsyncOpenAI) -> None:
    """Several prompts, several choices: greedy choices of one prompt agree, usage adds up."""
    answer = await client.completions.create(
        model="any", prompt=["One river", "Two rivers"], n=2, temperature=0, max_tokens=8, logprobs=2
    )
    texts = [choice.text for choice in answer.choices]
    assert texts[0] == texts[1]
    assert texts[2] == texts[3]
    assert answer.usage
    assert answer.usage.completion_tokens <= 32
    logprobs = answer.choices[0].logprobs
    assert logprobs
    assert logprobs.tokens
    assert logprobs.token_logprobs
    assert logprobs.top_logprobs
    best = [max(top.values()) for top in logprobs.top_logprobs]
    assert logprobs.token_logprobs == best


async def test_seed_decides_the_samples(client: openai.AsyncOpenAI) -> None:
    """The same seed gives the same text, choices of one request differ, another seed differs."""
    body = {**CHAT, "temperature": 1.0, "n": 2, "extra_body": {"cache_prompt": False, "ignore_eos": True}}
    one, same, other = [await client.chat.completions.create(**body, seed=seed) for seed in (1, 1, 2)]
    texts = [[choice.message.content for choice in answer.choices] for answer in (one, same, other)]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0][0] != texts[0][1]


async def test_models_and_tokens(server: ServerProcess, client: openai.AsyncOpenAI) -> None:
    """The model is named after its file; /tokenize and /detokenize are inverse."""
    assert [model.id async for model in client.models.list()] == [HYBRID]
    text = "Flüsse — 川 🏞"
    async with aiohttp.ClientSession(server.url) as session:
        async with session.post("/tokenize", json={"content": text}) as response:
            tokens = (await response.json())["tokens"]
        async with session.post("/detokenize", json={"tokens": tokens}) as response:
            assert (await response.json())["content"] == text


async def test_max_tokens_zero_warms_the_cache(client: openai.AsyncOpenAI) -> None:
    """An answer of no tokens leaves the whole prompt behind."""
    body = {**CHAT, "messages": [{"role": "user", "content": "Warm water."}]}
    warm = await client.chat.completions.create(**{**body, "max_tokens": 0})
    assert (warm.choices[0].message.content, warm.choices[0].finish_reason) == ("", "length")
    answer = await client.chat.completions.create(**body)
    assert answer.usage
    assert answer.usage.prompt_tokens_details
    assert answer.usage.prompt_tokens_details.cached_tokens == answer.usage.prompt_tokens


async def test_errors(client: openai.AsyncOpenAI) -> None:
    """A prompt beyond the context and a bad field are the SDK's BadRequestError; the server goes on."""
    with pytest.raises(openai.BadRequestError) as long:
        await client.completions.create(model="any", prompt=[5] * 513, max_tokens=1)
    assert long.value.code == "context_length_exceeded"
    assert "This model's maximum context length is 512 tokens" in long.value.message
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(**{**CHAT, "temperature": -1})
    assert bad.value.param == "temperature"
    assert (await client.completions.create(model="any", prompt=[5] * 512, max_tokens=5)).choices[0].finish_reason == "length"


async def test_client_that_leaves_frees_its_slot(server: ServerProcess, client: openai.AsyncOpenAI) -> None:
    """Cut off in mid-answer: the log line says so, no sequence runs on, and a retry reuses what was evaluated."""
    body = {
        **CHAT,
        "messages": [{"role": "user", "content": "A long story."}],
        "max_tokens": 400,
        "extra_body": {"ignore_eos": True},
    }
    stream = await client.chat.completions.create(**body, stream=True, extra_headers={"X-Request-Id": "leaver"})
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    await stream.close()
    line = server.wait_for("request")
    while line["request_id"] != "leaver":
        line = server.wait_for("request")
    assert (line["status"], line["finish"]) == (499, "cancelled")
    assert line["generated_tokens"] < 400
    async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession(server.url) as session:
        while "headrace_num_requests_running 0.0" not in await _text(session, "/metrics"):  # the step under way ends first
            pass
    again = await client.chat.completions.create(**{**body, "max_tokens": 2})
    assert again.usage
    assert again.usage.prompt_tokens_details
    assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens


async def _text(session: aiohttp.ClientSession, path: str) -> str:
    async with session.get(path) as response:
        return await response.text()


async def test_golden_greedy_tokens() -> None:
    """Over HTTP, from token ids to token ids: transformers' own greedy answers to prompts of 1, 7, 70 and 300 tokens, at once."""
    prompts = [[int(token) for token in line.split()] for line in (GOLDEN / "seqs-qwen35.txt").read_text().splitlines()]
    with np.load(GOLDEN / f"{GOLDEN_MODEL.removesuffix('-bf16')}.hf.npz") as golden:
        expected = [golden[f"s{index}.greedy"].tolist() for index in range(len(prompts))]
    body = {"prompt": prompts, "temperature": 0, "max_tokens": 64, "return_token_ids": True, "ignore_eos": False}
    with serving(GOLDEN_MODEL) as server:
        async with aiohttp.ClientSession(server.url) as session, session.post("/v1/completions", json=body) as response:
            answer = json.loads(await response.read())
    assert [choice["token_ids"] for choice in answer["choices"]] == expected
    assert [choice["prompt_token_ids"] for choice in answer["choices"]] == prompts
