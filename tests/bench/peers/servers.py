"""Servers of one model, ours and the peers': how soon they are ready, how soon the first token comes, what memory they hold."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from svc.gguf.gguf_file import GgufFile
from svc.model.arch import read_config

ROOT = Path(__file__).parents[3]
PAGE_TOKENS = 16  # any number: only bytes per token are asked for
POLL_S = 0.005
PATIENCE_S = 180.0
T = TypeVar("T")
Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Setting:
    """The same for all: slots with a context of so many tokens each."""

    model: Path
    context: int
    slots: int
    threads: int


class ServerKind(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def libraries(self) -> Path | None:
        """A folder of libraries that are found before the program's own."""
        ...

    def command(self, setting: Setting, port: int) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class HeadraceServer:
    name: str = "headrace"
    flags: tuple[str, ...] = ("--activations", "int8")
    libraries: Path | None = None

    def command(self, setting: Setting, port: int) -> list[str]:
        layout = read_config(GgufFile.open(setting.model)).memory_layout(PAGE_TOKENS, "f16")
        kv_bytes = layout.kv_bytes_per_token * setting.context * setting.slots
        base = [sys.executable, "-m", "svc.cli", "serve", str(setting.model), "--port", str(port), "--device", "cpu"]
        sizes = ["--ctx", str(setting.context), "--max-slots", str(setting.slots), "--kv-bytes", str(kv_bytes)]
        return [*base, *sizes, "--threads", str(setting.threads), *self.flags]


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """`llama-server` of either peer. `flags`: what makes a variant of it."""

    name: str
    folder: Path
    flags: tuple[str, ...] = ()
    libraries: Path | None = None

    def command(self, setting: Setting, port: int) -> list[str]:
        base = [str(self.folder / "llama-server"), "-m", str(setting.model), "--host", "127.0.0.1", "--port", str(port)]
        sizes = ["-c", str(setting.context * setting.slots), "-np", str(setting.slots)]
        return [*base, *sizes, "-t", str(setting.threads), "-tb", str(setting.threads), *self.flags]


