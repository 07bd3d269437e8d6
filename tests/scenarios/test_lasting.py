"""What outlives the memory and the process: saved slots, and the cache on disk. Exact expectations, against a fresh server."""

import asyncio
import os
import random
from pathlib import Path
from typing import Any

import pytest

from svc.disk.records import RECORD
from tests.scenarios.server import Message, Reply, Server, message
from tests.scenarios.test_scenarios import cold, conversation, ids, on_both_models, words

pytestmark = pytest.mark.timeout(240)


def edited(messages: list[Message]) -> list[Message]:
    return [*messages[:-1], message("user", "Something else: " + words(15, 77))]


async def act(server: Server, action: str, name: str, slot: int = 0) -> tuple[int, dict[str, Any]]:
    return await server.status(f"/slots/{slot}?action={action}", {"filename": name})


async def resumed(flags: tuple[str, ...], messages: list[Message], first: Reply) -> tuple[Reply, Reply]:
    """The same conversation and an edited one, on a server that has just answered it."""
    async with Server(*flags) as server:
        assert (await server.chat(messages)).bits == first.bits
        return await server.chat(messages), await server.chat(edited(messages))


@on_both_models
@pytest.mark.usefixtures("served")
async def test_8_a_slot_saved_and_restored_by_another_process(tmp_path: Path) -> None:
    """After a kill the restored conversation, and an edit of its last message, are as warm as if never stopped."""
    messages, flags = conversation(4), ("--slot-save-path", str(tmp_path))
    async with Server(*flags) as server:
        first = await server.chat(messages)
        status, saved = await act(server, "save", "talk.bin")
        assert (status, saved["n_saved"]) == (200, first.prompt_tokens + len(first.ids) - 1)
        assert saved["n_written"] == (tmp_path / "talk.bin").stat().st_size
        await server.kill()
    hot = await resumed(flags, messages, first)
    async with Server(*flags) as server:
        status, restored = await act(server, "restore", "talk.bin", slot=1)
        assert (status, restored["n_restored"], restored["n_read"]) == (200, saved["n_saved"], saved["n_written"])
        warm = await server.chat(messages), await server.chat(edited(messages))
    for ours, theirs in zip(warm, hot, strict=True):
        assert (ours.cached, ours.bits) == (theirs.cached, theirs.bits)
    assert warm[0].cached == warm[0].prompt_tokens
    assert warm[1].bits == (await cold(messages=edited(messages))).bits


