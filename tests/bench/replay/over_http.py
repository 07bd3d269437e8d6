"""The same traces sent over HTTP, to Headrace and to llama-server with one file: the prompt tokens that each evaluates.

Requests are chats, because both servers then know where messages begin. One follows the other without pauses. Each server gets its
own answers sent back where the trace sends an answer back; the words of a trace's texts are single tokens of the file's
vocabulary. Clients that leave before their prompt is evaluated are left out: how far the server has come by then is a matter of
time.

The short budget is a quarter of the pages and of the snapshots that Headrace fills when there is enough. llama-server gets the
bytes of both and of Headrace's live states as `--cache-ram`, rounded up to MiB, and takes from them for keys and values or for
states as it needs; its slots with their KV cache and context checkpoints come on top. So Headrace is also run with the same bytes
divided as it divides a budget by itself. llama-server's checkpoints may lie as close as it likes (`--checkpoint-min-step 0`): that
is at least as good for it.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from svc.gguf.gguf_file import GgufFile
from svc.http.text.tokenizer import Tokenizer
from svc.memory.auto_budget import KV_SHARE
from svc.memory.layout import MemoryLayout
from svc.model.arch import read_config
from tests.bench.peers.servers import HeadraceServer, LlamaServer, Server, ServerKind, Setting
from tests.bench.replay.device import most_tokens
from tests.bench.replay.traces import ASSISTANT, SYSTEM, TOOL, USER, Ask, Tokens, Trace

OURS, OURS_DIVIDED, PEER = "Headrace", "Headrace, own division", "llama-server"
ROLES = {SYSTEM: "system", USER: "user", ASSISTANT: "assistant", TOOL: "tool"}
PART = 4
SLOTS, PAGE_TOKENS = 4, 32
MIB = 2**20
ENOUGH_MIB = 1 << 16  # -1 would be no limit of bytes, but one of tokens: those of the slots
BAR = 1 / 3  # of llama-server's tokens, with a quarter

Given = dict[tuple[int, ...], str]


class Posts(Protocol):
    """The part of `Server` that a replay needs."""

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Counts:
    """What one server evaluated of one trace's prompts."""

    requests: int
    prompt_tokens: int
    evaluated: int


