"""Runs the engines in turns and keeps every sample."""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tests.bench.peers.engines import TASKS, Engine, Task, Variant
from tests.bench.peers.models import Work
from tests.bench.peers.report import Comparison, shown
from tests.bench.peers.servers import (
    ROOT,
    Server,
    ServerKind,
    Setting,
    conversation,
    next_turn,
    rotated,
    start_times,
    with_libraries,
)

KINDS = ("Q4_K", "Q8_0")
BARS = {"prompt 512": 1.1, "generate 64": 1.1, "generate 64 x 8": 2.0}
CACHE_BAR, MEMORY_BAR = 2.0, 1.0
TEXT = ROOT / "tests" / "data" / "text" / "ppl.txt"
DEMO = ROOT / "svc" / "models" / "headrace-demo.gguf"
PROMPT_CHARACTERS = 7000  # about 1,500 tokens
CONTEXT, SLOTS = 4096, 4
LONGEST_RUN_S = 600


@dataclass(slots=True)
class ReportTable:
    """One table of the report; `details` is what else belongs into the JSON file."""

    engines: list[str]
    rows: list[Comparison] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"ratios": {row.test: row.ratio for row in self.rows}}


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ---- tokens a second


def run_once(engine: Engine, task: Task, model: Path, threads: int, variant: Variant) -> float | None:
    """Tokens a second, or None where the engine fails, which is said."""
    command = engine.command(task, model, threads, variant)
    with tempfile.TemporaryDirectory() as folder:  # some leave logs where they run
        cwd = ROOT if command[0] == sys.executable else Path(folder)
        try:
            done = subprocess.run(
                command,
                cwd=cwd,
                env=with_libraries(variant.libraries),
                capture_output=True,
                text=True,
                timeout=LONGEST_RUN_S,
                check=True,
            )
            rate = engine.rate(task, f"{done.stdout}\n{done.stderr}")  # the fork logs its table
        except (subprocess.SubprocessError, ValueError) as error:
            progress(f"{engine.name}, {variant.name}, {task.name}: {error}")
            return None
    progress(f"{model.name}: {task.name}: {engine.name} ({variant.name}): {rate:.2f}")
    return rate


def best_variants(engine: Engine, model: Path, threads: int) -> dict[Task, tuple[Variant, float]]:
    """For each task the variant that was best in one run of each. Tasks that the engine cannot do at all are not in it."""
    best: dict[Task, tuple[Variant, float]] = {}
    for task in TASKS:
        for variant in engine.variants:
            rate = run_once(engine, task, model, threads, variant)
            if rate is not None and (task not in best or rate > best[task][1]):
                best[task] = (variant, rate)
    return best


def compare_rates(engines: Sequence[Engine], model: Path, work: Work, threads: int, rounds: int) -> ReportTable:
    """The tasks of one model. What chose the variants is not counted; it also reads the file into memory."""
    chosen = {engine.name: best_variants(engine, model, threads) for engine in engines}
    samples: dict[Task, dict[str, list[float]]] = {task: {engine.name: [] for engine in engines} for task in TASKS}
    for number in range(rounds):
        for task in TASKS:
            for engine in rotated(engines, number):
                if task in chosen[engine.name]:
                    rate = run_once(engine, task, model, threads, chosen[engine.name][task][0])
                    samples[task][engine.name] += [] if rate is None else [rate]
    part = ReportTable([engine.name for engine in engines])
    part.rows = [Comparison(task.name, samples[task], bar=BARS[task.name]) for task in TASKS]
    for engine in engines:
        names = [f"{task.name}: {variant.name}" for task, (variant, _) in chosen[engine.name].items()]
        part.notes.append(f"{engine.name}: {'; '.join(names) or 'does not run this model'}.")
        part.details[engine.name] = names
    part.notes += [reached(row, work) for row in part.rows[:2] if any(row.samples.values())]
    return part


def reached(row: Comparison, work: Work) -> str:
    """What a rate is in bytes of weights (generation of one sequence) or in operations (a prompt), for each engine's median."""
    one_by_one = row.test.startswith("generate")
    amount, unit = (work.weight_bytes, "GB/s of weights") if one_by_one else (work.operations, "GOP/s")
    medians = {name: row.median(name) for name in row.samples}
    shares = [f"{name} {shown(median * amount / 1e9)}" for name, median in medians.items() if median is not None]
    return f"{row.test} in {unit}: {', '.join(shares)}."


# ---- servers


def compare_serving(kinds: Sequence[ServerKind], name: str, model: Path, threads: int, rounds: int) -> dict[str, ReportTable]:
    """First tokens and memory. All servers are up at once, one is asked at a time."""
    setting = Setting(model, CONTEXT, SLOTS, threads)
    cases = ("unknown prompt", "the same again", "next turn")
    samples: dict[str, dict[str, list[float]]] = {case: {kind.name: [] for kind in kinds} for case in cases}
    lengths: dict[str, int] = {}
    text = TEXT.read_text()
    with ExitStack() as stack:
        servers = []
        for kind in kinds:
            try:
                servers.append(stack.enter_context(Server(kind, setting)))
            except RuntimeError as error:
                progress(str(error))
        for number in range(rounds):
            messages = conversation(text, number, PROMPT_CHARACTERS)
            for case, asked in zip(cases, (messages, messages, next_turn(messages)), strict=True):
                for server in rotated(servers, number):
                    try:
                        seconds, lengths[case] = server.first_token(asked)
                    except (RuntimeError, OSError, HTTPException) as error:
                        progress(f"{server.name} is given up: {error!r} {server.last_lines()}")
                        servers.remove(server)
                        continue
                    samples[case][server.name].append(1000 * seconds)
                    progress(f"{model.name}: {case}: {server.name}: {1000 * seconds:.1f} ms of {lengths[case]} tokens")
        memory = {server.name: server.memory() for server in servers}
    names = [kind.name for kind in kinds]
    first = ReportTable(names, details={"prompt tokens": lengths})
    for case in cases:
        bar = CACHE_BAR if case != cases[0] else None
        first.rows.append(Comparison(f"{case} ({lengths.get(case)} tokens)", samples[case], lower_is_better=True, bar=bar))
    return {f"{name}, ms to the first token": first, f"{name}, MiB of memory while serving": memory_part(names, memory)}


def memory_part(names: list[str], memory: dict[str, dict[str, int]]) -> ReportTable:
    part = ReportTable(names)
    for what, title, bar in (
        ("all", "resident", MEMORY_BAR),
        ("anonymous", "of that not a file's", None),
        ("file", "mapped file", None),
    ):
        values = {name: [sizes[what] / 2**20] for name, sizes in memory.items()}
        part.rows.append(Comparison(title, values, lower_is_better=True, bar=bar))
    return part


def compare_starts(kinds: Sequence[ServerKind], threads: int, rounds: int) -> ReportTable:
    """The bundled model."""
    part = ReportTable([kind.name for kind in kinds])
    times = start_times(kinds, Setting(DEMO, 512, SLOTS, threads), rounds)
    part.rows = [Comparison("start to ready, bundled model, s", times, lower_is_better=True)]
    return part
