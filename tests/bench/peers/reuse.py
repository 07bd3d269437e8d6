"""How much of a conversation is evaluated again: Headrace beside llama-server, the same file, slots, context and threads, in turns.

    python -m tests.bench.peers.reuse --cache DIR [--llama-build DIR] [--model small-Q4_K] [--rounds 3] [--json FILE]

Every round is a new chat of six turns, of which nothing is known, and goes through the cases below. All servers are up, one
is asked at a time, and each gets its own answers sent back. Tokens are counted by the servers and exact; milliseconds need a
machine that does nothing else. Markdown goes to the standard output, everything that was measured to --json, from which
`draw_reuse` makes a picture.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from svc.compute.cpu.ops import num_cores
from tests.bench.peers.build import LLAMA, bin_folder, build
from tests.bench.peers.compare import TEXT
from tests.bench.peers.machine import this_machine, warning
from tests.bench.peers.models import model_file
from tests.bench.peers.report import OURS, Comparison, spread
from tests.bench.peers.servers import Asked, HeadraceServer, LlamaServer, Messages, Server, ServerKind, Setting, rotated

CONTEXT, SLOTS = 8192, 4
SYSTEM_CHARACTERS, QUESTION_CHARACTERS, ANSWER_CHARACTERS = 2400, 1200, 1200
TURNS = 6
BRANCH_AT = 3  # the third message after the system prompt, which is the second question
AGENTS, AGENTS_SYSTEM_CHARACTERS, TASK_CHARACTERS = 4, 6000, 400
ANSWER_TOKENS = 16


@dataclass(slots=True)
class Case:
    """One row: what each server evaluated and how long it took, a value for each round."""

    name: str
    prompt_tokens: list[int] = field(default_factory=list)
    evaluated: dict[str, list[int]] = field(default_factory=dict)
    milliseconds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, server: str, answers: Sequence[Asked]) -> None:
        """Answers to requests that were made together: tokens in sum, time until the last of them has begun to answer."""
        self.prompt_tokens.append(sum(answer.prompt_tokens for answer in answers))
        self.evaluated.setdefault(server, []).append(sum(answer.evaluated_tokens for answer in answers))
        self.milliseconds.setdefault(server, []).append(1000 * max(answer.first_s for answer in answers))


# ---- what is asked


class Text:
    """Takes pieces of a text one after the other, from the beginning again at its end."""

    def __init__(self, text: str, start: int) -> None:
        self._text = text
        self._at = start % len(text)

    def take(self, length: int) -> str:
        taken = (self._text + self._text)[self._at : self._at + length]
        self._at = (self._at + length) % len(self._text)
        return taken


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def chat(text: str, number: int) -> Messages:
    """System prompt, five questions with answers, and the sixth question. Unlike that of any other number from its beginning."""
    source = Text(text, 997 * number)
    messages = [message("system", f"Chat {number}. {source.take(SYSTEM_CHARACTERS)}")]
    for turn in range(1, TURNS):
        messages.append(message("user", f"Question {turn}: {source.take(QUESTION_CHARACTERS)}"))
        messages.append(message("assistant", source.take(ANSWER_CHARACTERS)))
    return [*messages, message("user", f"Question {TURNS}: {source.take(QUESTION_CHARACTERS)}")]


def answered(messages: Messages, answer: str, question: str) -> Messages:
    return [*messages, message("assistant", answer), message("user", question)]


def edited(messages: Messages) -> Messages:
    """The last message written anew."""
    return [*messages[:-1], message("user", "Rather tell me in one sentence what you would change, and why.")]


def branch(messages: Messages) -> Messages:
    """The third message asks something else; nothing follows it."""
    return [*messages[:BRANCH_AT], message("user", "Let us talk about something else: who wrote this, and for whom?")]


def agents(text: str, number: int) -> list[Messages]:
    """One system prompt with a task each."""
    source = Text(text, 1499 * number + 499)
    system = message("system", f"Agents {number}. {source.take(AGENTS_SYSTEM_CHARACTERS)}")
    return [[system, message("user", f"Task {task}: {source.take(TASK_CHARACTERS)}")] for task in range(AGENTS)]


# ---- asking


class Asks(Protocol):
    """The part of `Server` that a conversation needs."""

    def ask(self, messages: Messages, max_tokens: int) -> Asked: ...


class Chat:
    """One server's conversation of a round: the requests follow each other, with this server's own answers in them."""

    def __init__(self, server: Asks, text: str, number: int) -> None:
        self._server = server
        self._first = chat(text, number)
        self._agents = agents(text, number)
        self._second: Messages = []

    def cold(self) -> list[Asked]:
        return [self._server.ask(self._first, 1)]

    def again(self) -> list[Asked]:
        return [self._server.ask(self._first, 1)]

    def next_turn(self) -> list[Asked]:
        """The answer that is sent back is asked for first, and not counted: an answer of one token would not be one."""
        answer = self._server.ask(self._first, ANSWER_TOKENS).text
        self._second = answered(self._first, answer, "And what follows from that?")
        return [self._server.ask(self._second, 1)]

    def edit(self) -> list[Asked]:
        return [self._server.ask(edited(self._second), 1)]

    def branch(self) -> list[Asked]:
        return [self._server.ask(branch(self._first), 1)]

    def back(self) -> list[Asked]:
        return [self._server.ask(self._second, 1)]

    def agents(self) -> list[Asked]:
        with ThreadPoolExecutor(AGENTS) as pool:
            return list(pool.map(lambda messages: self._server.ask(messages, 1), self._agents))


CASES: dict[str, Callable[[Chat], list[Asked]]] = {
    "new prompt": Chat.cold,
    "the same again": Chat.again,
    "next turn": Chat.next_turn,
    "last message edited": Chat.edit,
    "branch at the third message": Chat.branch,
    "back to the first branch": Chat.back,
    "four agents, one system prompt": Chat.agents,
}


def measure(kinds: Sequence[ServerKind], setting: Setting, text: str, rounds: int) -> list[Case]:
    """All servers are up; in each case they are asked in turns, each round beginning with another one."""
    cases = {name: Case(name) for name in CASES}
    with ExitStack() as stack:
        servers = [stack.enter_context(Server(kind, setting)) for kind in kinds]
        for number in range(rounds):
            chats = {server.name: Chat(server, text, number) for server in servers}
            for name, ask in CASES.items():
                for server in rotated(servers, number):
                    cases[name].add(server.name, ask(chats[server.name]))
                    done = cases[name]
                    figures = f"{done.evaluated[server.name][-1]} tokens, {done.milliseconds[server.name][-1]:.1f} ms"
                    print(f"round {number + 1}: {name}: {server.name}: {figures}", file=sys.stderr, flush=True)
    return list(cases.values())


# ---- report


def markdown(cases: Iterable[Case], names: Sequence[str]) -> str:
    """Tokens are the median of rounds, which hardly differ; times with the smallest and largest."""
    heads = [f"{name}: evaluated" for name in names] + [f"{name}: ms" for name in names]
    lines = [f"| case | prompt tokens | {' | '.join(heads)} | ms ratio |", f"|---|{'--:|' * (len(heads) + 2)}"]
    for case in cases:
        counts = [tokens(case.evaluated[name]) for name in names]
        times = [spread(case.milliseconds[name]) for name in names]
        ratio = Comparison(case.name, case.milliseconds, lower_is_better=True).ratio
        columns = [tokens(case.prompt_tokens), *counts, *times, "-" if ratio is None else f"{ratio:.1f}"]
        lines.append(f"| {case.name} | {' | '.join(columns)} |")
    return "\n".join(lines)


def tokens(counts: Sequence[int]) -> str:
    return f"{sorted(counts)[len(counts) // 2]:,}"


def version(folder: Path) -> str:
    """The first line that llama-server says about itself, and the folder of its sources, which has the package's version."""
    done = subprocess.run([folder / "llama-server", "--version"], capture_output=True, text=True, check=True)
    sources = sorted(folder.parent.parent.glob(f"{LLAMA.package.replace('-', '_')}-*/"))
    said = (done.stdout + done.stderr).strip().splitlines()[0]
    return f"{said}, {sources[-1].name}" if sources else said


