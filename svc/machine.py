"""The machine's free memory, whatever limits it."""

from collections.abc import Iterator
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
MEMINFO = Path("/proc/meminfo")
UNKNOWN_BYTES = 4 * 2**30  # assumed where the system does not say (not Linux)
UNLIMITED_BYTES = 2**62


def available_memory_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP, own_cgroup: Path = OWN_CGROUP) -> int:
    """Bytes that this process can take without swapping: the system's estimate, or less if a container or service limits it."""
    return min(_from_meminfo(meminfo), *map(_from_cgroup, groups(cgroup, own_cgroup)))


def _from_meminfo(path: Path) -> int:
    try:
        for line in path.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return UNKNOWN_BYTES


def groups(root: Path, own: Path) -> Iterator[Path]:
    """The folders of the process's version 2 group and of all groups around it: each may have a limit (systemd's MemoryMax=).

    Inside a container the root of the mounted hierarchy is the container's own group.
    """
    try:
        paths = [line.removeprefix("0::/") for line in own.read_text().splitlines() if line.startswith("0::/")]
    except OSError:
        paths = []
    folder = root / (paths[0] if paths else "")
    while folder != root and folder.is_relative_to(root):
        yield folder
        folder = folder.parent
    yield root


def _from_cgroup(folder: Path) -> int:
    """Limit less use of a version 2 group, page cache counted as free; without a limit (or in version 1) a very large number."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        if limit == "max":
            return UNLIMITED_BYTES
        used = int((folder / "memory.current").read_text())
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(int(limit) - used + int(statistics.get("inactive_file", 0)) + int(statistics.get("active_file", 0)), 0)
    except (OSError, ValueError):
        return UNLIMITED_BYTES
