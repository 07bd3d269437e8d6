"""Memory that was freed goes back to the system, where the C library can do that."""

import ctypes
import platform
from pathlib import Path

import pytest

from svc import free_memory


def anonymous_kib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc keeps freed memory")
def test_freed_memory_goes_back() -> None:
    """Thousands of blocks of 4 KiB, too small for maps of their own, below one that stays."""
    c = ctypes.CDLL(None)
    c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
    blocks = [c.malloc(4096) for _ in range(5001)]
    for block in blocks:
        ctypes.memset(block, 1, 4096)
    for block in blocks[:-1]:
        c.free(block)
    before = anonymous_kib()
    free_memory.give_back()
    assert before - anonymous_kib() > 15000
    c.free(blocks[-1])


def test_a_library_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing happens."""
    monkeypatch.setattr(free_memory.ctypes, "CDLL", lambda name: object())
    free_memory.give_back()
