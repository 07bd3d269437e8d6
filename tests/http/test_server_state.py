"""GET /props, GET /slots and GET /."""

from svc.http.text.chat_template import ChatTemplate
from svc.slots.events import FinishReason
from tests.fakes.fake_engine import FakeEngine, saying
from tests.fakes.fake_text import CHATML
from tests.http.harness import MODEL, TOKENIZER, serving


async def test_props() -> None:
    """What SillyTavern and scripts read: the template as a string, the context, the defaults of /completion."""
    async with serving(FakeEngine(saying("x"), context_tokens=100)) as at:
        _, answer = await at.get("/props")
        _, same = await at.get("/v1/props")
        _, completion = await at.post("/completion", {"prompt": "a"})
    assert answer == same
    defaults = answer.pop("default_generation_settings")
    assert answer == {
        "total_slots": 2,
        "model_alias": MODEL,
        "model_path": "/models/tiny.gguf",
        "modalities": {"vision": False, "audio": False},
        "chat_template": CHATML,
        "bos_token": "",
        "eos_token": "<|im_end|>",
        "build_info": "headrace-test",
        "is_sleeping": False,
    }
    assert defaults["n_ctx"] == 100
    assert defaults["params"] == completion["generation_settings"] | {"seed": -1}


async def test_props_without_a_template() -> None:
    """An empty string: SillyTavern takes it apart without asking."""
    async with serving(FakeEngine(), template=False) as at:
        _, answer = await at.get("/props")
    assert answer["chat_template"] == ""


async def test_props_with_a_template_for_tools() -> None:
    """Both templates are shown, under llama-server's names."""
    async with serving(FakeEngine(), template=ChatTemplate("plain", TOKENIZER, tool_use="with tools")) as at:
        _, answer = await at.get("/props")
    assert (answer["chat_template"], answer["chat_template_tool_use"]) == ("plain", "with tools")


async def test_slots_tell_counts_and_no_text() -> None:
    """Two slots, one taken; nothing of what was written."""
    body = {"prompt": "secret", "max_tokens": 9, "stream": True}
    async with serving(FakeEngine(cached=lambda request: 4)) as at, at.client.post("/v1/completions", json=body) as response:
        sequence = await at.engine.submitted.get()
        sequence.say(ord("x"))
        _, (taken, free) = await at.get("/slots")
        sequence.end(FinishReason.STOP)
        await response.read()
    assert taken.pop("request_id") == sequence.request.id
    assert taken.pop("cache") == {
        "matched_tokens": 3, "resumed_at": 2, "evaluated_tokens": 2, "reason": "no_snapshot", "tier": "host",
        "difference": {"position": 3},
    }  # fmt: skip
    assert taken == {
        "id": 0, "n_ctx": 4096, "is_processing": True, "speculative": False, "state": "decode", "n_prompt_tokens": 6,
        "n_prompt_tokens_cached": 4, "n_past": 7, "next_token": [{"has_next_token": True, "n_remain": 8, "n_decoded": 1}],
    }  # fmt: skip
    assert (free["id"], free["is_processing"], free["state"]) == (1, False, "idle")
    assert free["next_token"] == [{"has_next_token": False, "n_remain": -1, "n_decoded": 0}]


async def test_slots_with_text() -> None:
    """The operator may turn it on; a token beyond the vocabulary has no text."""
    body = {"prompt": "secret<|im_end|>", "stream": True}
    async with serving(FakeEngine(), show_prompts=True) as at, at.client.post("/v1/completions", json=body) as response:
        sequence = await at.engine.submitted.get()
        for token in (ord("x"), 100_000, ord("y")):
            sequence.say(token)
        _, (taken, free) = await at.get("/slots")
        sequence.end(FinishReason.STOP)
        await response.read()
    assert (taken["prompt"], taken["generated"]) == ("secret<|im_end|>", "xy")
    assert taken["cache"]["difference"] == {"position": 3, "before": "sec", "prompt": "ret<|im_end|>", "cached": "tic"}
    assert "prompt" not in free


async def test_no_slot_left() -> None:
    """llama-server's question for load balancers: a 503 when every slot is taken, 200 otherwise."""
    async with serving(FakeEngine()) as at:
        assert (await at.get("/slots?fail_on_no_slot=1"))[0] == 200
        async with at.client.post("/v1/completions", json={"prompt": ["a", "b"], "stream": True}) as response:
            sequences = [await at.engine.submitted.get() for _ in range(2)]
            status, answer = await at.get("/slots?fail_on_no_slot=1")
            assert (await at.get("/slots"))[0] == 200
            for sequence in sequences:
                sequence.end(FinishReason.STOP)
            await response.read()
    assert (status, answer["error"]["code"]) == (503, "no_slot_available")


async def test_knocking() -> None:
    """GET and HEAD / say what this is, also while loading."""
    async with serving(FakeEngine(), loaded=False) as at:
        assert await at.get("/") == (200, {"name": "headrace", "status": "loading"})
        async with at.client.head("/") as response:
            assert (response.status, await response.read()) == (200, b"")
        assert (await at.get("/props"))[0] == 503


async def test_slots_may_be_off() -> None:
    """The operator's setting: a 501, as llama-server's, that names it."""
    async with serving(FakeEngine(), show_slots=False) as at:
        status, answer = await at.get("/slots")
    assert (status, answer["error"]["code"]) == (501, "not_supported")
    assert "slots_endpoint" in answer["error"]["message"]
