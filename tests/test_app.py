"""What app.py decides itself: the end of a server that is still loading."""

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
from structlog.testing import LogCapture

from svc import app
from svc.config import Config
from svc.model_loading import LoadedModel, Progress

MODEL = str(Path(__file__).parent / "data" / "gguf" / "tiny-qwen3next-Q4_K_M.gguf")


@pytest.fixture
def captured() -> LogCapture:
    return LogCapture()


@pytest.fixture
def logger(captured: LogCapture) -> Any:
    return structlog.wrap_logger(structlog.PrintLogger(), processors=[captured], wrapper_class=structlog.stdlib.BoundLogger)


def _small(**settings: Any) -> Config:
    return Config(model=MODEL, port=0, device="reference", kv_bytes=2**23, snapshot_bytes=2**24, **settings)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_while_loading(
    number: signal.Signals, logger: Any, captured: LogCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the model loads the server answers 503; a signal ends the load at its next tensor, and the port is closed."""
    loading, go_on = threading.Event(), threading.Event()

    def load(config: Config, logger: Any, progress: Progress, on_compile: object) -> LoadedModel:
        loading.set()
        assert go_on.wait(30)
        progress(1, 2)
        raise AssertionError("progress() lets a load go on that nobody wants any more")

    monkeypatch.setattr(app, "load", load)
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    serving = asyncio.create_task(app.serve(_small(), logger))
    try:
        await asyncio.to_thread(loading.wait, 30)
        url = next(line["url"] for line in captured.entries if line["event"] == "listening")
        async with aiohttp.ClientSession(url) as session:
            async with session.get("/readyz") as response:
                assert response.status == 503
            os.kill(os.getpid(), number)
            while signal.getsignal(number) is not signal.SIG_DFL:  # noqa: ASYNC110
                await asyncio.sleep(0)  # the loop has yet to hear of the signal
            go_on.set()
            assert await serving == (app.EXIT_INTERRUPTED if number is signal.SIGINT else 0)
            with pytest.raises(aiohttp.ClientConnectionError):
                await session.get("/livez")
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
