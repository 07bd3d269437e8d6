"""The cache directory: what was written is found again and is what it was, whatever became of the files."""

import errno
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from svc.disk.records import VERSION
from svc.disk.store import SUFFIX, DiskFullError, DiskReadError
from svc.errors import ConfigError
from tests.disk.store_files import IDENTITY, FaultyDisk, Tokens, open_store, put, resume, tokens_of

A, B = np.arange(1, 42, dtype=np.int32), np.append(np.arange(1, 30, dtype=np.int32), np.arange(70, 90, dtype=np.int32))


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}"))


def test_found_at_the_deepest_state_of_each_path(tmp_path: Path) -> None:
    """Paths share their pages; a state counts only where its tokens, the last few behind a whole page included, are the same."""
    store = open_store(tmp_path)
    for tokens in (A[:17], A, B[:30], A[:3]):
        put(store, tokens)
    pages = store.stats().counters.pages_written
    assert pages == 10  # of A; B's first 28 tokens are A's
    assert [resume(store, A[:n]) for n in (2, 3, 16, 17, 40, 41)] == [0, 3, 3, 17, 17, 41]
    assert resume(store, B) == 30
    assert resume(store, np.append(A[:16], np.int32(99))) == 3
    assert store.find(A, 41) is None
    assert not store.begins(tokens_of(5, 6, 7, 8)) or resume(store, tokens_of(5, 6, 7, 8)) == 0


def test_a_restart_changes_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, A)
    put(store, B[:33])
    store.close()
    again = open_store(tmp_path)
    assert not again.skipped
    assert (resume(again, A), resume(again, B)) == (41, 33)
    put(again, A)
    assert again.stats().counters.pages_written == 0


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=30).map(lambda values: tokens_of(*values))


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(st.sampled_from(["put", "put", "resume", "forget", "restart"]), TOKENS), max_size=25),
    budget=st.sampled_from([4_000, 12_000, 1 << 20]),
)
def test_random_use(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Tokens]], budget: int) -> None:
    """Whatever is found is right, the files stay within the budget, and with room for all of it nothing is lost."""
    folder = tmp_path_factory.mktemp("cache")
    store = open_store(folder, budget)
    known: set[tuple[int, ...]] = set()
    for what, tokens in steps:
        key = tuple(tokens.tolist())
        if what == "put":
            put(store, tokens)
            known.add(key)
        elif what == "forget":
            store.write_forgotten(store.forget(tokens))
            known -= {key[:n] for n in range(len(key) + 1)}
        elif what == "restart":
            store.close()
            store = open_store(folder, budget)
            assert not store.skipped
        expected = max((n for n in range(1, len(key) + 1) if key[:n] in known), default=0)
        found = resume(store, tokens)
        assert found == expected if budget == 1 << 20 else found <= expected
        assert store.used_bytes <= budget
        assert store.used_bytes == sum(path.stat().st_size for path in segments(folder))
    store.close()


def test_the_budget_keeps_what_was_of_use(tmp_path: Path) -> None:
    """A conversation that is used again and again outlives hundreds of others."""
    store = open_store(tmp_path, budget=40_000)
    put(store, A)
    for seed in range(300):
        put(store, np.random.default_rng(seed).integers(100, 1000, 30).astype(np.int32))
        assert resume(store, A) == 41
    counters = store.stats().counters
    assert counters.evicted > 1000
    assert counters.moved < counters.evicted / 4
    assert len(segments(tmp_path)) <= 9


def test_a_cut_at_any_byte_loses_only_what_is_behind_it(tmp_path: Path) -> None:
    """As a kill in the middle of a write leaves a file: every record before is still found."""
    store = open_store(tmp_path / "whole")
    ends = []
    for tokens in (A[:9], A[:17], A):
        put(store, tokens)
        ends.append((segments(tmp_path / "whole")[0].stat().st_size, len(tokens)))
    store.close()
    data = segments(tmp_path / "whole")[0].read_bytes()
    (tmp_path / "cut").mkdir()
    for length in range(len(data)):
        (tmp_path / "cut" / f"00000001{SUFFIX}").write_bytes(data[:length])
        store = open_store(tmp_path / "cut")
        assert resume(store, A) == max((position for end, position in ends if end <= length), default=0)
        store.close()


def test_no_flipped_bit_is_ever_served(tmp_path: Path) -> None:
    """Whatever byte is damaged, a record is right or it is not there; those before it are found."""
    store = open_store(tmp_path / "whole")
    put(store, A[:18])
    store.close()
    data = segments(tmp_path / "whole")[0].read_bytes()
    (tmp_path / "bad").mkdir()
    lost = 0
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        (tmp_path / "bad" / f"00000001{SUFFIX}").write_bytes(damaged)
        store = open_store(tmp_path / "bad")
        try:
            lost += resume(store, A) != 18
        except DiskReadError:
            lost += 1
            assert resume(store, A) == 0  # the damaged record has been dropped
        store.close()
    assert lost == len(data)


def _fields() -> dict[str, object]:
    return {name: getattr(IDENTITY, name) for name in IDENTITY.__struct_fields__}


