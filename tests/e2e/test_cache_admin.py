"""The operator's hands on the cache of a whole server, with the bundled model."""

from pathlib import Path
from typing import Any

import aiohttp

from svc.config import BUNDLED_MODEL
from tests.e2e.server_process import ServerProcess

SYSTEM = {"role": "system", "content": "You are a patient guide who knows every river of the country. " * 8}


def ask(text: str) -> dict[str, Any]:
    messages = [SYSTEM, {"role": "user", "content": text}]
    return {"messages": messages, "max_tokens": 2, "temperature": 0, "cache_report": True}


async def test_pin_report_flush(tmp_path: Path) -> None:
    """A pinned system text is what chats resume at, however many others pass; the report shows a holder its own other text and
    nobody else's; after a flush nothing is known, also after a restart."""
    keys = tmp_path / "keys"
    keys.write_text("ops:root admin\nann:a-key\nbob:b-key\n")
    flags = ("--api-key-file", str(keys), "--cache-dir", str(tmp_path / "cache"), "--ctx", "1024", "--snapshot-bytes", "12MiB")
    with ServerProcess(BUNDLED_MODEL, *flags) as server:
        async with aiohttp.ClientSession(server.url) as session:

            async def post(path: str, body: Any, key: str = "root") -> Any:
                async with session.post(path, json=body, headers={"x-api-key": key}) as response:
                    assert response.status == 200, await response.text()
                    return await response.json()

            pin = await post("/cache/pin", {"messages": [SYSTEM], "name": "rivers"})
            first = await post("/v1/chat/completions", ask("Where does it rise in the hills?"), "a-key")
            assert first["headrace"]["cache"]["resumed_at"] >= pin["n_tokens"] > 50
            for number in range(40):
                other = {"prompt": f"{number} " + "and so on " * 40, "max_tokens": 1}
                await post("/v1/completions", other, "b-key")
            for key in ("a-key", "b-key"):
                answer = await post("/v1/chat/completions", ask(f"Where does it end, {key}?"), key)
                report = answer["headrace"]["cache"]
                assert report["resumed_at"] >= pin["n_tokens"]
                assert report["tier"] == "device"
            async with session.get("/cache/pins", headers={"x-api-key": "root"}) as response:
                listed = await response.json()
            assert listed["pins"] == [pin]
            assert listed["used_bytes"] == pin["size"] <= listed["budget_bytes"]

            await post("/v1/chat/completions", ask("What is the name of the lake?"), "a-key")
            own = (await post("/v1/chat/completions", ask("What is the name of the town?"), "a-key"))["headrace"]["cache"]
            strange = (await post("/v1/chat/completions", ask("What is the name of the hill?"), "b-key"))["headrace"]["cache"]
            assert "lake" in own["difference"]["cached"]
            assert "town" in own["difference"]["prompt"]
            assert strange["difference"]["cached"] is None
            assert "hill" in strange["difference"]["prompt"]

            salted = [
                (await post("/v1/chat/completions", ask("What is the name of the lake?") | {"cache_salt": "s"}, "a-key"))[
                    "headrace"
                ]
                for _ in range(2)
            ]
            assert [each["cache"]["reason"] for each in salted] == ["no_match", "full"]

            flushed = await post("/cache/flush", {})
            assert flushed["n_pins"] == 1
            assert flushed["n_snapshots"] > 0
            cold = await post("/v1/chat/completions", ask("Where does it rise in the hills?") | {"cache_prompt": True}, "a-key")
            assert cold["headrace"]["cache"]["reason"] == "no_match"
            await post("/cache/flush", {})
        assert server.stop() == 0
    with ServerProcess(BUNDLED_MODEL, *flags) as server:
        async with (
            aiohttp.ClientSession(server.url) as session,
            session.post(
                "/v1/chat/completions", json=ask("Where does it rise in the hills?"), headers={"x-api-key": "ann"}
            ) as response,
        ):
            assert response.status == 401
        async with (
            aiohttp.ClientSession(server.url) as session,
            session.post("/v1/chat/completions", json=ask("Where does it rise?"), headers={"x-api-key": "a-key"}) as response,
        ):
            assert (await response.json())["headrace"]["cache"]["matched_tokens"] == 0
