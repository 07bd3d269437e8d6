"""svc.machine: the smaller of what the system and the container still have."""

from pathlib import Path

import pytest

from svc.machine import UNKNOWN_BYTES, available_memory_bytes

MEMINFO = "MemTotal:       16000000 kB\nMemFree:  1 kB\nMemAvailable:    8000000 kB\n"


def cgroup(tmp_path: Path, limit: str) -> Path:
    tmp_path.mkdir(parents=True, exist_ok=True)
    (tmp_path / "memory.max").write_text(limit + "\n")
    (tmp_path / "memory.current").write_text("3000000\n")
    (tmp_path / "memory.stat").write_text("anon 1000000\ninactive_file 1500000\nactive_file 500000\n")
    return tmp_path


def meminfo(tmp_path: Path, text: str = MEMINFO) -> Path:
    path = tmp_path / "meminfo"
    path.write_text(text)
    return path


def test_system_estimate_without_a_limit(tmp_path: Path) -> None:
    """No group, or a group without limit: MemAvailable counts."""
    assert available_memory_bytes(meminfo(tmp_path), tmp_path / "none") == 8000000 * 1024
    assert available_memory_bytes(meminfo(tmp_path), cgroup(tmp_path, "max")) == 8000000 * 1024


def test_container_limit_less_what_is_really_used(tmp_path: Path) -> None:
    """Page cache can be dropped, so it counts as free."""
    assert available_memory_bytes(meminfo(tmp_path), cgroup(tmp_path, "10000000")) == 10000000 - 3000000 + 1500000 + 500000
    assert available_memory_bytes(meminfo(tmp_path), cgroup(tmp_path, "100")) == 0


@pytest.mark.parametrize("limited", ["", "system.slice", "system.slice/headrace.service"])
def test_a_service_has_the_smallest_limit_around_it(tmp_path: Path, limited: str) -> None:
    """MemoryMax= of the unit, or of a slice that it is in; groups beside it do not count."""
    root, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("3:cpu:/elsewhere\n0::/system.slice/headrace.service\n")
    for folder in ("", "system.slice", "system.slice/headrace.service"):
        cgroup(root / folder, "10000000" if folder == limited else "max")
    cgroup(root / "system.slice" / "other.service", "100")
    assert available_memory_bytes(meminfo(tmp_path), root, own) == 10000000 - 3000000 + 1500000 + 500000


@pytest.mark.parametrize("line", ["0::/", "0::/../outside", "0::/gone", "4:memory:/v1", ""])
def test_strange_groups_are_no_error(tmp_path: Path, line: str) -> None:
    """A container's own group, one outside of what is mounted, one that is gone, version 1, nothing: the root's limit counts."""
    root, own = cgroup(tmp_path / "cgroup", "10000000"), tmp_path / "own"
    own.write_text(line + "\n")
    assert available_memory_bytes(meminfo(tmp_path), root, own) == 10000000 - 3000000 + 1500000 + 500000


def test_system_that_does_not_say(tmp_path: Path) -> None:
    """Neither a missing file nor a strange one is an error."""
    assert available_memory_bytes(tmp_path / "none", tmp_path) == UNKNOWN_BYTES
    assert available_memory_bytes(meminfo(tmp_path, "MemAvailable:\n"), tmp_path) == UNKNOWN_BYTES
