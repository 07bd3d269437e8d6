"""Start, drain and end of the server process, as a service manager sees them."""

import asyncio
import json
import logging
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
import structlog

from svc.cli import main
from svc.gguf.gguf_file import GgufFile
from svc.gguf.writer import write_gguf
from tests.e2e.server_process import GGUF, ServerProcess, failed_start, serving

MODEL = "tiny-qwen35moe-Q4_K_M"
LONG = {"prompt": "On and on", "max_tokens": 300, "ignore_eos": True, "stream": True, "temperature": 0}


async def _opened(session: aiohttp.ClientSession) -> aiohttp.ClientResponse:
    """A long stream whose first token has come."""
    response = await session.post("/v1/completions", json=LONG)
    await response.content.readuntil(b"data: ")
    return response


async def test_drain_lets_streams_finish() -> None:
    """SIGTERM: not ready and refusing at once, the running stream goes to its end, exit code 0."""
    with serving(MODEL) as server:
        async with aiohttp.ClientSession(server.url) as session:
            stream = await _opened(session)
            server.signal()
            await asyncio.to_thread(server.wait_for, "draining")
            async with session.get("/readyz") as ready, session.get("/livez") as live:
                assert (ready.status, live.status) == (503, 200)
            async with session.post("/v1/completions", json={"prompt": "a"}) as refused:
                assert (refused.status, (await refused.json())["error"]["code"]) == (503, "draining")
                assert "Retry-After" in refused.headers
            rest = await stream.content.read()
        assert rest.endswith(b"data: [DONE]\n\n")
        events = [json.loads(b"{" + part.split(b"{", 1)[1]) for part in rest.split(b"\n\n") if b"{" in part]
        assert events[-1]["choices"][0]["finish_reason"] == "length"
        assert await asyncio.to_thread(server.wait) == 0


async def test_end_of_the_drain_time_cuts_streams_off() -> None:
    """With no time to finish, the stream ends with an error event, and the process still ends well."""
    with serving(MODEL, "--drain-s", "0") as server:
        async with aiohttp.ClientSession(server.url) as session:
            stream = await _opened(session)
            server.signal()
            rest = await stream.content.read()
        assert b"[DONE]" not in rest
        error = json.loads(rest.rstrip().rsplit(b"data: ", 1)[1])["error"]
        assert error["code"] == "draining"
        assert await asyncio.to_thread(server.wait) == 0


async def test_second_signal_ends_at_once() -> None:
    """Whoever cannot wait sends the signal again."""
    with serving(MODEL, "--drain-s", "600") as server:
        async with aiohttp.ClientSession(server.url) as session:
            await _opened(session)
            server.signal()
            await asyncio.to_thread(server.wait_for, "draining")
            server.signal()
            assert await asyncio.to_thread(server.wait) == -signal.SIGTERM


async def test_interrupt_drains_as_well() -> None:
    """Ctrl-C is no error."""
    with serving(MODEL) as server:
        server.signal(signal.SIGINT)
        assert await asyncio.to_thread(server.wait) == 0


