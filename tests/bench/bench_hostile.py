"""Whether one request can stop everybody: hostile bodies sent to a real server process, and the longest time for which its event
loop stood still meanwhile.

The loop is watched from inside, by a ticker that wants to run every millisecond (by the wall, and in processor time of the process,
which other programs do not lengthen), and from outside, by a client that asks /livez all the time. Memory is the peak of the
resident set above its size before, per byte of the body.
"""

import argparse
import asyncio
import json
import mmap
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.bench.client import MODEL, machine

TICK_S = 0.001
CONTEXT_TOKENS = 262_144
GAPS = struct.Struct("dd")  # by the wall, in processor time
PATIENCE_S = 120.0
MESSAGES = b'"messages":[{"role":"user","content":"hi"}]'
CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"


@dataclass(frozen=True)
class Case:
    name: str
    path: str
    body: Callable[[], bytes]


def _chat(field: str, value: bytes) -> bytes:
    return b"{" + MESSAGES + b',"max_tokens":1,"' + field.encode() + b'":' + value + b"}"


def _list(item: bytes, count: int) -> bytes:
    return b"[" + b",".join([item] * count) + b"]"


def _said(text: bytes) -> bytes:
    return b'{"max_tokens":1,"messages":[{"role":"user","content":"' + text + b'"}]}'


def _many_stops() -> bytes:
    """Each begins as the answer does, which is one letter again and again."""
    stops = ["a" * n + "b" * (1000 - n) for n in range(936, 1000)]
    return json.dumps({"prompt": "a", "max_tokens": 400, "ignore_eos": True, "logit_bias": [["a", 100]], "stop": stops}).encode()


