"""The scenarios of docs/scenarios.md as black-box tests: a real server process, a tiny hybrid model, exact expectations.

A control is the same request on a fresh server, so that nothing is proven by a cache hit.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from svc.config import BUNDLED_MODEL
from tests.e2e.server_process import ROOT
from tests.scenarios.server import MESSAGE_OPENER, MODEL, Message, Reply, Server, common_prefix, message, message_starts

HEADER_TOKENS = 3  # opener, role, newline
Ratio = Callable[[Reply, int], None]
THINKING_TEMPLATE = ROOT / "tests" / "data" / "text" / "strict-chat-template.jinja"
WORDS = [
    "the",
    "river",
    "keeps",
    "its",
    "water",
    "behind",
    "a",
    "gate",
    "until",
    "the",
    "mill",
    "below",
    "asks",
    "for",
    "it",
    "and",
    "then",
    "lets",
    "go",
    "a",
    "little",
]


def words(count: int, seed: int = 0) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def ids(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(300, 2000), k=length)


def conversation(turns: int) -> list[Message]:
    """System, then user and assistant in turn, a user message last."""
    messages = [message("system", "You answer briefly. " + words(30))]
    for turn in range(turns):
        messages.append(message("user", f"Question {turn}: {words(20, turn)}"))
        messages.append(message("assistant", f"Answer {turn}: {words(20, 100 + turn)}"))
    return messages[:-1]


on_both_models = pytest.mark.parametrize("served", [MODEL, BUNDLED_MODEL], ids=["tiny", "bundled"], indirect=True)
"""On random weights and on the trained model that is shipped."""


async def opener(server: Server) -> int:
    _, answer = await server.status("/tokenize", {"content": MESSAGE_OPENER, "parse_special": True})
    assert len(answer["tokens"]) == 1
    return int(answer["tokens"][0])


async def cold(*flags: str, **chat: Any) -> Reply:
    """The same request on a server that knows nothing."""
    async with Server(*flags) as fresh:
        reply = await (fresh.chat(**chat) if "messages" in chat else fresh.complete(**chat))
    assert reply.cached == 0
    return reply


@pytest.mark.usefixtures("served")
@on_both_models
async def test_01_the_identical_prompt_twice(ratio: Ratio) -> None:
    """cached == n, same bits."""
    async with Server() as server:
        first = await server.chat(conversation(3))
        again = await server.chat(conversation(3))
    assert first.cached == 0
    assert again.cached == again.prompt_tokens
    assert again.bits == first.bits
    assert first.bits == (await cold(messages=conversation(3))).bits
    ratio(again, 0)


@pytest.mark.usefixtures("served")
@on_both_models
async def test_02_last_user_message_edited(ratio: Ratio) -> None:
    """Everything before that message is reused: cached is the index of its role header."""
    messages = conversation(6)
    edited = [*messages[:-1], message("user", "Something else entirely: " + words(25, 77))]
    async with Server() as server:
        start = message_starts(await server.chat(messages), await opener(server))[-2]
        reply = await server.chat(edited)
    assert reply.cached == start
    assert reply.bits == (await cold(messages=edited)).bits
    ratio(reply, reply.prompt_tokens - start)


@pytest.mark.usefixtures("served")
@on_both_models
async def test_03_regenerate_three_times(ratio: Ratio) -> None:
    """cached == n each time, other sampling parameters included."""
    async with Server() as server:
        first = await server.chat(conversation(4))
        for seed in (1, 2, 3):
            again = await server.chat(conversation(4), temperature=1.0, seed=seed)
            assert again.cached == again.prompt_tokens == first.prompt_tokens
            ratio(again, 0)
        assert (await server.chat(conversation(4))).bits == first.bits


@pytest.mark.usefixtures("served")
@on_both_models
async def test_04_branch_and_back(ratio: Ratio) -> None:
    """Conversation A, a branch B from its third message, then A again: A still whole."""
    messages = conversation(4)
    branch = [*messages[:3], message("user", "A different third question: " + words(40, 5))]
    async with Server() as server:
        first = await server.chat(messages)
        aside = await server.chat(branch)
        assert aside.cached == message_starts(first, await opener(server))[3]
        again = await server.chat(messages)
    assert again.cached == again.prompt_tokens
    assert again.bits == first.bits
    assert aside.bits == (await cold(messages=branch)).bits
    ratio(aside, aside.prompt_tokens - aside.cached)
    ratio(again, 0)


@pytest.mark.usefixtures("served")
@on_both_models
async def test_05_four_agents_at_once_on_one_system_prompt(ratio: Ratio) -> None:
    """Cold: the first computes the common prefix, the rest join exactly there; answers equal solo ones."""
    system = message("system", words(500))
    agents = [[system, message("user", f"{name}: {words(30, seed)}")] for seed, name in enumerate(("Ada", "Bo", "Cy", "Di"))]
    async with Server() as server:
        replies = await asyncio.gather(*(server.chat(messages) for messages in agents))
    leader = min(replies, key=lambda reply: reply.cached)
    assert leader.cached == 0
    for reply, messages in zip(replies, agents, strict=True):
        if reply is not leader:
            assert reply.cached == common_prefix(reply.prompt_ids, leader.prompt_ids) > 500
            ratio(reply, reply.prompt_tokens - common_prefix(reply.prompt_ids, leader.prompt_ids))
        assert reply.bits == (await cold(messages=messages)).bits


async def test_06_cut_off_half_way_through_prefill(ratio: Ratio) -> None:
    """A 15k-token prompt, the client leaves half-way, sends it again: it goes on exactly where it stopped."""
    prompt = ids(15_000)
    flags = ("--ctx", "16384", "--max-step-tokens", "256")
    async with Server(*flags) as server:
        events = server.stream("/v1/completions", prompt=prompt, max_tokens=4)
        reading = asyncio.ensure_future(anext(events, None))
        while await server.metric("prefill_tokens_total") < 7_000:
            assert not reading.done()
        reading.cancel()
        await asyncio.wait([reading])
        await server.until_idle()
        stopped = int(await server.metric("prefill_tokens_total"))
        assert 7_000 <= stopped < 15_000
        reply = await server.complete(prompt, 4)
    assert reply.cached == stopped
    assert reply.bits == (await cold(*flags, prompt=prompt, max_tokens=4)).bits
    ratio(reply, 15_000 - stopped)


@pytest.mark.usefixtures("served")
@on_both_models
async def test_07_cut_off_in_mid_answer(ratio: Ratio) -> None:
    """The same prompt again: all of it reused, the answer equal to cold; continuing the partial answer reuses it too."""
    prompt = ids(200)
    async with Server() as server:
        partial: list[int] = []
        events = server.stream("/v1/completions", prompt=prompt, max_tokens=2000)
        async for event in events:
            partial += event["choices"][0].get("token_ids") or []
            if len(partial) >= 20:
                break
        await events.aclose()
        await server.until_idle()
        evaluated = int(await server.metric("decode_tokens_total"))
        again = await server.complete(prompt, 30)
        control = await cold(prompt=prompt, max_tokens=30)
        assert again.cached == len(prompt)
        assert again.bits == control.bits
        assert partial[:30] == control.ids[: len(partial)]
        ratio(again, 0)
        # The whole answer up to where the server was when the client left, as a prefix to go on from.
        whole = await server.complete(prompt, evaluated + 1)
        continued = await server.complete(prompt + whole.ids, 8)
    assert continued.cached >= len(prompt) + evaluated
    assert continued.bits == (await cold(prompt=prompt + whole.ids, max_tokens=8)).bits


async def test_09_nothing_of_one_conversation_in_another() -> None:
    """Secret words in A (finished, cancelled, evicted), then B asks for everything: B's tokens are those of a fresh server."""
    flags = ("--max-slots", "2", "--snapshot-bytes", "4MiB", "--kv-bytes", "1MiB")
    secret = [message("system", "The password is swordfish. " + words(60, 9)), message("user", "Remember it: swordfish.")]
    curious = [message("user", "Repeat everything that was said before, the password too.")]
    async with Server(*flags) as server:
        await server.chat(secret, 20)
        async for _ in server.stream("/v1/chat/completions", messages=[*secret, message("user", "again")], max_tokens=500):
            break
        for seed in range(6):
            await server.chat([message("user", f"filler {words(200, seed)}")], 4)
        reply = await server.chat(curious, 30)
    control = await cold(*flags, messages=curious, max_tokens=30)
    assert reply.cached <= HEADER_TOKENS  # what any two conversations share
    assert reply.bits == control.bits


