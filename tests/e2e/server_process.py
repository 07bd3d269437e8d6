"""A real `headrace serve` process on a free loopback port, and what it logs."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parent.parent.parent
GGUF = ROOT / "tests" / "data" / "gguf"
PATIENCE_S = 60.0  # for a slow machine; nothing waits that long in a run that passes

Line = dict[str, Any]


class ServerProcess:
    """Use as a context manager: entering waits until it serves, leaving ends it (`stop` first to see how it ended)."""

    def __init__(self, model: Path | str, *flags: str, environ: Mapping[str, str] | None = None) -> None:
        # Small budgets: what a test needs, whatever the machine has.
        budgets = ["--kv-bytes", "32MiB", "--snapshot-bytes", "64MiB", "--threads", "2"]
        command = [sys.executable, "-m", "svc.cli", "serve", str(model), "--port", "0", "--log-format", "json", *budgets, *flags]
        clean = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
        self.process = subprocess.Popen(
            command, cwd=ROOT, env={**clean, **(environ or {})}, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        self.lines: list[Line | str] = []  # all of stderr so far; a line that is no JSON as it is
        self._unseen: queue.SimpleQueue[Line | str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for raw in self.process.stderr:
            line = _parsed(raw)
            self.lines.append(line)
            self._unseen.put(line)
        self._unseen.put(None)

    def __enter__(self) -> "ServerProcess":
        try:
            self.url: str = self.wait_for("serving")["url"]
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def wait_for(self, event: str) -> Line:
        """The next log line of that event."""
        while True:
            line = self._unseen.get(timeout=PATIENCE_S)
            if line is None:
                raise AssertionError(f"the server ended before {event!r}: {self.lines}")
            if isinstance(line, dict) and line.get("event") == event:
                return line

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit code, once the process has ended."""
        code = self.process.wait(PATIENCE_S)
        self._reader.join()
        return code

    def stop(self) -> int:
        self.signal()
        return self.wait()


def _parsed(raw: str) -> Line | str:
    try:
        value = json.loads(raw)
    except ValueError:
        return raw.rstrip("\n")
    return value if isinstance(value, dict) else raw


def failed_start(*arguments: str, environ: Mapping[str, str] | None = None) -> tuple[int, str]:
    """(exit code, stderr) of a serve command that must end by itself."""
    command = [sys.executable, "-m", "svc.cli", "serve", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(environ or {})}, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    return done.returncode, done.stderr


@contextmanager
def serving(model: str, *flags: str, environ: Mapping[str, str] | None = None) -> Iterator[ServerProcess]:
    """A server of one of the tiny models in tests/data/gguf."""
    with ServerProcess(GGUF / f"{model}.gguf", *flags, environ=environ) as server:
        yield server
