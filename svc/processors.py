"""How many compute threads the machine has cores for, and why: what the container allows, one per core, no efficiency cores.

Threads are not bound to cores. Two servers that bind themselves would share some cores while others idle, and the system already
prefers fast and idle ones; whoever wants them bound uses taskset, a cpuset or CPUAffinity=, which are followed here.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from svc.machine import CGROUP, OWN_CGROUP, groups

SYSTEM = Path("/sys/devices")
FULL_SPEED = 0.7  # of the fastest core: a slower one makes the others wait at the end of each product


@dataclass(frozen=True, slots=True)
class ThreadChoice:
    """`reason` completes "8 threads: ..."."""

    num_threads: int
    reason: str


def choose_threads(
    wanted: int = 0,
    allowed: Iterable[int] | None = None,
    system: Path = SYSTEM,
    cgroup: Path = CGROUP,
    own_cgroup: Path = OWN_CGROUP,
) -> ThreadChoice:
    """`wanted`: 0 chooses. `allowed`: processors that this process may use, by default those of its affinity (taskset, cpuset)."""
    processors = sorted(allowed_processors() if allowed is None else allowed)
    if wanted:
        few = f", although this process may use only {len(processors)} processors" if wanted > len(processors) else ""
        return ThreadChoice(wanted, f"as set{few}")
    cores = one_per_core(processors, system)
    fast = fast_cores(cores, system)
    parts = [f"of {_count(len(processors), 'processor')} allowed"]
    if len(cores) < len(processors):
        parts.append(f"{_count(len(cores), 'core')}, one thread each")
    if len(fast) < len(cores):
        parts.append(f"{_count(len(cores) - len(fast), 'slower core')} left out")
    quota, number = cpu_quota(cgroup, own_cgroup), len(fast)
    if quota is not None and quota < number:
        number = max(1, int(quota))  # rounded down: what is over the quota is stopped in the middle of a step, and all wait for it
        parts.append(f"limited to {quota:g} by the control group")
    if (nodes := num_nodes(fast, system)) > 1:
        parts.append(f"on {nodes} memory nodes (numactl --interleave=all spreads the weights over them)")
    return ThreadChoice(number, ", ".join(parts))


def allowed_processors() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def one_per_core(processors: Sequence[int], system: Path) -> list[int]:
    """The first allowed processor of each core: two hyperthreads have one set of multipliers."""
    taken: set[int] = set()
    first = []
    for processor in processors:
        if processor not in taken:
            first.append(processor)
            topology = system / "system" / "cpu" / f"cpu{processor}" / "topology"
            taken.update(_list(topology / "core_cpus_list") or _list(topology / "thread_siblings_list"))
    return first


def fast_cores(cores: Sequence[int], system: Path) -> list[int]:
    """Those that are not efficiency cores: as Intel's processors list them, else by capacity (ARM), else by highest frequency."""
    efficient = set(_list(system / "cpu_atom" / "cpus"))
    if efficient:
        return [core for core in cores if core not in efficient] or list(cores)
    for file in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        speeds = [_number(system / "system" / "cpu" / f"cpu{core}" / file) for core in cores]
        if speeds and all(speeds) and len(set(speeds)) > 1:
            return [core for core, speed in zip(cores, speeds, strict=True) if speed >= FULL_SPEED * max(speeds)]
    return list(cores)


def cpu_quota(cgroup: Path, own_cgroup: Path) -> float | None:
    """Processors' worth of time that the process's control group gets, or the least of those around it; None without a limit."""
    found = [quota for folder in groups(cgroup, own_cgroup) if (quota := _quota(folder)) is not None]
    for old in (cgroup / "cpu", cgroup / "cpu,cpuacct"):  # version 1, the container's own group
        most, period = _number(old / "cpu.cfs_quota_us"), _number(old / "cpu.cfs_period_us")
        if most > 0 and period > 0:
            found.append(most / period)
    return min(found, default=None)


def num_nodes(processors: Sequence[int], system: Path) -> int:
    """Memory nodes (NUMA) of these processors."""
    folder, wanted = system / "system" / "node", set(processors)
    return max(1, sum(1 for number in _list(folder / "online") if wanted.intersection(_list(folder / f"node{number}" / "cpulist"))))


def _quota(folder: Path) -> float | None:
    most, _, period = _text(folder / "cpu.max").partition(" ")
    return int(most) / int(period) if most.isdecimal() and period.isdecimal() and int(most) and int(period) else None


def _list(path: Path) -> list[int]:
    """The numbers of a list such as "0-3,8"; none where there is no such file."""
    numbers: list[int] = []
    for part in _text(path).split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def _number(path: Path) -> int:
    """0 where there is no such file, and for what is no positive number."""
    text = _text(path)
    return int(text) if text.isdecimal() else 0


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