def saved(cases: Sequence[Case], machine: dict[str, Any], setting: Setting, versions: dict[str, str]) -> dict[str, Any]:
    """What --json has and `draw_reuse` reads."""
    rows = [
        {"name": c.name, "prompt_tokens": c.prompt_tokens, "evaluated": c.evaluated, "milliseconds": c.milliseconds} for c in cases
    ]
    facts = {"model": setting.model.name, "context": setting.context, "slots": setting.slots, "threads": setting.threads}
    return {"time": time.strftime("%Y-%m-%d"), "machine": machine, "versions": versions, **facts, "cases": rows}


def main() -> None:
    arguments = parse()
    cache = arguments.cache.expanduser()
    folder = bin_folder(arguments.llama_build) if arguments.llama_build else build(LLAMA, cache, num_cores())
    setting = Setting(model_file(cache / "models", *arguments.model.split("-", 1)), CONTEXT, SLOTS, arguments.threads)
    kinds: list[ServerKind] = [HeadraceServer(OURS), LlamaServer(LLAMA.name, folder)]
    if arguments.checkpoints:
        kinds.append(LlamaServer(f"{LLAMA.name}, closer checkpoints", folder, ("--checkpoint-min-step", "0")))
    machine = this_machine(arguments.threads, with_limits=False)
    versions = {OURS: metadata.version("headrace"), LLAMA.name: version(folder)}
    if said := warning(machine.load_before):
        print(f"**{said}**\n")
    print(f"{machine.processor}, {machine.cores} cores, {', '.join(machine.flags)}; load before {machine.load_before:.1f}")
    print(f"{setting.model.name}, {SLOTS} slots of {CONTEXT} tokens, {arguments.threads} threads; {versions}\n", flush=True)
    cases = measure(kinds, setting, TEXT.read_text(), arguments.rounds)
    print(markdown(cases, [kind.name for kind in kinds]))
    if arguments.json:
        arguments.json.write_text(json.dumps(saved(cases, machine.as_dict(), setting, versions), indent=1) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    caches = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"))
    parser.add_argument("--cache", type=Path, default=caches / "headrace-peers", help="default: %(default)s")
    parser.add_argument("--llama-build", type=Path, help="a build of llama.cpp that is there")
    parser.add_argument("--model", default="small-Q4_K", help="shape and type of tests/bench/peers/models.py; default: %(default)s")
    parser.add_argument("--checkpoints", action="store_true", help="llama-server once more with --checkpoint-min-step 0")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="a file for all that was measured")
    return parser.parse_args()


if __name__ == "__main__":
    main()