@pytest.mark.parametrize("k", [2, 3, 5, 8, 17])
async def test_10_conversations_at_once(k: int) -> None:
    """Each answer equal, bit for bit, to its solo run; every prompt is really evaluated."""
    prompts = [ids(random.Random(seed).randrange(1, 150), seed) for seed in range(k)]
    async with Server("--max-slots", "17") as server:
        together = await asyncio.gather(*(server.complete(prompt, 12) for prompt in prompts))
    async with Server("--max-slots", "17") as server:
        alone = [await server.complete(prompt, 12, cache_prompt=False) for prompt in prompts]
    assert [reply.cached for reply in together + alone] == [0] * (2 * k)
    assert [reply.bits for reply in together] == [reply.bits for reply in alone]


async def test_11_a_long_prefill_beside_a_stream() -> None:
    """Counted in steps: while another prompt is prefilled, every step gives the running stream a token."""
    async with Server("--ctx", "8192") as server:
        events = server.stream("/v1/completions", prompt=ids(20), max_tokens=4000)
        await anext(events)
        before = await server.metrics()
        await server.complete(ids(3_000, 1), 1)
        after = await server.metrics()
        await events.aclose()
    steps = after["steps_total"] - before["steps_total"]
    assert after["generation_tokens_total"] - before["generation_tokens_total"] >= steps > 5


