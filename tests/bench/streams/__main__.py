"""What a streamed token costs the event loop: processor time of its thread per token, with k streams at once and a device that
knows every token at once.

    python -m tests.bench.streams                                 this tree
    python -m tests.bench.streams --trees OLD NEW --rounds 3      several trees in turns, and their ratios to the first
    python -m tests.bench.streams --trees OLD NEW --server FILE   where a tree is older than this bench: a server that it can run
    python -m tests.bench.streams --trees . tests/bench/streams/starlette_server.py   another server: a file in place of a tree

The server is a process of its own; so is this one, which reads and throws away.
"""

import argparse
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from tests.bench.client import MODEL, machine

ROOT = Path(__file__).parents[3]
SERVER = "tests/bench/streams/server.py"  # each tree's own
CHAT = {"messages": [{"role": "user", "content": "Tell me a long story."}], "temperature": 0}
LOAD: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", CHAT),
    "completions": ("/v1/completions", {"prompt": "Once"}),
    "native": ("/completion", {"prompt": "Once"}),
    "chat, 4 stops": ("/v1/chat/completions", CHAT | {"stop": ["\n\n\n", "<|im_start|>", "###", "User:"]}),
    "chat, 5 logprobs": ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 5}),
}


@dataclass(frozen=True)
class Case:
    load: str
    streams: int
    step_ms: float


@contextmanager
def server(tree: Path, case: Case, arguments: argparse.Namespace) -> Iterator[IO[str]]:
    """The output of a server that runs the code of `tree`, or of the file that is one."""
    own = tree if tree.is_file() else tree / SERVER
    command = [
        sys.executable,
        str(own if own.exists() else arguments.server),
        "--model",
        arguments.model,
        "--streams",
        str(case.streams),
    ]
    command += ["--steps", str(arguments.steps), "--step-ms", str(case.step_ms), "--top", "5" if "logprobs" in case.load else "0"]
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(tree.resolve())}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            if own.name == "llama_server.py":
                process.terminate()  # it has a process of its own to end
            else:
                process.kill()


def measured(tree: Path, case: Case, arguments: argparse.Namespace) -> tuple[float, float, float]:
    """(microseconds of the loop's thread per token, tokens per second, milliseconds of the longest gap; 0: not told)."""
    path, body = LOAD[case.load]
    data = json.dumps(body | {"stream": True, "ignore_eos": True, "max_tokens": 10 * arguments.steps}).encode()
    with server(tree, case, arguments) as output:
        host = urlsplit(output.readline().strip())
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        with selectors.DefaultSelector() as selector:
            for _ in range(case.streams):
                connection = socket.create_connection((host.hostname, host.port))
                connection.sendall(head + data)
                selector.register(connection, selectors.EVENT_READ)
            selector.register(output, selectors.EVENT_READ)
            events = 0  # since the beginning, for a server that does not count tokens
            while True:
                for key, _ in selector.select():
                    if key.fileobj is output:
                        found = json.loads(output.readline())
                        if "begin" in found:
                            events = 0
                            continue
                        tokens = found.get("tokens", events)
                        cost_s = found["cpu_s"] / tokens - found.get("alone_s", 0.0)
                        return 1e6 * cost_s, tokens / found["wall_s"], found.get("longest_gap_ms", 0.0)
                    assert isinstance(key.fileobj, socket.socket)
                    received = key.fileobj.recv(2**16)
                    assert received, "the server has closed a stream"
                    events += received.count(b"data: {")


def compare(case: Case, arguments: argparse.Namespace) -> None:
    """A row of the table: the trees in turns, the median of the rounds (smallest-largest)."""
    rounds = [[measured(tree, case, arguments) for tree in arguments.trees] for _ in range(arguments.rounds)]
    costs = [[row[index][0] for row in rounds] for index in range(len(arguments.trees))]
    medians = [statistics.median(each) for each in costs]
    rates = [statistics.median(row[index][1] for row in rounds) for index in range(len(arguments.trees))]
    gaps = [max(row[index][2] for row in rounds) for index in range(len(arguments.trees))]
    cells = [
        f"{median:.1f} us ({min(each):.1f}-{max(each):.1f}), {rate:,.0f} tokens/s" + (f", gap {gap:.1f} ms" if gap else "")
        for median, each, rate, gap in zip(medians, costs, rates, gaps, strict=True)
    ]
    ratios = [f"{cost / medians[0]:.2f}" for cost in medians[1:]]
    print(f"| {case.load}, {case.streams} streams, steps of {case.step_ms:g} ms | {' | '.join(cells + ratios)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(MODEL), help="whose tokenizer and chat template are used")
    parser.add_argument("--trees", type=Path, nargs="+", default=[ROOT])
    parser.add_argument("--server", type=Path, help="for trees that have none of their own")
    parser.add_argument("--load", nargs="+", choices=list(LOAD), default=["chat"])
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--step-ms", type=float, nargs="+", default=[0.0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{machine()}\n")
    for load in arguments.load:
        for streams in arguments.streams:
            for step_ms in arguments.step_ms:
                compare(Case(load, streams, step_ms), arguments)


if __name__ == "__main__":
    main()