def _flipped(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


def _later(data: bytes) -> bytes:
    return data[:8] + b"\x63" + data[9:]


BAD = {
    "without its last byte": (lambda data: data[:-1], "cannot be restored: it ends within a record"),
    "without its last record": (lambda data: data[: -RECORD.size], "cannot be restored: it is cut off"),
    "half": (lambda data: data[: len(data) // 2], "cannot be restored: it ends within a record"),
    "flipped": (_flipped, "cannot be restored: a record's contents are damaged"),
    "a later version": (_later, "cannot be restored: its format has the version 99"),
    "foreign": (lambda data: b"GGUF" + data[4:], "cannot be restored: it is no cache file"),
    "empty": (lambda data: b"", "cannot be restored: it is no cache file"),
}


async def test_8_files_that_cannot_be_restored_change_nothing(tmp_path: Path) -> None:
    """Damaged, foreign and outside of the folder: one sentence each, and what the server knows is what it knew."""
    messages, flags = conversation(3), ("--slot-save-path", str(tmp_path))
    other = [message("user", words(60, 5))]
    async with Server(*flags) as server:
        await server.chat(messages)
        assert (await act(server, "save", "talk.bin"))[0] == 200
        assert (await act(server, "erase", "talk.bin"))[0] == 200
        assert (await act(server, "save", "again.bin"))[1]["error"]["code"] == "slot_empty"
        await server.chat(other)
        data = (tmp_path / "talk.bin").read_bytes()
        for name, (change, reason) in BAD.items():
            (tmp_path / "bad.bin").write_bytes(change(data))
            status, answer = await act(server, "restore", "bad.bin")
            assert status == 400, name
            assert reason in answer["error"]["message"], name
        (tmp_path / "link.bin").symlink_to(tmp_path / "talk.bin")
        assert "symbolic link" in (await act(server, "restore", "link.bin"))[1]["error"]["message"]
        for name in ("../talk.bin", "/etc/passwd", "a/b", "..", ".hidden", "", "a\0b", "x" * 300):
            for action in ("save", "restore"):
                status, answer = await act(server, action, name)
                assert (status, answer["error"]["code"]) == (400, "invalid_filename"), name
        assert (await act(server, "restore", "missing.bin"))[1]["error"]["code"] == "slot_file_not_found"
        assert (await act(server, "restore", "talk.bin", slot=99))[0] == 400
        assert (await act(server, "eat", "talk.bin"))[0] == 400
        assert (await server.chat(messages)).cached < 10
        again = await server.chat(other)
        assert again.cached == again.prompt_tokens
    assert sorted(os.listdir(tmp_path)) == ["bad.bin", "link.bin", "talk.bin"]


async def test_8_slots_of_another_model_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--slot-save-path", str(tmp_path))
    async with Server(*flags) as server:
        await server.chat(conversation(2))
        await act(server, "save", "talk.bin")
    async with Server(*flags, "--page-tokens", "64") as server:
        answer = (await act(server, "restore", "talk.bin"))[1]
        assert "page_tokens=32, and the server has 64" in answer["error"]["message"]
    async with Server(*flags, "--rope-freq-base", "20000") as server:
        answer = (await act(server, "restore", "talk.bin"))[1]
        assert "belongs to another model, or to other settings" in answer["error"]["message"]


async def test_8_a_request_chooses_the_number_it_is_saved_under(tmp_path: Path) -> None:
    """`id_slot` of llama-server: each conversation under its own number, whichever slot computed it."""
    async with Server("--slot-save-path", str(tmp_path)) as server:
        talks = [await server.chat(conversation(turns), id_slot=turns) for turns in (1, 2, 3)]
        for turns, talk in enumerate(talks, start=1):
            assert (await act(server, "save", f"{turns}.bin", slot=turns))[1]["n_saved"] == talk.prompt_tokens + 7
        status, answer = await server.status("/v1/chat/completions", {"messages": conversation(1), "id_slot": "two"})
        assert (status, answer["error"]["param"]) == (400, "id_slot")


async def test_slots_are_not_saved_without_a_folder() -> None:
    async with Server() as server:
        await server.chat(conversation(1))
        for action in ("save", "restore"):
            status, answer = await act(server, action, "talk.bin")
            assert (status, answer["error"]["code"]) == (400, "not_supported")
            assert "--slot-save-path" in answer["error"]["message"]


@on_both_models
@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("end", ["term", "kill"])
async def test_the_cache_on_disk_is_warm_after_a_restart(tmp_path: Path, end: str) -> None:
    """The conversation of before gets exactly what it would have got, with the same bits; so does an edit of it."""
    messages, flags = conversation(4), ("--cache-dir", str(tmp_path))
    async with Server(*flags) as server:
        first = await server.chat(messages)
        if end == "kill":
            await asyncio.sleep(1.5)  # the disk is another process's: there is nothing to wait on
            await server.kill()
    hot = await resumed((), messages, first)
    async with Server(*flags) as server:
        warm = await server.chat(messages), await server.chat(edited(messages))
    for ours, theirs in zip(warm, hot, strict=True):
        assert (ours.cached, ours.bits) == (theirs.cached, theirs.bits)
    assert warm[0].cached == warm[0].prompt_tokens


async def test_15_with_a_disk_what_others_have_pushed_out_comes_back(tmp_path: Path) -> None:
    """As scenario 15, but nothing is evaluated again."""
    flags = ("--max-slots", "2", "--snapshot-bytes", "2MiB", "--kv-bytes", "512KiB", "--cache-dir", str(tmp_path))
    async with Server(*flags) as server:
        first = await server.complete(ids(400), 8)
        for seed in range(1, 8):
            await server.complete(ids(400, seed), 8)
            await asyncio.sleep(0.3)
        again = await server.complete(ids(400), 8)
    assert again.cached == again.prompt_tokens
    assert again.bits == first.bits


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_kills_under_load(tmp_path: Path) -> None:
    """Twenty times: several conversations at once, and the server is killed in the middle. Every answer of the next one is that of
    a server that knows nothing."""
    flags, rng, warm = ("--cache-dir", str(tmp_path), "--kv-bytes", "2MiB", "--snapshot-bytes", "4MiB"), random.Random(5), 0
    prompts = [ids(rng.randrange(30, 300), seed) for seed in range(8)]
    controls = [await cold(prompt=prompt, max_tokens=8) for prompt in prompts]
    for _ in range(20):
        async with Server(*flags) as server:
            for index in rng.sample(range(8), 3):
                reply = await server.complete(prompts[index], 8)
                assert reply.bits == controls[index].bits
                warm += reply.cached > 0
            asked = [asyncio.ensure_future(server.complete(prompt, 40)) for prompt in rng.sample(prompts, 4)]
            await asyncio.sleep(rng.uniform(0.0, 0.5))
            await server.kill()
            await asyncio.gather(*asked, return_exceptions=True)
    assert warm >= 20