def test_service_manager_is_told(tmp_path: Path) -> None:
    """READY=1 once it serves, WATCHDOG=1 while it is healthy, STOPPING=1 when it drains; all over sd_notify's datagrams."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        path = tmp_path / "notify"
        manager.bind(str(path))
        manager.settimeout(60)
        seen: list[str] = []

        def until(wanted: str) -> None:
            while wanted not in seen:
                seen.extend(manager.recv(4096).decode().splitlines())

        with serving(MODEL, environ={"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "200000"}) as server:
            until("READY=1")
            until("WATCHDOG=1")
            assert any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in seen[: seen.index("READY=1")])
            assert "STOPPING=1" not in seen
            server.signal()
            until("STOPPING=1")
            assert server.wait() == 0


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    """`main` sets up the logging of the whole process, with the captured stderr of one test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def odd_files(tmp_path: Path) -> Path:
    """A folder of files that cannot be used."""
    model = GGUF / f"{MODEL}.gguf"
    (tmp_path / "garbage.gguf").write_bytes(b"no model at all" * 100)
    (tmp_path / "short.gguf").write_bytes(model.read_bytes()[:-1000])
    (tmp_path / "bad.jinja").write_text("{% for %}")
    (tmp_path / "bad.toml").write_text("port = 8080\nprot = 1\n")
    (tmp_path / "bad-keys").write_text("two words\n")
    whole = GgufFile.open(model)
    tensors = {name: (tensor.data, tensor.type) for name, tensor in whole.tensors.items() if name != "blk.1.ssm_a"}
    write_gguf(tmp_path / "incomplete.gguf", whole.metadata, tensors)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["{tmp}/absent.gguf"], "absent.gguf"),
        (["{tmp}/garbage.gguf"], "garbage.gguf"),
        (["{tmp}/short.gguf"], "short.gguf"),
        (["{tmp}/incomplete.gguf"], "blk.1.ssm_a"),
        (["{model}", "--config", "{tmp}/bad.toml"], "prot"),
        (["{model}", "--chat-template-file", "{tmp}/absent.jinja"], "absent.jinja"),
        (["{model}", "--chat-template-file", "{tmp}/bad.jinja"], "bad.jinja"),
        (["{model}", "--api-key-file", "{tmp}/absent-keys"], "absent-keys"),
        (["{model}", "--api-key-file", "{tmp}/bad-keys"], "line 1"),
        (["{model}", "--cors-origins", "chat.example.org"], "chat.example.org"),
        (["{model}", "--host", "192.0.2.1"], "192.0.2.1"),
        (["{model}", "--host", "no such host"], "no such host"),
        (["{model}", "--snapshot-bytes", "1KiB"], "snapshot_bytes"),
        (["{model}", "--kv-bytes", "1KiB"], "kv_bytes"),
        (["{model}", "--override-kv", "qwen35moe.block_count=int:0"], "block_count"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(
    odd_files: Path, arguments: list[str], culprit: str, capsys: pytest.CaptureFixture[str], logging_as_before: None
) -> None:
    """Exit code 2 and a last line that names the culprit; no traceback. `--check` says the same with exit code 1.

    (Without a process each: those are slow to start.)
    """
    filled = [argument.format(tmp=odd_files, model=GGUF / f"{MODEL}.gguf") for argument in arguments]
    sentences = []
    for more, expected in ([], 2), (["--check"], 1):
        code, (stdout, stderr) = main(["serve", *filled, "--port", "0", *more]), capsys.readouterr()
        assert (code, stdout) == (expected, "")
        assert "Traceback" not in stderr
        sentences.append(stderr.splitlines()[-1])
    assert sentences[0] == sentences[1]
    assert sentences[0].startswith("headrace: ")
    assert culprit in sentences[0]


def test_what_can_be_served_passes_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str], logging_as_before: None) -> None:
    """One sentence on stdout and exit code 0; a port that a server uses, to be restarted perhaps, is mentioned."""
    (tmp_path / "keys").write_text("a\nb\n")
    arguments = ["serve", str(GGUF / f"{MODEL}.gguf"), "--check", "--kv-bytes", "32MiB", "--snapshot-bytes", "64MiB"]
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        assert main([*arguments, "--port", port, "--api-key-file", str(tmp_path / "keys")]) == 0
    stdout, stderr = capsys.readouterr()
    assert (len(stdout.splitlines()), stderr) == (1, "")
    for part in (MODEL, f"port {port} (in use now)", "8 slots", "2 API keys"):
        assert part in stdout
    assert main([*arguments, "--port", "0"]) == 0
    assert "in use" not in (stdout := capsys.readouterr().out)
    assert stdout.endswith("to everybody\n")


def test_port_that_is_taken() -> None:
    """Known before the model is loaded."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, stderr = failed_start(str(GGUF / f"{MODEL}.gguf"), "--port", str(port))
    assert code == 2
    assert stderr.splitlines()[-1] == f"headrace: port {port} on 127.0.0.1 is in use by another program"


def test_reference_serves_too() -> None:
    """The numpy oracle behind the same server; what does nothing there is said once."""
    with serving(MODEL, "--device", "reference") as server:
        assert any(isinstance(line, dict) and line["event"] == "option_without_effect" for line in server.lines)
        assert server.stop() == 0


def test_context_beyond_training_is_said_once() -> None:
    """`ctx` may go beyond what the model was trained for, with one clear word."""
    with ServerProcess(GGUF / f"{MODEL}.gguf", "--ctx", "8192") as server:
        warnings = [line for line in server.lines if isinstance(line, dict) and line["level"] == "warning"]
        assert [line["event"] for line in warnings] == ["beyond_training"]
        assert "4096" in warnings[0]["reason"]
        assert server.stop() == 0
