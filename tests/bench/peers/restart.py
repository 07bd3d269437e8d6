"""What a restart costs a conversation: Headrace with a cache on disk beside llama-server with its saved slot, the same file.

    python -m tests.bench.peers.restart --llama-build DIR --model FILE [--rounds 3] [--tokens 4000]

Each round is a new conversation: its first answer (cold), the next turn (hot), then the server is killed and started again and
gets the turn after that (restarted). Headrace is killed with -9 and has its cache in --cache-dir; llama-server's slot is saved
before the kill and restored after the start, as its users do, and that time is counted. Milliseconds until the first token; tokens
evaluated.
"""

import argparse
import os
import signal
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.peers.build import bin_folder
from tests.bench.peers.compare import TEXT
from tests.bench.peers.machine import this_machine
from tests.bench.peers.reuse import Text, message
from tests.bench.peers.servers import Asked, HeadraceServer, LlamaServer, Messages, Server, ServerKind, Setting

CHARACTERS_PER_TOKEN = 4.2  # of the text; only how long the conversation is depends on it
ANSWER_TOKENS = 16
WRITE_S = 3.0  # for the cache to be on the disk before the kill: what a conversation that is a few seconds old has had
ROWS = ("cold", "hot", "restarted")


@dataclass(slots=True)
class Row:
    """A server's figures of one kind, a value for each round."""

    milliseconds: list[float] = field(default_factory=list)
    evaluated: list[int] = field(default_factory=list)

    def add(self, asked: Asked, more_s: float = 0.0) -> None:
        self.milliseconds.append(1000 * (asked.first_s + more_s))
        self.evaluated.append(asked.evaluated_tokens)

    def __str__(self) -> str:
        return f"{statistics.median(self.milliseconds):,.0f} ms, {statistics.median(self.evaluated):,.0f} tokens"


def conversation(number: int, tokens: int) -> Messages:
    source = Text(TEXT.read_text(), 997 * number)
    return [
        message("system", f"Conversation {number}. {source.take(int(tokens * CHARACTERS_PER_TOKEN))}"),
        message("user", "What is this about?"),
    ]


def next_turn(messages: Messages, answer: str, question: str) -> Messages:
    return [*messages, message("assistant", answer), message("user", question)]


def measure(kind: ServerKind, setting: Setting, messages: Messages, rows: dict[str, Row], *, slots: bool) -> None:
    """One conversation through both starts of a server."""
    with Server(kind, setting) as server:
        first = server.ask(messages, ANSWER_TOKENS)
        rows["cold"].add(first)
        messages = next_turn(messages, first.text, "And what follows from it?")
        second = server.ask(messages, ANSWER_TOKENS)
        rows["hot"].add(second)
        if slots:
            server.post("/slots/0?action=save", {"filename": "talk.bin"})
        else:
            time.sleep(WRITE_S)
        os.kill(server._process.pid, signal.SIGKILL)
    messages = next_turn(messages, second.text, "Say it in one sentence.")
    with Server(kind, setting) as server:
        began = time.perf_counter()
        if slots:
            server.post("/slots/0?action=restore", {"filename": "talk.bin"})
        restored_s = time.perf_counter() - began
        rows["restarted"].add(server.ask(messages, ANSWER_TOKENS), restored_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-build", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    setting = Setting(arguments.model.resolve(), 2 * arguments.tokens, 1, arguments.threads)
    found: dict[str, dict[str, Row]] = {}
    with tempfile.TemporaryDirectory() as ours, tempfile.TemporaryDirectory() as theirs:
        kinds: list[tuple[Any, bool]] = [
            (HeadraceServer(flags=("--activations", "int8", "--cache-dir", ours)), False),
            (LlamaServer("llama.cpp", bin_folder(arguments.llama_build), ("--slot-save-path", theirs)), True),
        ]
        for number in range(arguments.rounds):
            for kind, slots in kinds if number % 2 == 0 else kinds[::-1]:
                rows = found.setdefault(kind.name, {name: Row() for name in ROWS})
                measure(kind, setting, conversation(number, arguments.tokens), rows, slots=slots)
    print(f"{this_machine(arguments.threads, with_limits=False)}; {arguments.model.name}; medians of {arguments.rounds} rounds\n")
    print(f"| | {' | '.join(found)} |\n|---|{'--:|' * len(found)}")
    for name in ROWS:
        print(f"| {name} | {' | '.join(str(rows[name]) for rows in found.values())} |")


if __name__ == "__main__":
    main()
