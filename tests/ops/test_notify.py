"""What the service manager hears from a real server, from its start to its end."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import structlog
from structlog.testing import LogCapture

from svc import app
from svc.compute.cuda import cupy_device
from svc.config import Config
from svc.lifecycle import KernelProgress, LoadInterruptedError, Notifier, Shutdown
from tests.cuda_emulator.build import have_compiler
from tests.cuda_emulator.device import EmulatedDevice
from tests.e2e.server_process import ServerProcess
from tests.scenarios.server import MODEL, Server

WATCHDOG_S = 0.1
PATIENCE_S = 60.0  # for a slow machine; nothing waits that long in a run that passes


class Manager:
    """The manager's end of NOTIFY_SOCKET: reads all the time, as systemd does, and remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._news = asyncio.Condition()

    @asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator["Manager"]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.bind(str(path))
            sock.setblocking(False)
            reader = asyncio.create_task(self._read(sock))
            try:
                yield self
            finally:
                reader.cancel()

    async def _read(self, sock: socket.socket) -> None:
        while True:
            message = await asyncio.get_running_loop().sock_recv(sock, 65536)
            async with self._news:
                self.lines += message.decode().splitlines()
                self._news.notify_all()

    async def hears(self, line: str, times: int = 1) -> None:
        """Waits until `line` has come that many times more than until now."""
        wanted = self.lines.count(line) + times
        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(lambda: self.lines.count(line) >= wanted)


@pytest.fixture
async def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Manager]:
    """A manager whose address and watchdog the processes started here inherit."""
    path = tmp_path / "notify"
    monkeypatch.setenv("NOTIFY_SOCKET", str(path))
    monkeypatch.setenv("WATCHDOG_USEC", str(int(WATCHDOG_S * 1e6)))
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    async with Manager().listening(path) as listening:
        yield listening


async def test_life_of_a_service(manager: Manager) -> None:
    """Loading asks for time; READY=1 once, when the server is ready; WATCHDOG=1 idle and working; STOPPING=1; exit code 0."""
    ready = asyncio.create_task(manager.hears("READY=1"))
    async with Server("--ctx", "8192", "--drain-s", "0") as server:
        await ready
        before = manager.lines[: manager.lines.index("READY=1")]
        assert any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in before)
        assert "WATCHDOG=1" not in before

        await manager.hears("WATCHDOG=1", times=3)
        async for _ in server.stream("/v1/completions", prompt=[5, 6, 7], max_tokens=8000):  # its first token has come
            await manager.hears("WATCHDOG=1", times=3)
            assert await server.metric("num_requests_running") == 1
            assert "STOPPING=1" not in manager.lines
            stopping = asyncio.create_task(manager.hears("STOPPING=1"))
            server.process.signal()
            await stopping
            assert await asyncio.to_thread(server.process.wait) == 0
            break
    assert manager.lines.count("READY=1") == manager.lines.count("STOPPING=1") == 1
    assert manager.lines[manager.lines.index("STOPPING=1") + 2] == "EXTEND_TIMEOUT_USEC=30000000"  # drain_s and a little more


async def test_ready_is_said_when_it_is_true(manager: Manager) -> None:
    """Whoever is told READY=1 may send requests at once: the start of units ordered after this one hangs on it."""
    listening = ServerProcess(MODEL)
    try:
        await manager.hears("READY=1")
        url = listening.wait_for("listening")["url"]
        async with aiohttp.ClientSession() as session, session.get(f"{url}/readyz") as response:
            assert response.status == 200
    finally:
        listening.__exit__(None, None, None)


@pytest.mark.skipif(not have_compiler(), reason="the CUDA emulator needs g++")
async def test_compiling_kernels_asks_for_time(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first start on a GPU compiles for a minute or more behind the load: each kernel is named to the manager and gets the
    start more time, the log says how many there were, and none is told of once the server is ready."""
    monkeypatch.setattr(cupy_device, "open_cupy_device", lambda index: EmulatedDevice())
    captured = LogCapture()
    logger = structlog.wrap_logger(
        structlog.PrintLogger(), processors=[captured], wrapper_class=structlog.stdlib.BoundLogger, cache_logger_on_first_use=False
    )
    config = Config(model=str(MODEL), device="cuda", port=0, ctx=256, max_step_tokens=16, max_slots=1, drain_s=0)
    ready = asyncio.create_task(manager.hears("READY=1"))
    serving = asyncio.create_task(app.serve(config, logger))
    await asyncio.wait([ready, serving], return_when=asyncio.FIRST_COMPLETED)
    assert not serving.done()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await serving == 0
    before = manager.lines[: manager.lines.index("READY=1")]
    told = [index for index, line in enumerate(before) if line.startswith("STATUS=compiling kernels: number ")]
    assert len(told) > 5
    assert before[told[0]].startswith("STATUS=compiling kernels: number 1, ")
    assert all(before[index + 1] == "EXTEND_TIMEOUT_USEC=60000000" for index in told)
    assert told[0] > max(index for index, line in enumerate(before) if line.startswith("STATUS=loading: "))
    assert not any("compiling" in line for line in manager.lines[len(before) :])
    counts = [entry["kernels"] for entry in captured.entries if entry["event"] == "kernels_ready"]
    assert counts == [len(told)]


def test_a_signal_while_kernels_compile() -> None:
    """The start ends before the next one is compiled; a kernel that is compiled later, while requests run, is nobody's business."""
    shutdown, logger = Shutdown(), structlog.wrap_logger(structlog.PrintLogger(), processors=[LogCapture()])
    kernels = KernelProgress(logger, Notifier(None), shutdown)
    kernels("gemv QUANT=Q4_K")
    shutdown.cause = signal.SIGTERM
    with pytest.raises(LoadInterruptedError):
        kernels("gemm QUANT=Q4_K")
    kernels.finish()
    kernels("gemm QUANT=Q4_K")


async def test_watchdog_of_another_process_is_none_of_ours(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    """sd_watchdog_enabled(3): WATCHDOG_PID names the process that is watched."""
    monkeypatch.setenv("WATCHDOG_PID", "1")
    async with Server() as server:
        await server.complete([5, 6, 7], 30)
    assert "STOPPING=1" in manager.lines
    assert "WATCHDOG=1" not in manager.lines
