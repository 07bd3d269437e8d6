"""SIGHUP, SIGUSR1 and SIGUSR2 at a real server: none of them ends it."""

import asyncio
import fcntl
import hashlib
import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path

import aiohttp

from tests.e2e.server_process import GGUF, PATIENCE_S, ROOT, Line, ServerProcess

MODEL = GGUF / "tiny-qwen35moe-Q4_K_M.gguf"


async def status(server: ServerProcess, key: str) -> int:
    async with aiohttp.ClientSession(server.url) as session, session.get("/v1/models", headers={"x-api-key": key}) as response:
        return response.status


async def logged(server: ServerProcess, event: str) -> Line:
    return await asyncio.to_thread(server.wait_for, event)


async def test_hang_up_reads_the_keys_again(tmp_path: Path) -> None:
    """New keys count and old ones no longer; a file that cannot be used changes nothing and is named; no key is logged."""
    file = tmp_path / "api-keys"
    file.write_text("key-one\n")
    with ServerProcess(MODEL, "--api-key-file", str(file)) as server:
        file.write_text("key-two\nkey-three\n")
        assert (await status(server, "key-one"), await status(server, "key-two")) == (200, 401)
        server.signal(signal.SIGHUP)
        assert (await logged(server, "api_keys_reloaded"))["number"] == 2
        assert (await status(server, "key-one"), await status(server, "key-two")) == (401, 200)

        file.write_text("key-four\nnot a key-five\n")
        server.signal(signal.SIGHUP)
        refused = await logged(server, "api_keys_kept")
        assert (refused["level"], str(file) in refused["reason"], "line 2" in refused["reason"]) == ("error", True, True)
        file.unlink()
        server.signal(signal.SIGHUP)
        assert "No such file" in (await logged(server, "api_keys_kept"))["reason"]
        assert (await status(server, "key-two"), await status(server, "key-four")) == (200, 401)

        assert await asyncio.to_thread(server.stop) == 0
        assert "key-" not in "".join(map(str, server.lines))


async def test_hang_up_reads_names_and_limits_again(tmp_path: Path) -> None:
    """A hashed key with a name and a limit takes the place of a plain one; a bad limit keeps it, and the line is named."""
    file = tmp_path / "api-keys"
    file.write_text("key-one\n")

    async def ask(session: aiohttp.ClientSession) -> int:
        async with session.post("/tokenize", json={"content": "a"}, headers={"x-api-key": "key-two"}) as response:
            return response.status

    with ServerProcess(MODEL, "--api-key-file", str(file)) as server:
        digest = hashlib.sha256(b"key-two").hexdigest()
        file.write_text(f"alice:sha256:{digest} rpm=2\n")
        server.signal(signal.SIGHUP)
        assert (await logged(server, "api_keys_reloaded"))["number"] == 1
        file.write_text(f"alice:sha256:{digest} rpm=many\n")
        server.signal(signal.SIGHUP)
        assert "line 1" in (await logged(server, "api_keys_kept"))["reason"]
        async with aiohttp.ClientSession(server.url) as session:
            assert [await ask(session) for _ in range(3)] == [200, 200, 429]
        assert await asyncio.to_thread(server.stop) == 0
        lines = [line for line in server.lines if isinstance(line, dict) and line["event"] == "request"]
        assert [line.get("key") for line in lines if line["path"] == "/tokenize"] == ["alice"] * 3
        assert digest not in "".join(map(str, server.lines))


async def test_user_signals() -> None:
    """SIGUSR1 is a line about the state, SIGUSR2 the stack of every thread; without a key file SIGHUP says that nothing is done."""
    with ServerProcess(MODEL) as server:
        server.signal(signal.SIGUSR1)
        state = await logged(server, "state")
        assert (state["readiness"], state["running"], state["slots"]) == ("ready", 0, 8)
        assert state["kv_pages_cached"] <= state["kv_pages"]
        server.signal(signal.SIGHUP)
        await logged(server, "nothing_to_reload")

        server.signal(signal.SIGUSR2)
        server.signal(signal.SIGUSR1)
        await logged(server, "state")
        stacks = [line for line in server.lines if isinstance(line, str)]
        assert any("most recent call first" in line for line in stacks)
        assert any("run_server" in line for line in stacks)
        assert await asyncio.to_thread(server.stop) == 0


def test_a_closed_terminal_ends_the_server() -> None:
    """The kernel says so with SIGHUP: whoever closes the window does not want a server that nobody sees. It drains."""
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    command = [sys.executable, "-m", "svc.cli", "serve", str(MODEL), "--port", "0", "--log-format", "json", "--threads", "2"]
    budgets = ["--kv-bytes", "32MiB", "--snapshot-bytes", "64MiB"]
    streams = {"stdin": theirs, "stdout": theirs, "stderr": subprocess.PIPE}
    process = subprocess.Popen([*command, *budgets], cwd=ROOT, **streams, start_new_session=True, preexec_fn=take_terminal)
    os.close(theirs)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if b'"serving"' in line:
                process.send_signal(signal.SIGHUP)
            if b"nothing_to_reload" in line:  # the terminal is there: a reload
                os.close(ours)
            if b'"draining"' in line:
                break
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
