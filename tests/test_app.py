"""What app.py decides itself: which device, which template, what it warns of, and an end while loading."""

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
from svc.compute.cpu.ops import CpuOps
from svc.config import Config
from svc.errors import BackendUnavailableError, ConfigError

MODEL = str(Path(__file__).parent / "data" / "gguf" / "tiny-qwen3next-Q4_K_M.gguf")


@pytest.fixture
def captured() -> LogCapture:
    return LogCapture()


@pytest.fixture
def logger(captured: LogCapture) -> Any:
    return structlog.wrap_logger(structlog.PrintLogger(), processors=[captured], wrapper_class=structlog.stdlib.BoundLogger)


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: CpuOps, *args: Any, **kwargs: Any) -> None:
        raise BackendUnavailableError("the cpu device was not built")

    monkeypatch.setattr(CpuOps, "__init__", refuse)


def test_auto_falls_back_with_one_warning(no_kernels: None, logger: Any, captured: LogCapture) -> None:
    """Where the kernels were not built, the reference serves, and says so once."""
    assert app.choose_ops(Config(), logger).name == "reference"
    (line,) = [entry for entry in captured.entries if entry["log_level"] == "warning"]
    assert "was not built" in line["reason"]


def test_cpu_asked_for_is_cpu_or_an_error(no_kernels: None, logger: Any, captured: LogCapture) -> None:
    """Who names the device gets it or hears why not."""
    with pytest.raises(BackendUnavailableError):
        app.choose_ops(Config(device="cpu"), logger)
    assert app.choose_ops(Config(device="reference"), logger).name == "reference"
    assert captured.entries == []


def test_model_name() -> None:
    """The operator's name, else the file's own."""
    assert app.model_name(Config(model="/models/big-Q4.gguf")) == "big-Q4"
    assert app.model_name(Config(model="/models/big-Q4.gguf", model_name="big")) == "big"


def test_template_file_wins(tmp_path: Path, logger: Any) -> None:
    """The operator's template replaces the file's; one that is no UTF-8 is refused by name."""
    path = tmp_path / "own.jinja"
    path.write_text("{{ messages[0].content }}!")
    loaded = app.load(_small(chat_template_file=str(path)), logger, lambda done, total: None)
    assert loaded.template is not None
    assert loaded.template.render([{"role": "user", "content": "hi"}], add_generation_prompt=True) == "hi!"
    path.write_bytes(b"\xff\xff")
    with pytest.raises(ConfigError, match=r"own\.jinja"):
        app.load(_small(chat_template_file=str(path)), logger, lambda done, total: None)


def _small(**settings: Any) -> Config:
    return Config(model=MODEL, port=0, device="reference", kv_bytes=2**23, snapshot_bytes=2**24, **settings)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_while_loading(
    number: signal.Signals, logger: Any, captured: LogCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the model loads the server answers 503; a signal ends the load at its next tensor, and the port is closed."""
    loading, go_on = threading.Event(), threading.Event()

    def load(config: Config, logger: Any, progress: app.Progress, on_compile: object) -> app.Loaded:
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