async def test_12_two_long_prompts_at_once() -> None:
    """At most 1.2 times the steps of one after the other."""
    flags = ("--ctx", "8192", "--kv-bytes", "64MiB")
    async with Server(*flags) as server:
        for seed in (1, 2):
            await server.complete(ids(8_000, seed), 1)
        one_after_the_other = await server.metric("steps_total")
    async with Server(*flags) as server:
        await asyncio.gather(*(server.complete(ids(8_000, seed), 1) for seed in (1, 2)))
        together = await server.metric("steps_total")
    assert together <= 1.2 * one_after_the_other


@pytest.mark.usefixtures("served")
@on_both_models
async def test_13_history_comes_back_without_the_reasoning(ratio: Ratio) -> None:
    """A thinking template: the answer comes back without its think part; reused up to the start of that answer."""
    flags = ("--chat-template-file", str(THINKING_TEMPLATE))
    question = [message("system", words(40)), message("user", "Why? " + words(30, 1))]
    later = [*question, message("assistant", "Because."), message("user", "And then? " + words(10, 2))]
    async with Server(*flags) as server:
        first = await server.chat(question, 16)
        start = message_starts(first, await opener(server))[-1]
        reply = await server.chat(later)
    assert reply.cached == start
    assert reply.bits == (await cold(*flags, messages=later)).bits
    ratio(reply, reply.prompt_tokens - start)


async def test_15_a_cache_filled_by_others() -> None:
    """A recomputed correctly after eviction; a short fresh prompt equals a fresh server's."""
    flags = ("--max-slots", "2", "--snapshot-bytes", "2MiB", "--kv-bytes", "512KiB")
    async with Server(*flags) as server:
        first = await server.complete(ids(400), 8)
        for seed in range(1, 8):
            await server.complete(ids(400, seed), 8)
        assert await server.metric("kv_pages_evicted_total") + await server.metric("snapshot_evicted_total") > 0
        again = await server.complete(ids(400), 8)
        fresh = await server.complete(ids(5, 99), 8)
    assert again.cached < again.prompt_tokens
    assert again.bits == first.bits
    assert fresh.bits == (await cold(*flags, prompt=ids(5, 99), max_tokens=8)).bits


@pytest.mark.parametrize("length", [1, 31, 32, 33, 63, 64, 65, 1024])
async def test_18_lengths(length: int) -> None:
    """One token, a page, a page more or less, a snapshot position, the whole context: cold, again, and after its first half."""
    flags = ("--ctx", "1024")
    prompt = ids(length)
    max_tokens = 1 if length == 1024 else 4
    async with Server(*flags) as server:
        first = await server.complete(prompt, 4)
        again = await server.complete(prompt, 4)
    async with Server(*flags) as server:
        await server.complete(prompt[: max(1, length // 2)], 1)
        resumed = await server.complete(prompt, 4)
    assert len(first.ids) == max_tokens
    assert (first.cached, again.cached, resumed.cached) == (0, length, max(1, length // 2))
    assert first.bits == again.bits == resumed.bits


async def test_18_one_more_than_the_context() -> None:
    """A clear 400 that says how long the context is."""
    async with Server("--ctx", "1024") as server:
        status, answer = await server.status("/v1/completions", {"prompt": ids(1025), "max_tokens": 1})
    assert status == 400
    assert answer["error"]["code"] == "context_length_exceeded"
    assert "maximum context length is 1024 tokens" in answer["error"]["message"]


async def test_21_one_long_message_with_a_changing_tail(ratio: Ratio) -> None:
    """12k fixed and 500 changing tokens, three times: second at most twice the changed tail, third exactly the tail."""
    flags = ("--ctx", "16384")
    prompts = [[*ids(12000), 300 + seed, *ids(499, seed)] for seed in (1, 2, 3)]
    async with Server(*flags) as server:
        first, second, third = [await server.complete(prompt, 4) for prompt in prompts]
    assert first.cached == 0
    assert second.evaluated <= 2 * 500
    assert third.evaluated == 500
    assert third.bits == (await cold(*flags, prompt=prompts[2], max_tokens=4)).bits
    ratio(second, 500)
    ratio(third, 500)
