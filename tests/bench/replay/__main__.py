"""How much is evaluated again when memory is short: eviction by several policies, on the real scheduler, with a device that counts.

    python -m tests.bench.replay [--trace NAME ...] [--seed 1] [--holdout] [--json FILE] [--jobs 2]
    python -m tests.bench.replay --http --llama-build DIR [--model FILE] [--text 0.5] [--clients 0.5] [--json FILE]

Each trace (traces.py) is run with a part of the snapshots, and with a part of the pages, that it fills when there is enough of
everything; the other of the two is ample. Figures are prompt tokens evaluated, divided by those with ample memory of both, and for
that the ratio to what no cache could do with less. Counts, not times: the same on every machine. `--holdout`: seeds and sizes that
no decision about the score has looked at. `--http`: the same traces sent to servers (over_http.py).
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from svc.config import BUNDLED_MODEL
from svc.memory.scoring import Scorer
from tests.bench.peers.build import bin_folder
from tests.bench.peers.servers import Setting
from tests.bench.replay import over_http
from tests.bench.replay.device import PAGE_TOKENS, ROWS, Replay, ample, most_tokens
from tests.bench.replay.policies import Clairvoyant, FirstInFirstOut, LeastRecentlyUsed
from tests.bench.replay.traces import TRACES, Size, Trace, least_tokens, make

PARTS = (2, 4, 8)
OURS, LRU, FIFO, CLAIRVOYANT = "headrace", "LRU", "FIFO, spaced", "clairvoyant"
POLICIES: dict[str, Callable[[Trace], Scorer | None]] = {
    OURS: lambda trace: None,  # what the server uses
    LRU: lambda trace: LeastRecentlyUsed(),
    FIFO: lambda trace: FirstInFirstOut(),
    CLAIRVOYANT: Clairvoyant,
}
USUAL = Size()
# Not looked at while the score was written: other texts, longer ones, slower and more clients.
HOLDOUT = ((101, Size()), (202, Size(text=1.7, pause=3.0)), (303, Size(text=0.6, pause=0.5, clients=1.5)))


@dataclass(frozen=True, slots=True)
class Row:
    """One trace with one budget. `evaluated`: prompt tokens by policy."""

    trace: str
    short_of: str  # "snapshots" or "pages"
    part: int  # 1/part of what the trace fills
    pages: int
    snapshots: int
    prompt_tokens: int
    perfect: int
    ideal: int
    evaluated: dict[str, int]

    def ratio(self, policy: str) -> float:
        return self.evaluated[policy] / self.ideal

    @property
    def name(self) -> str:
        return f"{self.trace}, {self.short_of} 1/{self.part}"


def rows(name: str, seed: int, size: Size, policies: Sequence[str] = tuple(POLICIES), parts: Sequence[int] = PARTS) -> list[Row]:
    """All budgets of a trace."""
    trace = make(TRACES[name], seed, size)
    pages, snapshots = ample(trace)
    enough = Replay(trace, pages, snapshots).run()
    least = most_tokens(trace) // PAGE_TOKENS + 3  # the scheduler refuses what can never fit
    tokens, perfect = sum(len(ask.prompt) for ask in trace), least_tokens(trace)
    found = []
    for part in parts:
        for short_of, budget in (
            ("snapshots", (pages, max(enough.snapshots // part, ROWS))),
            ("pages", (max(enough.pages // part, least), snapshots)),
        ):
            evaluated = {policy: Replay(trace, *budget, POLICIES[policy](trace)).run().evaluated for policy in policies}
            found.append(Row(name, short_of, part, *budget, tokens, perfect, enough.evaluated, evaluated))
    found.sort(key=lambda row: row.short_of, reverse=True)
    print(f"{name} (seed {seed}) done", file=sys.stderr, flush=True)
    return found


def markdown(found: Sequence[Row]) -> str:
    """One line for each trace and budget."""
    policies = list(found[0].evaluated)
    lines = [f"| trace | short of | | {' | '.join(policies)} |", f"|---|---|--:|{'--:|' * len(policies)}"]
    before = ""
    for row in found:
        name = (
            "" if row.trace == before else f"{row.trace} ({row.prompt_tokens:,} tokens, {row.ideal / row.perfect:.2f} of perfect)"
        )
        before = row.trace
        ratios = [f"{row.ratio(policy):.2f}" for policy in policies]
        lines.append(f"| {name} | {row.short_of} | 1/{row.part} | {' | '.join(ratios)} |")
    return "\n".join(lines)


def missed(found: Sequence[Row]) -> list[str]:
    """The bars that do not hold."""
    said = []
    for row in found:
        ours, bar = row.ratio(OURS), 1.15 if row.trace == "mixed day" else 1.3
        if row.short_of == "snapshots" and row.part <= 4 and ours > bar:
            said.append(f"{row.name}: {ours:.2f} of the ideal, not {bar}")
        if row.short_of == "pages" and row.part <= 4 and ours > 1.5 * row.ratio(CLAIRVOYANT):
            said.append(f"{row.name}: {ours / row.ratio(CLAIRVOYANT):.2f} of the clairvoyant, not 1.5")
        if row.evaluated[OURS] > row.evaluated[LRU]:
            said.append(f"{row.name}: {row.evaluated[OURS] / row.evaluated[LRU]:.3f} of LRU")
    return said


def main() -> None:
    arguments = parse()
    names = arguments.trace or list(TRACES)
    if arguments.http:
        http(arguments, names)
        return
    runs = HOLDOUT if arguments.holdout else ((arguments.seed, USUAL),)
    everything = {}
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for seed, size in runs:
            # The longest first.
            order = sorted(names, key=lambda name: name != "mixed day")
            done = dict(zip(order, pool.map(partial(rows, seed=seed, size=size), order), strict=True))
            found = [row for name in names for row in done[name]]
            everything[f"seed {seed}, {size}"] = [asdict(row) for row in found]
            print(f"\nseed {seed}, {size}\n\n{markdown(found)}\n", flush=True)
            print("\n".join(f"- missed: {said}" for said in missed(found)) or "every bar holds", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(everything, indent=1) + "\n")


def http(arguments: argparse.Namespace, names: Sequence[str]) -> None:
    """One process at a time: what is counted does not depend on it, but small machines do."""
    setting = Setting(arguments.model.resolve(), arguments.context, over_http.SLOTS, arguments.threads)
    folder, size = bin_folder(arguments.llama_build), Size(text=arguments.text, clients=arguments.clients)
    found = []
    for name in names:
        found.append(over_http.row(name, make(TRACES[name], arguments.seed, size), setting, folder))
        if arguments.json:
            arguments.json.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")
    print(f"\n{setting.model.name}, seed {arguments.seed}, {size}\n\n{over_http.markdown(found)}\n")
    print("\n".join(f"- missed: {said}" for said in over_http.missed(found)) or "every bar holds")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", action="append", choices=list(TRACES), help="may be repeated; default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--holdout", action="store_true", help="the seeds and sizes kept aside")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, help="a file for all that was counted")
    servers = parser.add_argument_group("over HTTP")
    servers.add_argument("--http", action="store_true", help="send the traces to Headrace and to llama-server")
    servers.add_argument("--llama-build", type=Path, help="a build of llama.cpp; needed")
    servers.add_argument("--model", type=Path, default=BUNDLED_MODEL, help="a hybrid model for both; default: the bundled one")
    servers.add_argument("--context", type=int, default=4096, help="tokens of each slot; default: %(default)s")
    servers.add_argument("--text", type=float, default=0.5, help="texts so many times as long; default: %(default)s")
    servers.add_argument("--clients", type=float, default=0.5, help="so many clients for each usual one; default: %(default)s")
    servers.add_argument("--threads", type=int, default=1, help="of each server; they change no count; default: %(default)s")
    arguments = parser.parse_args()
    if arguments.http and arguments.llama_build is None:
        parser.error("--http needs --llama-build")
    return arguments


if __name__ == "__main__":
    main()
