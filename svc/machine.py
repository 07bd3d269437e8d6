"""What this machine has to give: free memory, whatever limits it."""

from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")
UNKNOWN_BYTES = 4 * 2**30  # taken where the system does not say (not Linux)


def available_memory_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int:
    """Bytes that this process can take without swapping: the system's own estimate, or what its container still allows if less."""
    return min(_from_meminfo(meminfo), _from_cgroup(cgroup))


def _from_meminfo(path: Path) -> int:
    try:
        for line in path.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return UNKNOWN_BYTES


def _from_cgroup(root: Path) -> int:
    """Limit less use of a version 2 group, page cache counted as free; unlimited (or version 1) is a very large number.

    Inside a container the root of the mounted hierarchy is the container's own group.
    """
    try:
        limit = (root / "memory.max").read_text().strip()
        if limit == "max":
            return 2**62
        used = int((root / "memory.current").read_text())
        statistics = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
        return max(int(limit) - used + int(statistics.get("inactive_file", 0)) + int(statistics.get("active_file", 0)), 0)
    except (OSError, ValueError):
        return 2**62
