"""svc.processors: threads by what a container allows and by the cores, on fake machines."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from svc.processors import ThreadChoice, choose_threads


def machine(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return folder


def hyperthreads(*cores: tuple[int, ...]) -> dict[str, str]:
    """Files that say which processors are one core."""
    return {f"system/cpu/cpu{one}/topology/core_cpus_list": ",".join(map(str, core)) for core in cores for one in core}


def speeds(file: str, *values: int) -> dict[str, str]:
    return {f"system/cpu/cpu{number}/{file}": str(value) for number, value in enumerate(values)}


def choose(
    tmp_path: Path, allowed: int | list[int], files: Mapping[str, str], group: Mapping[str, str] | None = None
) -> ThreadChoice:
    processors = range(allowed) if isinstance(allowed, int) else allowed
    system, cgroup = machine(tmp_path / "devices", files), machine(tmp_path / "cgroup", group or {})
    own = machine(tmp_path, {"own": "0::/a/b"}) / "own"
    return choose_threads(0, processors, system, cgroup, own)


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    """One thread per processor that is allowed."""
    assert choose(tmp_path, 3, {}) == ThreadChoice(3, "of 3 processors allowed")
    assert choose(tmp_path, 1, {}).reason == "of 1 processor allowed"


def test_hyperthreads_are_one_core(tmp_path: Path) -> None:
    """Whether numbered side by side or half a machine apart; a core of which one half is allowed counts."""
    apart = hyperthreads((0, 2), (1, 3))
    assert choose(tmp_path, 4, apart) == ThreadChoice(2, "of 4 processors allowed, 2 cores, one thread each")
    assert choose(tmp_path, [2, 3], apart) == ThreadChoice(2, "of 2 processors allowed")
    beside = {f"system/cpu/cpu{n}/topology/thread_siblings_list": "0-1" if n < 2 else "2-3" for n in range(4)}
    assert choose(tmp_path / "older", 4, beside).num_threads == 2


def test_efficiency_cores_as_intel_lists_them(tmp_path: Path) -> None:
    """Two fast cores with two hyperthreads each, four slow ones; a container that has slow ones only takes those."""
    files = hyperthreads((0, 1), (2, 3), (4,), (5,), (6,), (7,)) | {"cpu_core/cpus": "0-3", "cpu_atom/cpus": "4-7"}
    expected = "of 8 processors allowed, 6 cores, one thread each, 4 slower cores left out"
    assert choose(tmp_path, 8, files) == ThreadChoice(2, expected)
    assert choose(tmp_path, [4, 5, 6], files) == ThreadChoice(3, "of 3 processors allowed")


@pytest.mark.parametrize(
    ("file", "values", "number"),
    [
        ("cpu_capacity", (446, 446, 1024, 1024), 2),  # big and little
        ("cpu_capacity", (250, 250, 870, 870, 1024), 3),  # the middle ones keep up
        ("cpufreq/cpuinfo_max_freq", (5100000, 5100000, 3500000, 3500000), 2),
        ("cpufreq/cpuinfo_max_freq", (5200000, 5100000, 4900000, 4900000), 4),  # favoured cores, the others are as good
        ("cpu_capacity", (1024, 1024), 2),
    ],
)
def test_slow_cores_are_left_out(tmp_path: Path, file: str, values: tuple[int, ...], number: int) -> None:
    assert choose(tmp_path, len(values), speeds(file, *values)).num_threads == number


def test_capacity_is_believed_before_frequency(tmp_path: Path) -> None:
    """A small core may have a high clock. Equal capacities say nothing, and frequencies are asked."""
    frequencies = speeds("cpufreq/cpuinfo_max_freq", 2000000, 1000000)
    assert choose(tmp_path / "a", 2, speeds("cpu_capacity", 1024, 900) | frequencies).num_threads == 2
    assert choose(tmp_path / "b", 2, speeds("cpu_capacity", 1024, 1024) | frequencies).num_threads == 1


@pytest.mark.parametrize(
    ("limit", "number"), [("max 100000", 8), ("450000 100000", 4), ("50000 100000", 1), ("900000 100000", 8), ("", 8)]
)
@pytest.mark.parametrize("folder", ["a/b", "a", ""])
def test_the_control_group_limits(tmp_path: Path, folder: str, limit: str, number: int) -> None:
    """Its own, one around it, and the root, which is the container's; rounded down, at least one thread."""
    chosen = choose(tmp_path, 8, {}, {f"{folder}/cpu.max".lstrip("/"): limit})
    assert chosen.num_threads == number
    assert ("limited" in chosen.reason) == (number < 8)


def test_version_1_of_control_groups(tmp_path: Path) -> None:
    """-1 is no limit."""
    for name, quota, number in (("a", "150000", 1), ("b", "-1", 4)):
        files = {"cpu/cpu.cfs_quota_us": quota, "cpu/cpu.cfs_period_us": "100000"}
        assert choose(tmp_path / name, 4, {}, files).num_threads == number


def test_memory_nodes_are_said(tmp_path: Path) -> None:
    """Where the chosen cores have several; one that has none of them does not count."""
    files = {"system/node/online": "0-2", "system/node/node0/cpulist": "0-1", "system/node/node1/cpulist": "2-3"}
    assert "on 2 memory nodes (numactl" in choose(tmp_path, 4, files).reason
    assert "node" not in choose(tmp_path, 2, files).reason


def test_a_number_that_is_set_is_kept(tmp_path: Path) -> None:
    """Also one that is more than there are, which is said."""
    assert choose_threads(2, range(4), tmp_path, tmp_path, tmp_path / "own") == ThreadChoice(2, "as set")
    assert choose_threads(6, range(4), tmp_path, tmp_path, tmp_path / "own").reason.endswith("only 4 processors")
