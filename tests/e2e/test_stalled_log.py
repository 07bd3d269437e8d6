"""A server whose stderr is a pipe that nobody reads: a stalled log driver, a suspended terminal."""

import asyncio
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import aiohttp
import pytest

from tests.e2e.server_process import GGUF, PATIENCE_S, ROOT

pytestmark = pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="needs pipes of a chosen size")
MODEL = GGUF / "tiny-qwen35moe-Q4_K_M.gguf"
PIPE_BYTES = 4096
NUM_REQUESTS = 40  # whose log lines are several times as much


@dataclass
class Stalled:
    """The process, its URL, and the unread end of its stderr."""

    process: "subprocess.Popen[bytes]"
    url: str
    stderr: IO[bytes]

    async def wait(self) -> int:
        return await asyncio.to_thread(self.process.wait, PATIENCE_S)


def start(address: Path) -> tuple["subprocess.Popen[bytes]", IO[bytes]]:
    """The process, and the reading end of its stderr."""
    source, sink = os.pipe()
    fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    command = [sys.executable, "-m", "svc.cli", "serve", str(MODEL), "--port", "0", "--log-format", "json", "--threads", "2"]
    budgets = ["--kv-bytes", "32MiB", "--snapshot-bytes", "64MiB"]
    process = subprocess.Popen([*command, *budgets], cwd=ROOT, env={**os.environ, "NOTIFY_SOCKET": str(address)}, stderr=sink)
    os.close(sink)
    return process, os.fdopen(source, "rb")


@asynccontextmanager
async def stalled_server(folder: Path) -> AsyncIterator[Stalled]:
    """Ready, and its stderr full: every request so far has logged a line."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(folder / "notify"))
        manager.settimeout(PATIENCE_S)
        process, stderr = start(folder / "notify")
        try:
            while not (message := await asyncio.to_thread(manager.recv, 4096)).startswith(b"READY=1"):
                pass
            server = Stalled(process, message.decode().split(" on ")[1], stderr)
            async with aiohttp.ClientSession(server.url) as session:
                for _ in range(NUM_REQUESTS):
                    async with session.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}) as response:
                        assert response.status == 200
                async with session.get("/metrics") as response:
                    assert "headrace_log_lines_dropped_total 0.0" in await response.text()
            yield server
        finally:
            process.kill()
            process.wait()
            stderr.close()


async def test_requests_and_the_end_do_not_wait_for_the_log(tmp_path: Path) -> None:
    """Everything is answered, SIGTERM drains, and the exit code is 0, although stderr is never read."""
    async with stalled_server(tmp_path) as server:
        server.process.send_signal(signal.SIGTERM)
        assert await server.wait() == 0


async def test_a_reader_that_comes_back_gets_every_line(tmp_path: Path) -> None:
    """What waited is written while the process ends, its last line included."""
    async with stalled_server(tmp_path) as server:
        received: list[Any] = []
        reader = threading.Thread(target=lambda: received.extend(map(json.loads, server.stderr)))
        server.process.send_signal(signal.SIGTERM)
        reader.start()
        assert await server.wait() == 0
        await asyncio.to_thread(reader.join)
    events = [line["event"] for line in received]
    assert (events.count("request"), events[-1]) == (NUM_REQUESTS, "stopped")
