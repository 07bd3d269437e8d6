"""What a user tries on the first day, against the whole server: keys, llama-server's endpoints, sampling fields that show."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.server_process import ServerProcess, failed_start, serving

MODEL = "tiny-qwen35moe-Q4_K_M"
KEY = "a-key-for-tests"
USER = {"messages": [{"role": "user", "content": "Tell me about rivers."}]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    file = tmp_path_factory.mktemp("keys") / "api-keys"
    file.write_text(f"# for tests\n{KEY}\n")
    with serving(MODEL, "--ctx", "512", "--slots-prompt-text", environ={"HEADRACE_API_KEY_FILE": str(file)}) as process:
        yield process


@pytest.fixture
async def session(server: ServerProcess) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url, headers={"Authorization": f"Bearer {KEY}"}) as session:
        yield session


async def post(session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> Any:
    async with session.post(path, json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def test_the_key_file_of_the_environment_is_in_force(server: ServerProcess, session: aiohttp.ClientSession) -> None:
    """As the systemd unit gives it: without a key only probes and metrics answer."""
    async with aiohttp.ClientSession(server.url) as stranger:
        for path, status in (("/v1/models", 401), ("/props", 401), ("/readyz", 200), ("/metrics", 200)):
            async with stranger.get(path) as response:
                assert response.status == status, path
    async with session.get("/v1/models") as response:
        assert response.status == 200


async def test_template_then_completion_is_the_chat(session: aiohttp.ClientSession) -> None:
    """The two steps that SillyTavern makes give the answer that the chat endpoint gives, from its cache."""
    chat = await post(session, "/v1/chat/completions", {**USER, "temperature": 0, "max_tokens": 12})
    prompt = (await post(session, "/apply-template", USER))["prompt"]
    native = await post(session, "/completion", {"prompt": prompt, "temperature": 0, "n_predict": 12})
    assert native["content"] == chat["choices"][0]["message"]["content"]
    assert native["tokens_evaluated"] == native["tokens_cached"] == chat["usage"]["prompt_tokens"]
    assert (native["timings"]["prompt_n"], native["timings"]["predicted_n"]) == (0, native["tokens_predicted"])


async def test_bias_and_min_tokens(session: aiohttp.ClientSession) -> None:
    """A bias of 100 decides alone; an end token with such a bias ends the answer right after min_tokens."""
    (end,) = (await post(session, "/tokenize", {"content": (await _get(session, "/props"))["eos_token"]}))["tokens"]
    (word,) = (await post(session, "/tokenize", {"content": "a"}))["tokens"]
    body = {"prompt": "One", "n_predict": 9, "return_tokens": True, "seed": 1}
    forced = await post(session, "/completion", {**body, "logit_bias": {str(word): 100}})
    assert forced["tokens"] == [word] * 9
    ended = await post(session, "/completion", {**body, "logit_bias": [[word, 50], [end, 100]], "min_tokens": 3})
    assert (ended["tokens"], ended["stop_type"]) == ([word] * 3, "eos")
    never = await post(session, "/completion", {**body, "logit_bias": [[word, 100], [word, False]]})
    assert word not in never["tokens"]


async def test_penalties_work(session: aiohttp.ClientSession) -> None:
    """A penalty of 100 on what was said lets nothing be said twice; llama-server's counts the prompt too, OpenAI's does not."""
    word = "a"
    (token,) = (await post(session, "/tokenize", {"content": word}))["tokens"]
    bias = {str(token): 50}
    native = {"prompt": [token], "n_predict": 40, "return_tokens": True, "temperature": 0, "logit_bias": bias}
    said = (await post(session, "/completion", {**native, "presence_penalty": 100}))["tokens"]
    assert len(set(said)) == len(said)
    assert token not in said
    body = {"prompt": [token], "max_tokens": 5, "temperature": 0, "logit_bias": bias, "return_token_ids": True}
    said = (await post(session, "/v1/completions", {**body, "presence_penalty": 100}))["choices"][0]["token_ids"]
    assert said[0] == token
    assert said.count(token) == 1


async def test_slots_and_props(session: aiohttp.ClientSession) -> None:
    """A slot tells its text where that is turned on, and is idle once the client has left."""
    props = await _get(session, "/props")
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert "message" in props["chat_template"]
    assert Path(props["model_path"]).name == f"{MODEL}.gguf"
    body = {"prompt": "Many rivers", "n_predict": 400, "ignore_eos": True, "stream": True}
    async with session.post("/completion", json=body) as response:
        await response.content.readuntil(b"data: ")
        slots = await _get(session, "/slots")
    assert len(slots) == props["total_slots"]
    (taken,) = [slot for slot in slots if slot["is_processing"]]
    assert (taken["prompt"], taken["state"], taken["next_token"][0]["has_next_token"]) == ("Many rivers", "decode", True)


def test_a_missing_key_file_ends_the_start(tmp_path: Path) -> None:
    """One sentence that names the setting and the file, before anything is loaded."""
    file = tmp_path / "none"
    code, errors = failed_start("model.gguf", "--api-key-file", str(file))
    assert code == 2
    assert f"api_key_file: cannot read {file}" in errors
    assert "Traceback" not in errors


async def _get(session: aiohttp.ClientSession, path: str) -> Any:
    async with session.get(path) as response:
        assert response.status == 200
        return await response.json()