STRANGERS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "another format": (lambda data: b"GGUF" + data[4:], "no cache file of Headrace"),
    "a later version": (lambda data: data[:8] + bytes([VERSION + 1]) + data[9:], f"version {VERSION + 1}"),
    "empty": (lambda data: b"", "no cache file of Headrace"),
    "cut in its header": (lambda data: data[:40], "within its header"),
    "a damaged header": (lambda data: data[:30] + b"\0" + data[31:], "header is damaged"),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_files_that_are_not_ours_are_named_and_left_alone(tmp_path: Path, kind: str) -> None:
    """They are skipped with a reason; the others work; they go first when space is needed."""
    change, reason = STRANGERS[kind]
    store = open_store(tmp_path)
    put(store, A)
    store.close()
    stranger = tmp_path / f"00000007{SUFFIX}"
    stranger.write_bytes(change(segments(tmp_path)[0].read_bytes()))
    store = open_store(tmp_path, budget=20_000)
    assert [(skipped.path, reason in skipped.reason) for skipped in store.skipped] == [(stranger, True)]
    assert resume(store, A) == 41
    for seed in range(40):
        put(store, np.random.default_rng(seed).integers(100, 1000, 30).astype(np.int32))
        resume(store, A)
    assert not stranger.exists()
    assert resume(store, A) == 41


@pytest.mark.parametrize("field", IDENTITY.__struct_fields__)
def test_another_model_or_layout_is_not_read(tmp_path: Path, field: str) -> None:
    value = getattr(IDENTITY, field)
    other = type(IDENTITY)(**{**_fields(), field: value + 4 if isinstance(value, int) else value + "x"})
    store = open_store(tmp_path, identity=other)
    store.close()
    store = open_store(tmp_path)
    put(store, A)
    store.close()
    store = open_store(tmp_path, identity=other)
    assert len(store.skipped) == 1
    assert len(store.index) == 0


def test_one_process_writes(tmp_path: Path) -> None:
    """The second is told who has the folder."""
    store = open_store(tmp_path)
    with pytest.raises(ConfigError, match=f"cache_dir: {tmp_path} is in use by process {os.getpid()}"):
        open_store(tmp_path)
    store.close()
    open_store(tmp_path).close()


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cache_dir: .*file/cache cannot be used: Not a directory"):
        open_store(tmp_path / "file" / "cache")


@pytest.mark.parametrize("written", [0, 1, 100, 250])
def test_a_full_disk(tmp_path: Path, written: int) -> None:
    """Writing ends with the reason, what was there is still read, and half a record does no harm after a restart."""
    disk = FaultyDisk()
    store = open_store(tmp_path, access=disk)
    put(store, A[:17])
    disk.fail_write, disk.written_before_failing = lambda: errno.ENOSPC, written
    with pytest.raises(DiskFullError, match="No space left on device"):
        put(store, A)
    assert not store.stats().writable
    with pytest.raises(DiskFullError):
        put(store, B)
    assert resume(store, A) == 17
    store.close()
    store = open_store(tmp_path)
    assert resume(store, A) == 17
    put(store, A)
    assert resume(store, A) == 41


def test_a_disk_that_cannot_be_read(tmp_path: Path) -> None:
    """The record is dropped and counted, the next look finds what is left."""
    disk = FaultyDisk()
    store = open_store(tmp_path, access=disk)
    put(store, A[:17])
    put(store, A)
    found = store.find(A, 0)
    assert found is not None
    assert found.state is not None
    disk.fail_read = lambda: errno.EIO
    with pytest.raises(DiskReadError, match="Input/output error"):
        store.read(found.state)
    disk.fail_read = lambda: None
    assert resume(store, A) == 17
    assert store.stats().counters.damaged == 1


def test_a_file_removed_by_hand_while_it_is_used(tmp_path: Path) -> None:
    """It stays readable until the server ends."""
    store = open_store(tmp_path)
    put(store, A)
    segments(tmp_path)[0].unlink()
    assert resume(store, A) == 41


def _write_for_ever(folder: Path, seed: int, begun: int) -> None:
    """In a child: conversations that grow, as fast as it can; a byte goes to the file `begun` after the first of them."""
    rng = random.Random(seed)
    store = open_store(folder, budget=60_000)
    while True:
        start = rng.randrange(6)
        put(store, np.arange(start, start + rng.randrange(1, 60), dtype=np.int32))
        if begun >= 0:
            os.write(begun, b"1")
            begun = -1


def _kills(folder: Path, count: int) -> int:
    """Kills a writing process that often, at random moments; everything found afterwards is right. How often something was."""
    rng, found = random.Random(1), 0
    for round_ in range(count):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                _write_for_ever(folder, round_, writer)
            finally:
                os._exit(1)
        os.close(writer)
        assert os.read(reader, 1), "the child ended"
        os.close(reader)
        time.sleep(rng.uniform(0, 0.03))  # any moment will do
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        store = open_store(folder, budget=60_000)
        cut_off = ("ends within a record", "ends within its header", "no cache file")
        assert all(any(reason in skipped.reason for reason in cut_off) for skipped in store.skipped)
        for start in range(6):
            found += resume(store, np.arange(start, start + 60, dtype=np.int32)) > 0
        assert store.used_bytes <= 60_000
        store.close()
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_kill_in_a_loop(tmp_path: Path) -> None:
    assert _kills(tmp_path, 20) > 20


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_kill_in_a_long_loop(tmp_path: Path) -> None:
    assert _kills(tmp_path, 200) > 200
