"""Small stores for tests: a page or state is bytes that tell what they should be."""

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from svc.disk.files import FileAccess
from svc.disk.records import Identity
from svc.disk.store import DiskStore

PAGE_TOKENS = 4
IDENTITY = Identity(fingerprint="f" * 32, backend="cpu", page_tokens=PAGE_TOKENS, page_bytes=64, state_bytes=200, kv_type="f16")
Tokens = NDArray[np.int32]


def tokens_of(*values: int) -> Tokens:
    return np.array(values, np.int32)


def block(what: Tokens, size: int) -> NDArray[np.uint8]:
    """Bytes that stand for exactly those tokens."""
    seed = np.frombuffer(what.astype("<i4").tobytes(), np.uint8)
    return np.resize(np.append(seed, np.uint8(len(what) % 251)), size).astype(np.uint8)


def open_store(folder: Path, budget: int = 1 << 20, **options: object) -> DiskStore:
    identity = options.pop("identity", IDENTITY)
    assert isinstance(identity, Identity)
    return DiskStore.open(folder, identity, budget, hybrid=True, **options)  # type: ignore[arg-type]


def put(store: DiskStore, tokens: Tokens) -> None:
    """Writes what the path of exactly these tokens lacks."""
    missing = store.missing(tokens)
    for tile, part in missing.pages:
        store.add_page(missing, tile, part, block(tokens[: (tile + 1) * PAGE_TOKENS], IDENTITY.page_bytes))
    if missing.state:
        tail = block(tokens, IDENTITY.page_bytes) if len(tokens) % PAGE_TOKENS else None
        store.add_state(missing, len(tokens), 7, block(tokens, IDENTITY.state_bytes), tail)


def resume(store: DiskStore, tokens: Tokens, beyond: int = 0) -> int:
    """The position that a request could resume at, after reading everything for it and comparing it with what it should be."""
    found = store.find(tokens, beyond)
    if found is None:
        return 0
    assert found.state is not None
    store.expect(found.entries, found.entries)
    for tile, page in enumerate(found.pages):
        assert np.array_equal(store.read(page), block(tokens[: (tile + 1) * PAGE_TOKENS], IDENTITY.page_bytes))
    state = store.read(found.state)
    known = tokens[: found.position]
    assert np.array_equal(state[: IDENTITY.state_bytes], block(known, IDENTITY.state_bytes))
    if found.position % PAGE_TOKENS:
        assert np.array_equal(state[IDENTITY.state_bytes :], block(known, IDENTITY.page_bytes))
    assert len(found.pages) == found.position // PAGE_TOKENS
    return found.position


class FaultyDisk(FileAccess):
    """Fails when told to; a write may put some bytes down before it does."""

    def __init__(self) -> None:
        self.fail_write: Callable[[], int | None] = lambda: None  # an errno
        self.fail_read: Callable[[], int | None] = lambda: None
        self.written_before_failing = 0

    def write(self, fd: int, parts: list[bytes | memoryview]) -> int:
        number = self.fail_write()
        if number is not None:
            left = self.written_before_failing
            for part in parts:
                left -= super().write(fd, [memoryview(part)[:left]]) if left > 0 else 0
            raise OSError(number, "No space left on device" if number == errno.ENOSPC else "Input/output error")
        return super().write(fd, parts)

    def read(self, fd: int, buffer: memoryview, offset: int) -> int:
        number = self.fail_read()
        if number is not None:
            raise OSError(number, "Input/output error")
        return super().read(fd, buffer, offset)
