"""What SillyTavern, Open WebUI and llama.vim send, by their sources (tests/data/clients), and what each reads in the answer."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.fake_engine import FakeEngine, Script, obedient, saying
from tests.fakes.fake_text import IM_END
from tests.http.harness import MODEL, TEMPLATE, Harness, parse_sse, serving

FOLDER = Path(__file__).parents[1] / "data" / "clients"
CLIENTS = {path.stem: {call["name"]: call for call in json.loads(path.read_text())["calls"]} for path in FOLDER.glob("*.json")}


async def _ask(at: Harness, client: str, name: str, **changes: Any) -> Any:
    """The answer as JSON, or the events of a stream."""
    call = CLIENTS[client][name]
    body = json.dumps(call["body"] | changes).encode() if "body" in call else None
    async with at.client.request(call["method"], call["path"], data=body, headers=call.get("headers")) as response:
        assert response.status == 200, await response.text()
        if response.content_type == "text/event-stream":
            return parse_sse(await response.read())
        return await response.json()


def _script(client: str, name: str) -> Script:
    """An answer that obeys a grammar where there may be one."""
    return obedient(1) if "of a form" in name else saying("Well.")


@pytest.mark.parametrize(("client", "name"), [(client, name) for client, calls in CLIENTS.items() for name in calls])
async def test_every_call_is_served(client: str, name: str) -> None:
    """None is refused."""
    async with serving(FakeEngine(_script(client, name))) as at:
        await _ask(at, client, name)


# -- SillyTavern ------------------------------------------------------------------------------------------------------------------
async def test_silly_tavern_connects() -> None:
    """It takes the first model's id, the template's text (of which it makes a hash), and the number of tokens."""
    async with serving(FakeEngine()) as at:
        models = await _ask(at, "sillytavern", "models")
        props = await _ask(at, "sillytavern", "props")
        slots = await _ask(at, "sillytavern", "slots")
        tokens = await _ask(at, "sillytavern", "tokenize")
    assert [model["id"] for model in models["data"]] == [MODEL]
    assert props["chat_template"] == TEMPLATE.source
    assert props["default_generation_settings"]["n_ctx"] == 4096
    assert [slot["is_processing"] for slot in slots] == [False] * len(slots)
    assert tokens["tokens"] == list(b"Hi, Ann.")


async def test_silly_tavern_text() -> None:
    """It reads `content`; streamed, of every event, and log probabilities where it asked for some."""
    async with serving(FakeEngine(saying(" Hi!\nBen: ho"))) as at:
        whole = await _ask(at, "sillytavern", "text")
        streamed = await _ask(at, "sillytavern", "text, streamed")
        sampled = await _ask(at, "sillytavern", "text, sampled")
    assert whole["content"] == "".join(event["content"] for event in streamed) == " Hi!"
    assert (whole["stop_type"], whole["stopping_word"]) == ("word", "\nBen:")
    assert all(event["completion_probabilities"] for event in sampled if event.get("tokens"))
    plain, _, dynamic = (sequence.request for sequence in at.engine.sequences)
    assert (plain.params.temperature, plain.params.top_k, plain.params.top_p, plain.max_tokens) == (0.7, 40, 0.5, 120)
    assert plain.params.repeat_last_n == 0
    assert IM_END in plain.stop_ids
    assert (dynamic.params.seed, dynamic.params.temperature, dynamic.params.logit_bias) == (7, 1.1, ((65, -5.0),))
    assert dynamic.params.steps is not None


NOT_NEUTRAL = {
    "banned_strings": ["word"], "smoothing_factor": 0.5, "tfs": 0.9, "top_a": 0.1, "skew": 0.2, "guidance_scale": 1.5,
    "skip_special_tokens": False, "add_bos_token": False,
}  # fmt: skip


@pytest.mark.parametrize("field", NOT_NEUTRAL)
async def test_silly_tavern_is_told_what_it_cannot_have(field: str) -> None:
    """A sampler that there is none of here is named as soon as it is turned on."""
    body = CLIENTS["sillytavern"]["text"]["body"]
    assert field in body
    async with serving(FakeEngine(saying("x"))) as at:
        status, answer = await at.post("/completion", body | {field: NOT_NEUTRAL[field]})
    assert (status, answer["error"]["param"]) == (400, field)
    assert field in answer["error"]["message"]


async def test_silly_tavern_forms() -> None:
    """A JSON schema is obeyed in both of its APIs."""
    async with serving(FakeEngine(obedient(3))) as at:
        text = await _ask(at, "sillytavern", "text, of a form")
        chat = await _ask(at, "sillytavern", "chat, of a form")
    assert json.loads(text["content"]).keys() == {"mood"}
    assert json.loads(chat["choices"][0]["message"]["content"]).keys() == {"mood"}


async def test_silly_tavern_chat() -> None:
    """The deltas' content joined; `reasoning_content` is shown as thoughts; the stream ends with [DONE]."""
    async with serving(FakeEngine(saying(" Hi!\nBen: ho"))) as at:
        *chunks, done = await _ask(at, "sillytavern", "chat")
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == " Hi!"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