class Server:
    """One process. A context manager: entering waits until /health says 200 (`ready_s` after the process was started)."""

    def __init__(self, kind: ServerKind, setting: Setting) -> None:
        self.name = kind.name
        self._port = free_port()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        self._began = time.perf_counter()
        command, environ = kind.command(setting, self._port), with_libraries(kind.libraries)
        self._folder = tempfile.TemporaryDirectory()  # some leave logs where they run
        cwd = ROOT if command[0] == sys.executable else self._folder.name
        self._process = subprocess.Popen(command, cwd=cwd, env=environ, stdout=self._log, stderr=self._log)

    def __enter__(self) -> "Server":
        try:
            while self._status() != 200:
                if self._process.poll() is not None or time.perf_counter() - self._began > PATIENCE_S:
                    raise RuntimeError(f"{self.name} does not serve: {self.last_lines()}")
                time.sleep(POLL_S)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self.ready_s = time.perf_counter() - self._began
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._log.close()
        self._folder.cleanup()

    def last_lines(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-2000:]

    def _status(self) -> int:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
            connection.request("GET", "/health")
            return connection.getresponse().status
        except OSError:
            return 0

    def first_token(self, messages: Messages) -> tuple[float, int]:
        """Seconds until the first token of the answer has come, and the prompt's length in tokens.

        The answer ends with that token: what it says may be half a character, which servers keep back; its end they cannot.
        """
        asked = self.ask(messages, 1)
        return asked.first_s, asked.prompt_tokens

    def ask(self, messages: Messages, max_tokens: int) -> "Asked":
        """A streamed chat completion, read to its end. RuntimeError for any status but 200 and for an answer without a token."""
        options = {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        body = {"messages": messages, "max_tokens": max_tokens, **options}
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{self.name}: {response.status} {response.read()[:500]!r}")
        first_s, events = None, []
        for raw in response:
            event = parse_event(raw)
            if event is None:
                continue
            events.append(event)
            if first_s is None and says_something(event):
                first_s = time.perf_counter() - began
        if first_s is None:
            raise RuntimeError(f"{self.name} gave no token")
        return read_answer(events, first_s)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request that does not stream. RuntimeError for any status but 200."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        connection.close()
        if response.status != 200:
            raise RuntimeError(f"{self.name}: {response.status} {answer[:500]!r}")
        found: dict[str, Any] = json.loads(answer)
        return found

    def get(self, path: str) -> str:
        """The text of a page. RuntimeError for any status but 200."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        connection.request("GET", path)
        response = connection.getresponse()
        answer = response.read().decode()
        connection.close()
        if response.status != 200:
            raise RuntimeError(f"{self.name}: {response.status} {answer[:500]}")
        return answer

    def memory(self) -> dict[str, int]:
        """Bytes in memory: all that the process has mapped and touched, and the part that is not a file's."""
        return resident(Path(f"/proc/{self._process.pid}/status").read_text())


def parse_event(raw: bytes) -> dict[str, Any] | None:
    """The JSON of one line of a stream of events; None for other lines and the closing mark."""
    line = raw.decode().strip()
    if not line.startswith("data:") or line.endswith("[DONE]"):
        return None
    event: dict[str, Any] = json.loads(line.removeprefix("data:"))
    return event


@dataclass(frozen=True, slots=True)
class Asked:
    """What one answer says about itself."""

    first_s: float  # from the request until the first token
    prompt_tokens: int
    evaluated_tokens: int  # of the prompt, without those that the server took from a cache
    text: str


def read_answer(events: Sequence[dict[str, Any]], first_s: float) -> Asked:
    """From the events of a whole answer. ValueError if its usage and its timings (where it has them) count differently."""
    text = ""
    usage: dict[str, Any] = {}
    timings: dict[str, Any] = {}
    for event in events:
        usage = event.get("usage") or usage
        timings = event.get("timings") or timings
        for choice in event.get("choices", ()):
            text += choice.get("delta", {}).get("content") or ""
    evaluated = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
    if timings and timings["prompt_n"] != evaluated:
        raise ValueError(f"usage says {evaluated} evaluated tokens, timings {timings['prompt_n']}")
    return Asked(first_s, usage["prompt_tokens"], evaluated, text)


def says_something(event: dict[str, Any]) -> bool:
    """Text, of either kind, or the end of the answer; not the role that some send ahead."""
    for choice in event.get("choices", ()):
        delta = choice.get("delta", {})
        if delta.get("content") or delta.get("reasoning_content") or choice.get("finish_reason"):
            return True
    return False


def resident(status: str) -> dict[str, int]:
    """From the text of /proc/PID/status."""
    sizes = {}
    for line in status.splitlines():
        key, _, value = line.partition(":")
        if key in ("VmRSS", "RssAnon", "RssFile", "RssShmem"):
            sizes[key] = int(value.split()[0]) * 1024
    return {"all": sizes["VmRSS"], "anonymous": sizes["RssAnon"] + sizes.get("RssShmem", 0), "file": sizes["RssFile"]}


def with_libraries(folder: Path | None) -> dict[str, str]:
    """This process's environment, with libraries from `folder` before all others."""
    return {**os.environ, **({"LD_LIBRARY_PATH": str(folder)} if folder is not None else {})}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def conversation(text: str, number: int, length: int) -> Messages:
    """A question with about `length` characters of `text`, unlike those of other numbers from its beginning."""
    start = 997 * number % max(1, len(text) - length)
    return [{"role": "user", "content": f"Question {number}. Sum up:\n{text[start : start + length]}"}]


def next_turn(messages: Messages) -> Messages:
    """What a client sends after an answer. The answer stands for one that the user has edited: its first token is another."""
    reply = {"role": "assistant", "content": "This is a licence for software and other works."}
    return [*messages, reply, {"role": "user", "content": "And in one word?"}]


def start_times(kinds: Sequence[ServerKind], setting: Setting, rounds: int) -> dict[str, list[float]]:
    """Seconds from starting the process to /health; in turns, each round beginning with another one."""
    found: dict[str, list[float]] = {kind.name: [] for kind in kinds}
    for number in range(rounds):
        for kind in rotated(kinds, number):
            try:
                with Server(kind, setting) as server:
                    found[kind.name].append(server.ready_s)
            except RuntimeError as error:
                print(error, file=sys.stderr, flush=True)
    return found


def rotated(items: Sequence[T], by: int) -> list[T]:
    by %= len(items) or 1
    return [*items[by:], *items[:by]]