MANY = 20_000_000
TOOL = (
    b'{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string","enum":["x"]}}}}}'
)
CASES = (
    Case("A1 logit_bias of 20 M empty lists", CHAT, lambda: _chat("logit_bias", _list(b"[]", MANY))),
    Case("A1 response_format of 20 M empty lists", CHAT, lambda: _chat("response_format", _list(b"[]", MANY))),
    Case("A1 20 M messages", CHAT, lambda: b'{"messages":' + _list(b"{}", MANY) + b"}"),
    Case("A1 20 M empty lists in a field nobody knows", CHAT, lambda: _chat("other", _list(b"[]", MANY))),
    Case(
        "A1 logit_bias with 10^6 keys", CHAT, lambda: _chat("logit_bias", json.dumps({f"k{n}": 1 for n in range(10**6)}).encode())
    ),
    Case("A1 10^6 empty lists", CHAT, lambda: _chat("logit_bias", _list(b"[]", 10**6))),
    Case("A1 10^6 messages", CHAT, lambda: b'{"messages":' + _list(b"{}", 10**6) + b"}"),
    Case("A1 3 MB of tools", CHAT, lambda: _chat("tools", _list(TOOL, 3_000_000 // len(TOOL)))),
    Case("A1 1 MB of tools", CHAT, lambda: _chat("tools", _list(TOOL, 1_000_000 // len(TOOL)))),
    Case("A1 3 MB of numbers of 4,000 digits", CHAT, lambda: _chat("logit_bias", _list(b"7" * 4000, 750))),
    Case("A1 100,000 levels", CHAT, lambda: _chat("logit_bias", b"[" * 100_000 + b"]" * 100_000)),
    Case(
        "A2 10^6 response_fields",
        NATIVE,
        lambda: b'{"prompt":"a","n":8,"n_predict":1,"response_fields":' + _list(b'"a"', 10**6) + b"}",
    ),
    Case("A2 response_fields of 60 M slashes", NATIVE, lambda: b'{"prompt":"a","response_fields":["' + b"/" * 60_000_000 + b'"]}'),
    Case(
        "A2 response_fields of 3 M slashes",
        NATIVE,
        lambda: b'{"prompt":"a","n_predict":1,"response_fields":["' + b"/" * 3_000_000 + b'"]}',
    ),
    Case("A3 64 stops of 1,000 characters, 400 tokens", TEXT, _many_stops),
    Case(
        "A4 1,024 logit_bias texts of 1,000 characters",
        CHAT,
        lambda: _chat("logit_bias", json.dumps([[f"{n} {'ab ' * 330}", 1] for n in range(1024)]).encode()),
    ),
    Case("A4 2 M digits to /tokenize", "/tokenize", lambda: b'{"content":"' + b"7" * 2_000_000 + b'"}'),
    Case("900,000 digits to /tokenize", "/tokenize", lambda: b'{"content":"' + b"7" * 900_000 + b'"}'),
    Case("4 M digits to /tokenize, with pieces", "/tokenize", lambda: b'{"with_pieces":true,"content":"' + b"7" * 2**22 + b'"}'),
    Case("300,000 ids to /detokenize", "/detokenize", lambda: b'{"tokens":' + _list(b"1234", 300_000) + b"}"),
    Case("prompt of 300,000 ids", TEXT, lambda: b'{"max_tokens":1,"prompt":' + _list(b"1234", 300_000) + b"}"),
    Case("500,000 ids to /detokenize", "/detokenize", lambda: b'{"tokens":' + _list(b"1234", 500_000) + b"}"),
    Case("prompt of 500,000 ids", TEXT, lambda: b'{"max_tokens":1,"prompt":' + _list(b"1234", 500_000) + b"}"),
    Case("6 MB of prose", CHAT, lambda: _said(b"Many words, and some more. " * 222_000)),
    Case("6 MB of one letter", CHAT, lambda: _said(b"a" * 6_000_000)),
    Case("6 MB of spaces", TEXT, lambda: b'{"max_tokens":1,"prompt":"' + b" " * 6_000_000 + b'"}'),
    Case("6 MB of Chinese", CHAT, lambda: _said("\u4e2d".encode() * 2_000_000)),
    Case("6 MB of escaped Chinese", CHAT, lambda: _said(b"\\u4e2d" * 1_000_000)),
    Case("6 MB of escaped emojis", CHAT, lambda: _said(b"\\ud83d\\ude00" * 500_000)),
    Case("6 MB of half emojis", CHAT, lambda: _said(b"\\ud83d" * 1_000_000)),
    Case("6 MB of escaped backslashes", CHAT, lambda: _said(b"\\\\" * 3_000_000)),
    Case("6 MB of lines", CHAT, lambda: _said(b"\\n" * 3_000_000)),
    Case("6 MB of <", CHAT, lambda: _said(b"<" * 6_000_000)),
    Case("6 MB of <|", CHAT, lambda: _said(b"<|" * 3_000_000)),
    Case("6 MB of <|im_end|>", CHAT, lambda: _said(b"<|im_end|>" * 600_000)),
    Case("6 MB of <|im_end|> in a prompt", TEXT, lambda: b'{"max_tokens":1,"prompt":"' + b"<|im_end|>" * 600_000 + b'"}'),
    Case("6 MB of spaces around a body", CHAT, lambda: b" " * 6_000_000 + _said(b"hi")),
    Case("6 MB of unclosed text", CHAT, lambda: _said(b"a" * 6_000_000)[:-4]),
)


# -- the server -----------------------------------------------------------------------------------------------------------------


async def _serve_watched(model: str, gaps: mmap.mmap) -> int:
    from svc.app import serve
    from svc.config import Config
    from svc.log import configure_logging

    config = Config(model=model, port=0, ctx=CONTEXT_TOKENS, kv_bytes=2**26, snapshot_bytes=2**26)
    ticker = asyncio.create_task(_tick(gaps))
    try:
        return await serve(config, configure_logging("info", "json"))
    finally:
        ticker.cancel()


async def _tick(gaps: mmap.mmap) -> None:
    """Keeps the longest gaps in the file; the client sets them to zero."""
    wall, cpu = time.perf_counter(), time.process_time()
    while True:
        await asyncio.sleep(TICK_S)
        now, now_cpu = time.perf_counter(), time.process_time()
        longest, longest_cpu = GAPS.unpack_from(gaps)
        GAPS.pack_into(gaps, 0, max(longest, now - wall), max(longest_cpu, now_cpu - cpu))
        wall, cpu = now, now_cpu


def _run_server(model: str, path: str) -> int:
    from svc.app import uvloop

    with (
        open(path, "r+b") as file,
        mmap.mmap(file.fileno(), GAPS.size) as gaps,
        asyncio.Runner(loop_factory=uvloop.new_event_loop if uvloop else None) as runner,
    ):
        return runner.run(_serve_watched(model, gaps))


class Watched:
    """A server process, and what is measured of it."""

    def __init__(self, process: "subprocess.Popen[str]", port: int, gaps: mmap.mmap) -> None:
        self._process, self.port, self._gaps = process, port, gaps

    def reset(self) -> None:
        """From now on."""
        GAPS.pack_into(self._gaps, 0, 0.0, 0.0)
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")  # the peak begins anew
        self._before = self._memory("VmRSS")

    def gaps_s(self) -> tuple[float, float]:
        wall, cpu = GAPS.unpack_from(self._gaps)
        return wall, cpu

    def peak_bytes(self) -> int:
        """Above what it was at `reset`."""
        return max(0, self._memory("VmHWM") - self._before)

    def _memory(self, name: str) -> int:
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith(name)))


@contextmanager
def watched(model: str) -> Iterator[Watched]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(GAPS.size))
        file.flush()
        command = [sys.executable, "-m", "tests.bench.bench_hostile", "--model", model, "--serve", file.name]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        try:
            line = next(line for line in map(json.loads, process.stderr) if line["event"] == "serving")
            threading.Thread(target=process.stderr.read, daemon=True).start()
            with mmap.mmap(file.fileno(), GAPS.size) as gaps:
                yield Watched(process, int(line["url"].rsplit(":", 1)[1]), gaps)
        finally:
            process.terminate()
            process.wait()


# -- the clients ----------------------------------------------------------------------------------------------------------------


class Poller:
    """Asks /livez all the time, on one connection; keeps the longest answer."""

    def __init__(self, port: int) -> None:
        self.longest_s = 0.0
        self._port, self._ended = port, threading.Event()
        self._thread = threading.Thread(target=self._poll)

    def __enter__(self) -> "Poller":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _poll(self) -> None:
        with socket.create_connection(("127.0.0.1", self._port), PATIENCE_S) as sock:
            while not self._ended.is_set():
                began = time.perf_counter()
                sock.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                answer = b""
                while b"ok" not in answer:
                    answer += sock.recv(4096)
                self.longest_s = max(self.longest_s, time.perf_counter() - began)
                time.sleep(TICK_S)


def post(port: int, path: str, body: bytes) -> str:
    """The status, or what became of the connection."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as sock:
        with suppress(OSError):  # answered before the end, perhaps
            sock.sendall(head.encode() + body)
        try:
            return sock.recv(4096).split(b" ", 2)[1].decode()
        except (OSError, IndexError) as error:
            return type(error).__name__


def measure(server: Watched, case: Case) -> str:
    """One line of the table."""
    body = case.body()
    server.reset()
    with Poller(server.port) as poller:
        began = time.perf_counter()
        status = post(server.port, case.path, body)
        took_s = time.perf_counter() - began
        time.sleep(20 * TICK_S)  # what follows the answer
    wall, cpu = server.gaps_s()
    times = f"{1e3 * wall:.1f} | {1e3 * cpu:.1f} | {1e3 * poller.longest_s:.1f}"
    mib = len(body) / 2**20
    return f"| {case.name} | {mib:.1f} | {status} | {took_s:.2f} | {times} | {server.peak_bytes() / len(body):.1f} |"


def idle(server: Watched) -> str:
    """What the machine does by itself."""
    server.reset()
    with Poller(server.port) as poller:
        time.sleep(1.0)
    wall, cpu = server.gaps_s()
    return f"| nothing | 0.0 | | 1.00 | {1e3 * wall:.1f} | {1e3 * cpu:.1f} | {1e3 * poller.longest_s:.1f} | |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(MODEL))
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--serve", help=argparse.SUPPRESS)  # this process is the server; a file for the gaps
    arguments = parser.parse_args()
    if arguments.serve:
        return _run_server(arguments.model, arguments.serve)
    print(f"{machine()}\n")
    print("| body | MiB | status | s | longest gap, ms | processor, ms | longest /livez, ms | memory per byte |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    with watched(arguments.model) as server:
        print(idle(server), flush=True)
        for case in CASES:
            if arguments.only in case.name:
                print(measure(server, case), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