# -- Open WebUI -------------------------------------------------------------------------------------------------------------------
async def test_open_webui_models_and_chat() -> None:
    """It lists `data[].id`, joins deltas, and shows the usage of the last chunk, which has no choices. Its headers are harmless."""
    async with serving(FakeEngine(saying("Hello!"))) as at:
        models = await _ask(at, "open-webui", "models")
        *chunks, last, done = await _ask(at, "open-webui", "chat")
        await _ask(at, "open-webui", "chat with its parameters")
    assert models["data"][0]["id"] == MODEL
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == "Hello!"
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 6)
    params = at.engine.sequences[1].request.params
    assert (params.temperature, params.top_k, params.seed, params.logit_bias) == (0.8, 40, 42, ((100, -5.0),))
    assert params.repetition_penalty == 1.1


async def test_open_webui_tools() -> None:
    """It puts calls together by their index, and sends them back with that index and empty content."""
    call = '<tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC"}}\n</tool_call>'
    async with serving(FakeEngine(saying(call))) as at:
        *chunks, _ = await _ask(at, "open-webui", "chat with tools")
        await _ask(at, "open-webui", "chat after a tool")
    deltas = [part for chunk in chunks for part in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert {part["index"] for part in deltas} == {0}
    assert (deltas[0]["id"][:5], deltas[0]["function"]["name"]) == ("call_", "get_time")
    assert json.loads("".join(part["function"].get("arguments", "") for part in deltas)) == {"zone": "UTC"}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert call.encode() in bytes(token for token in at.engine.sequences[1].request.prompt if token < 256)


@pytest.mark.parametrize("name", ["title", "tags"])
async def test_open_webui_tasks(name: str) -> None:
    """It looks for the braces in the message's content."""
    async with serving(FakeEngine(saying('{ "title": "🌦 Weather" }'))) as at:
        answer = await _ask(at, "open-webui", name)
    assert answer["choices"][0]["message"]["content"] == '{ "title": "🌦 Weather" }'
    assert at.engine.sequences[0].request.max_tokens == 1000


# -- llama.vim --------------------------------------------------------------------------------------------------------------------
async def test_llama_vim_warms_the_cache() -> None:
    """The prompt is evaluated, nothing is generated, and the answer, of which it wants nothing, is an empty object."""
    async with serving(FakeEngine(saying("x"))) as at:
        call = CLIENTS["llama-vim"]["warm up"]
        assert await at.post(call["path"], call["body"]) == (200, {})
    (sequence,) = at.engine.sequences
    assert (sequence.request.max_tokens, sequence.generated) == (0, [])
    assert b"int a;" in bytes(token for token in sequence.request.prompt if token < 256)


async def test_llama_vim_fills_in() -> None:
    """The fields it asks for, under the names it asked by; the suggestion ends where a line leaves the block it is in."""
    async with serving(FakeEngine(saying("turn x\n    y = 2\n  z\nprint"))) as at:
        answer = await _ask(at, "llama-vim", "fill in")
        other = await _ask(at, "llama-vim", "fill in", n_indent=0)
    assert answer.keys() == set(CLIENTS["llama-vim"]["fill in"]["body"]["response_fields"])
    assert answer["content"] == "turn x\n    y = 2\n  "
    assert other["content"] == "turn x\n    y = 2\n  z\nprint"
    assert (answer["truncated"], answer["timings/predicted_n"]) == (False, len("turn x\n    y = 2\n  z"))
    assert at.engine.sequences[0].request.params.steps is None  # its samplers: the usual two


async def test_llama_vim_edits() -> None:
    """It joins the deltas' content until the stream ends."""
    async with serving(FakeEngine(saying("x = 2"))) as at:
        *chunks, done = await _ask(at, "llama-vim", "instruct")
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == "x = 2"