@dataclass(frozen=True, slots=True)
class Filled:
    """Places of Headrace's memory."""

    pages: int
    snapshots: int

    def part(self, part: int, longest_tokens: int) -> "Filled":
        """1/part of both, and at least what the longest request and the slots need."""
        return Filled(max(self.pages // part, longest_tokens // PAGE_TOKENS + 3, 2 * SLOTS), max(self.snapshots // part, SLOTS))

    def divided(self, layout: MemoryLayout, longest_tokens: int) -> "Filled":
        """As many bytes, in the server's own shares of pages and snapshots."""
        num_bytes = self.pages * layout.page_bytes + self.snapshots * layout.snapshot_bytes
        pages = max(int(KV_SHARE * num_bytes) // layout.page_bytes, longest_tokens // PAGE_TOKENS + 3, 2 * SLOTS)
        return Filled(pages, max((num_bytes - pages * layout.page_bytes) // layout.snapshot_bytes, SLOTS))

    def num_bytes(self, layout: MemoryLayout) -> int:
        """With the live states of the slots."""
        return self.pages * layout.page_bytes + self.snapshots * layout.snapshot_bytes + SLOTS * layout.state_bytes


@dataclass(frozen=True, slots=True)
class HttpRow:
    """One trace. `enough` and `short`: what each server evaluated."""

    trace: str
    full: Filled  # by Headrace with enough memory
    budget: Filled
    budget_bytes: int
    cache_ram_mib: int
    enough: Mapping[str, Counts]
    short: Mapping[str, Counts]

    def share(self, name: str = OURS) -> float:
        """Of the prompt tokens that llama-server evaluates with the short budget."""
        return self.short[name].evaluated / self.short[PEER].evaluated


def replay(server: Posts, trace: Trace, vocabulary: Sequence[str]) -> Counts:
    """Sends the requests in their order, each when the one before is answered."""
    given: Given = {}
    prompt_tokens = evaluated = 0
    asks = [ask for ask in trace if whole_prompt(ask)]
    for ask in asks:
        found = server.post("/v1/chat/completions", body_of(ask, given, vocabulary))
        given[answer_of(ask)] = found["choices"][0]["message"]["content"] or ""
        usage = found["usage"]
        prompt_tokens += usage["prompt_tokens"]
        evaluated += usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
    return Counts(len(asks), prompt_tokens, evaluated)


def whole_prompt(ask: Ask) -> bool:
    """Whether the client stays until its prompt is evaluated."""
    return ask.leaves_at is None or ask.leaves_at > len(ask.prompt)


def answer_of(ask: Ask) -> tuple[int, ...]:
    """The answer without its end, as the trace sends it back."""
    return tuple(ask.answer[:-1].tolist())


def body_of(ask: Ask, given: Given, vocabulary: Sequence[str]) -> dict[str, Any]:
    """`given`: the server's own answers, by those of the trace. A client that leaves during the answer asks for less of it."""
    messages = []
    for role, text in ask.messages:
        own = given.get(tuple(text)) if role == ASSISTANT else None
        messages.append({"role": ROLES[role], "content": in_words(text, vocabulary) if own is None else own})
    wanted = len(ask.answer) - 1 if ask.leaves_at is None else ask.leaves_at - len(ask.prompt)
    return {"messages": messages, "max_tokens": wanted, "temperature": 0, "ignore_eos": True}


def in_words(text: Tokens, vocabulary: Sequence[str]) -> str:
    """A word for each token."""
    return " ".join(vocabulary[token % len(vocabulary)] for token in text)


def words_of(model: Path) -> list[str]:
    """Words that are one token of the file's vocabulary each, behind a space."""
    tokenizer = Tokenizer.from_metadata(GgufFile.open(model).metadata)
    texts = (tokenizer.token_bytes(token) for token in range(tokenizer.num_tokens))
    return [text[1:].decode() for text in texts if re.fullmatch(b" [a-z]{2,}", text)]


# ---- the servers


def ours(layout: MemoryLayout, budget: Filled) -> HeadraceServer:
    sizes = ("--kv-bytes", str(budget.pages * layout.page_bytes), "--snapshot-bytes", str(budget.snapshots * layout.snapshot_bytes))
    return HeadraceServer(OURS, ("--page-tokens", str(PAGE_TOKENS), *sizes))


def theirs(folder: Path, cache_ram_mib: int) -> LlamaServer:
    return LlamaServer(PEER, folder, ("--cache-ram", str(cache_ram_mib), "--checkpoint-min-step", "0"))


def row(name: str, trace: Trace, setting: Setting, folder: Path) -> HttpRow:
    """Both servers with enough memory and with the short budget, one at a time, each started anew."""
    layout = read_config(GgufFile.open(setting.model)).memory_layout(PAGE_TOKENS, "f16")
    vocabulary = words_of(setting.model)

    def run(kind: ServerKind) -> tuple[Counts, Filled | None]:
        with Server(kind, setting) as server:
            counts = replay(server, trace, vocabulary)
            print(f"{name}: {kind.name}: {counts.evaluated} of {counts.prompt_tokens}", file=sys.stderr, flush=True)
            return counts, filled(server.get("/metrics")) if isinstance(kind, HeadraceServer) else None

    tokens = sum(len(ask.prompt) + len(ask.answer) for ask in trace)
    ample = Filled(2 * tokens // PAGE_TOKENS + 1000, 40 * len(trace) + 100)
    counts, full = run(ours(layout, ample))
    assert full is not None, "Headrace says what it has filled"
    enough = {OURS: counts, PEER: run(theirs(folder, ENOUGH_MIB))[0]}
    longest_tokens = most_tokens(trace) * 17 // 16  # few words are more than one token
    budget = full.part(PART, longest_tokens)
    budget_bytes = budget.num_bytes(layout)
    cache_ram_mib = -(-budget_bytes // MIB)
    divided = budget.divided(layout, longest_tokens)
    short = {
        OURS: run(ours(layout, budget))[0],
        OURS_DIVIDED: run(ours(layout, divided))[0],
        PEER: run(theirs(folder, cache_ram_mib))[0],
    }
    return HttpRow(name, full, budget, budget_bytes, cache_ram_mib, enough, short)


def filled(metrics: str) -> Filled:
    """From the text of /metrics."""

    def value(name: str) -> int:
        found = re.search(rf"^\w*{name}(?:{{.*}})? (\S+)$", metrics, re.MULTILINE)
        if found is None:
            raise ValueError(f"no {name} among the metrics")
        return int(float(found[1]))

    return Filled(value("kv_pages_used"), value("snapshot_ring_used"))


def markdown(found: Sequence[HttpRow]) -> str:
    """Tokens evaluated: with enough memory, and with the short budget."""
    heads = [*(f"{name}, enough" for name in found[0].enough), *(f"{name}, 1/{PART}" for name in found[0].short)]
    heads = ["requests, prompt tokens", *heads, f"1/{PART}, MiB", "shares"]
    lines = [f"| trace | {' | '.join(heads)} |", f"|---|{'--:|' * len(heads)}"]
    for each in found:
        asked = f"{each.enough[OURS].requests}, {each.enough[OURS].prompt_tokens:,}"
        counts = [f"{count.evaluated:,}" for count in (*each.enough.values(), *each.short.values())]
        shares = f"{each.share():.2f}, {each.share(OURS_DIVIDED):.2f}"
        lines.append(f"| {' | '.join([each.trace, asked, *counts, str(each.cache_ram_mib), shares])} |")
    return "\n".join(lines)


def missed(found: Sequence[HttpRow]) -> list[str]:
    """The traces on which the bar does not hold."""
    return [f"{each.trace}: {each.share():.2f} of llama-server's tokens, not {BAR:.2f}" for each in found if each.share() > BAR]
