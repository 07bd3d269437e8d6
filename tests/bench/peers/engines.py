"""Programs that measure: one task with one model in a process of its own, and the tokens a second in what it prints.

A variant is a setting that may or may not help a peer on a machine. All of them are tried once and each task gets its best.
"""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Task:
    """`prompt` tokens at once, or `generate` tokens one by one in each of `sequences`."""

    name: str
    prompt: int = 0
    generate: int = 0
    sequences: int = 1


TASKS = (
    Task("prompt 512", prompt=512),
    Task("generate 64", generate=64),
    Task("generate 64 x 8", generate=64, sequences=8),
)


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    flags: tuple[str, ...] = ()
    libraries: Path | None = None  # found before the program's own


class Engine(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def variants(self) -> tuple[Variant, ...]: ...

    def command(self, task: Task, model: Path, threads: int, variant: Variant) -> list[str]: ...

    def rate(self, task: Task, output: str) -> float:
        """Tokens a second in the output of a run. ValueError where it has none."""
        ...


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """`llama-bench` and `llama-batched-bench`. Each warms up once, by itself."""

    folder: Path
    no_amx: Path | None = None  # libraries
    name: str = "llama.cpp"

    @property
    def variants(self) -> tuple[Variant, ...]:
        plain = (Variant("repacked weights"), Variant("weights as they are", ("0",)))
        return plain if self.no_amx is None else (*plain, Variant("repacked weights, no AMX", libraries=self.no_amx))

    def command(self, task: Task, model: Path, threads: int, variant: Variant) -> list[str]:
        common = ["-m", str(model), "-t", str(threads)]
        if task.sequences > 1:
            plain = ["--no-repack"] if variant.flags else []
            sizes = _batched_sizes(task)
            return [
                str(self.folder / "llama-batched-bench"),
                *common,
                "-tb",
                str(threads),
                *sizes,
                "--output-format",
                "jsonl",
                *plain,
            ]
        plain = ["--repack", "0"] if variant.flags else []
        return [str(self.folder / "llama-bench"), *common, *_sizes(task), "-o", "json", *plain]

    def rate(self, task: Task, output: str) -> float:
        return batched_jsonl_rate(output) if task.sequences > 1 else bench_rate(output)


@dataclass(frozen=True, slots=True)
class IkLlama:
    """The fork has the same programs with older flags; its batched one prints a table only.

    Several sequences go without its flash attention, which ends in GGML_ASSERT(S > 0) with hybrid models (version 0.1.5).
    """

    folder: Path
    name: str = "ik_llama.cpp"
    variants: tuple[Variant, ...] = (
        Variant("weights as they are"),
        Variant("repacked weights", ("-rtr", "1")),
        Variant("merged weights", ("-muge", "1", "-mqkv", "1")),
    )

    def command(self, task: Task, model: Path, threads: int, variant: Variant) -> list[str]:
        common = ["-m", str(model), "-t", str(threads)]
        if task.sequences > 1:
            sizes = ["-tb", str(threads), *_batched_sizes(task), "-no-fa"]
            switches = variant.flags[::2]  # without their values
            return [str(self.folder / "llama-batched-bench"), *common, *sizes, *switches]
        return [str(self.folder / "llama-bench"), *common, *_sizes(task), "-o", "json", *variant.flags]

    def rate(self, task: Task, output: str) -> float:
        return batched_table_rate(output) if task.sequences > 1 else bench_rate(output)


@dataclass(frozen=True, slots=True)
class Headrace:
    """`headrace bench`: through the scheduler, sampling included, after one round that is not counted."""

    level: str = "auto"
    name: str = "headrace"
    variants: tuple[Variant, ...] = (Variant("int8", ("--activations", "int8")),)

    def command(self, task: Task, model: Path, threads: int, variant: Variant) -> list[str]:
        sizes = ["-p", str(task.prompt), "-n", str(task.generate), "-b", str(task.sequences), "-d", "0", "-r", "1", "--json", "-"]
        base = [sys.executable, "-m", "svc.cli", "bench", str(model), "--device", "cpu", "--threads", str(threads)]
        return [*base, "--cpu-level", self.level, *sizes, *variant.flags]

    def rate(self, task: Task, output: str) -> float:
        for result in _json(output)["results"]:
            found = (result["prompt_tokens"], result["generated_tokens"], result["num_sequences"])
            if found == (task.prompt, task.generate, task.sequences):
                return float(result["median"])
        raise ValueError(f"no result of {task.name!r}")


def _sizes(task: Task) -> list[str]:
    return ["-p", str(task.prompt), "-n", str(task.generate), "-r", "1"]


def _batched_sizes(task: Task) -> list[str]:
    """Each sequence begins with one token."""
    context = -(-task.sequences * (task.generate + 1) // 256) * 256 + 256
    sizes = ["-npp", "1", "-ntg", str(task.generate), "-npl", str(task.sequences)]
    return ["-c", str(context), "-b", "2048", "-ub", "512", *sizes]


# ---- what they print


def _json(output: str) -> Any:
    """The one JSON value in an output that may begin with other lines. ValueError where there is none."""
    for start in re.finditer(r"^[\[{]", output, re.MULTILINE):
        try:
            return json.JSONDecoder().raw_decode(output, start.start())[0]
        except ValueError:
            continue
    raise ValueError("no JSON in the output")


def bench_rate(output: str) -> float:
    """Of `llama-bench -o json` with one task."""
    entries: Sequence[dict[str, Any]] = _json(output)
    if len(entries) != 1:
        raise ValueError(f"{len(entries)} results instead of one")
    return float(entries[0]["avg_ts"])


def batched_jsonl_rate(output: str) -> float:
    """Generation, all sequences together, of `llama-batched-bench --output-format jsonl` with one task."""
    return float(_json(output)["speed_tg"])


def batched_table_rate(output: str) -> float:
    """As above, from the table of older versions."""
    names, rows = [], []
    for line in output.splitlines():
        snapshots = [snapshot_id.strip() for snapshot_id in line.strip().strip("|").split("|")]
        if "S_TG t/s" in snapshots:
            names = snapshots
        elif names and len(snapshots) == len(names) and snapshots[0].isdecimal():
            rows.append(snapshots)
    if len(rows) != 1:
        raise ValueError(f"{len(rows)} results instead of one")
    return float(rows[0][names.index("S_TG t/s")])
