"""The machine under a comparison: its processor, what it could do at best, and who else uses it."""

import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# Of the processor's flags those that kernels choose by.
FLAGS = ("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx512vbmi",
         "amx_int8", "amx_bf16", "asimddp", "i8mm", "sve")  # fmt: skip
QUIET_LOAD = 1.0


@dataclass(frozen=True, slots=True)
class Machine:
    processor: str
    cores: int
    flags: tuple[str, ...]
    memory_bytes: int
    load_before: float
    limits: tuple[str, ...]  # rows of a Markdown table: memory rates and 8-bit products

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def this_machine(threads: int, *, with_limits: bool, level: str | None = None) -> Machine:
    """`with_limits` runs `tests.bench.machine_limits`, which takes some seconds. `level`: of our kernels, instead of the best."""
    before = load()
    cpuinfo = Path("/proc/cpuinfo")
    processor, flags = parse_cpuinfo(cpuinfo.read_text() if cpuinfo.exists() else "")
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = measured_limits(threads, level) if with_limits else ()
    return Machine(processor, len(os.sched_getaffinity(0)), flags, pages, before, limits)


def load() -> float:
    return os.getloadavg()[0]


def warning(before: float) -> str | None:
    """What to say about a machine that others use."""
    if before <= QUIET_LOAD:
        return None
    return f"The load is {before:.1f} before the first measurement: other work is running, and the figures are worth little."


def parse_cpuinfo(text: str) -> tuple[str, tuple[str, ...]]:
    """(name, those of FLAGS that the first processor has)."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    present = set(fields.get("flags", fields.get("Features", "")).split())
    return fields.get("model name", "unknown"), tuple(flag for flag in FLAGS if flag in present)


def measured_limits(threads: int, level: str | None = None) -> tuple[str, ...]:
    chosen = [] if level is None else ["--level", level]
    command = [sys.executable, "-m", "tests.bench.machine_limits", "--threads", str(threads), *chosen]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return tuple(line for line in done.stdout.splitlines() if line.startswith("|"))
