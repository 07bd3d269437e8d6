"""The disk under the memory: what a server computed is there for the next one, and a bad disk costs time and nothing else.

The engine runs over the fake device, which notices any page or state that is not what it should be; files are real.
"""

import asyncio
import errno
import itertools
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from svc.disk.files import FileAccess
from svc.disk.records import Identity
from svc.disk.store import DiskStore
from svc.memory.plan import MemoryPlan
from svc.memory.sequence_cache import SequenceCache
from svc.slots.budget import ChunkBudget
from svc.slots.disk_tier import DiskTier
from svc.slots.engine import Engine
from svc.slots.events import Finished
from svc.slots.request import Request
from svc.slots.scheduler import Scheduler
from svc.slots.slot_files import SlotFiles
from tests.disk.store_files import FaultyDisk
from tests.fakes.event_reader import EventReader
from tests.fakes.fake_backend import FakeBackend, expected_answer
from tests.slots.harness import GREEDY, layout
from tests.slots.loop_worker import LoopWorker

PATIENCE_S = 20.0


def prompt_of(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(900), k=length))


def folder(parent: Path, name: str) -> Path:
    (parent / name).mkdir(exist_ok=True)
    return parent / name


def damage(parent: Path, share: float) -> None:
    """Flips a bit of the cache file, at that share of its length."""
    (path,) = parent.glob("*.hrcache")
    data = bytearray(path.read_bytes())
    data[int(len(data) * share)] ^= 1
    path.write_bytes(data)


async def until(holds: Callable[[], bool]) -> None:
    """Lets the loop and the threads go on until it does."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


class Server:
    """An engine with a disk tier in a folder; `kill` ends it without a word."""

    def __init__(
        self,
        folder: Path,
        *,
        hybrid: bool = True,
        pages: int = 128,
        snapshots: int = 32,
        host: tuple[int, int] = (0, 0),
        budget: int = 64 << 20,
        access: FileAccess | None = None,
        token_s: float | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        plan = MemoryPlan(layout(hybrid=hybrid), pages, 4, snapshots, *host)
        self.plan, self.cache = plan, SequenceCache(plan)
        self.backend = FakeBackend(plan, max_step_tokens=64, moves_lag=2 if host[0] else 0)
        self.backend.read_anywhere = not host[0]
        self.worker = LoopWorker(self.backend)
        self.errors: list[BaseException] = []
        self.reports: list[tuple[str, str]] = []
        scheduler = Scheduler(self.cache, context_tokens=1500, budget=ChunkBudget(64, 10.0))
        sizes = plan.layout
        identity = Identity(
            fingerprint="fake",
            backend="fake",
            page_tokens=sizes.page_tokens,
            page_bytes=sizes.page_bytes,
            state_bytes=sizes.snapshot_bytes,
            kv_type=sizes.kv_type,
        )
        self.store = DiskStore.open(folder, identity, budget, hybrid=hybrid, access=access)
        ticks = itertools.count()
        clock = clock or (lambda: float(next(ticks)))
        self.disk = DiskTier(
            self.store,
            self.worker,
            self.cache,
            scheduler.joins,
            clock=clock,
            token_s=lambda: token_s,
            report=lambda event, reason: self.reports.append((event, reason)),
        )
        (folder / "slots").mkdir(exist_ok=True)
        self.files = SlotFiles(folder / "slots", identity, self.worker, self.cache, clock=clock)
        self.engine = Engine(scheduler, self.worker, self.cache, on_error=self.errors.append, disk=self.disk, slot_files=self.files)
        self._count = 0

    async def __aenter__(self) -> "Server":
        await self.engine.start()
        await self.disk.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.engine.drain(60)
        await self.engine.stop()
        await self.disk.stop(PATIENCE_S)
        assert not self.errors
        self.cache.check()
        assert not self.cache.transfers.imports
        self.cache.clear()
        stats = self.cache.stats()
        assert (stats.free_rows, stats.free_pages) == (4, self.plan.num_pages)
        assert stats.published_snapshots == stats.reserved_snapshots == 0

    def submit(self, prompt: Sequence[int], max_tokens: int = 5, **fields: Any) -> EventReader:
        self._count += 1
        return EventReader(
            self.engine, Request(id=f"r{self._count}", prompt=prompt, max_tokens=max_tokens, params=GREEDY, **fields)
        )

    async def ask(self, prompt: Sequence[int], max_tokens: int = 5, **fields: Any) -> Finished:
        """The end of an answer, whose tokens are those of a server without any cache."""
        reader = self.submit(prompt, max_tokens, **fields)
        assert await reader.tokens() == expected_answer(prompt, max_tokens)
        assert reader.finished is not None
        return reader.finished

    async def cached(self, prompt: Sequence[int], max_tokens: int = 5) -> int:
        return (await self.ask(prompt, max_tokens)).usage.cached_tokens

    async def written(self) -> None:
        """Everything published so far is on the disk."""
        await self.engine.states_saved()
        self.disk.note_published()
        async with asyncio.timeout(PATIENCE_S):
            await self.disk._all_written.wait()


@pytest.mark.parametrize("hybrid", [True, False])
async def test_after_a_restart_everything_is_as_warm_as_before(tmp_path: Path, hybrid: bool) -> None:
    """The same prompt, the next turn and an edit of the end get what they would have got."""
    prompt = prompt_of(300)
    turn = (*prompt, *expected_answer(prompt, 5), 7, 7, 7)
    edited = (*prompt[:290], *prompt_of(20, seed=1))
    async with Server(folder(tmp_path, "a"), hybrid=hybrid) as server:
        assert await server.cached(prompt) == 0
        hot = [await server.cached(tokens, 3) for tokens in (prompt, turn, edited)]
    async with Server(folder(tmp_path, "b"), hybrid=hybrid) as server:
        assert await server.cached(prompt) == 0
    async with Server(folder(tmp_path, "b"), hybrid=hybrid) as server:
        first = await server.ask(prompt, 3)
        warm = [first.usage.cached_tokens, *[await server.cached(tokens, 3) for tokens in (turn, edited)]]
        assert first.cache.tier == "disk"
        assert warm[0] == 300
        assert warm[:1] + warm[2:] == hot[:1] + hot[2:]
        # An attention-only model's next turn lacks at most the page that the answer has begun.
        assert warm[1] == hot[1] if hybrid else hot[1] - 16 < warm[1] <= hot[1]
        assert server.disk.stats().counters.fetches >= 1


async def test_a_kill_loses_only_what_was_not_written(tmp_path: Path) -> None:
    server = Server(tmp_path)
    async with server:
        await server.ask(prompt_of(200))
        await server.written()
        server.store.lock_file.close()  # as the system does when a process dies; nothing else is closed
        async with Server(tmp_path) as other:
            assert await other.cached(prompt_of(200)) == 200


async def test_what_has_left_the_memory_comes_back(tmp_path: Path) -> None:
    """With little memory the disk is the second tier."""
    prompts = [prompt_of(200, seed) for seed in range(12)]
    async with Server(tmp_path, pages=40, snapshots=6) as server:
        for prompt in prompts:
            await server.ask(prompt)
            await server.written()
        assert [await server.cached(prompt) for prompt in prompts] == [200] * 12


async def test_the_host_tier_lies_between(tmp_path: Path) -> None:
    prompts = [prompt_of(200, seed) for seed in range(20)]
    async with Server(tmp_path, pages=40, snapshots=6, host=(60, 8)) as server:
        for prompt in prompts:
            await server.ask(prompt)
            await server.written()
        assert [await server.cached(prompt) for prompt in prompts] == [200] * 20


async def test_others_go_on_while_one_waits_for_the_disk(tmp_path: Path) -> None:
    """The reader is stuck; a request that needs nothing from the disk is answered."""
    async with Server(tmp_path) as server:
        await server.ask(prompt_of(200))
        await server.written()
    disk, stuck = SlowDisk(), prompt_of(200)
    async with Server(tmp_path, access=disk) as server:
        disk.hold()
        waiting = server.submit(stuck)
        await server.ask(prompt_of(100, seed=5))
        assert server.disk.num_fetching == 1
        assert waiting.finished is None
        disk.release()
        assert await waiting.tokens() == expected_answer(stuck, 5)
        assert waiting.finished is not None
        assert waiting.finished.usage.cached_tokens == 200


async def test_many_requests_share_one_reading(tmp_path: Path) -> None:
    async with Server(tmp_path) as server:
        await server.ask(prompt_of(200))
        await server.written()
    async with Server(tmp_path) as server:
        readers = [server.submit(prompt_of(200)) for _ in range(6)]
        for reader in readers:
            await reader.tokens()
        assert [reader.finished.usage.cached_tokens for reader in readers if reader.finished] == [200] * 6
        assert server.store.stats().counters.states_read == 1


async def test_a_slow_disk_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request evaluates, and the log says so."""
    monkeypatch.setattr("svc.slots.disk_tier.MIN_WAIT_S", 0.05)
    async with Server(tmp_path) as server:
        await server.ask(prompt_of(200))
        await server.written()
    disk = SlowDisk()
    async with Server(tmp_path, access=disk, token_s=1e-4) as server:
        disk.hold()
        try:
            assert await server.cached(prompt_of(200)) == 0
        finally:
            disk.release()
        assert [event for event, _ in server.reports] == ["disk_slow"]
        assert server.disk.counters.given_up == 1


async def test_a_client_that_leaves_while_it_waits(tmp_path: Path) -> None:
    async with Server(tmp_path) as server:
        await server.ask(prompt_of(200))
        await server.written()
    disk = SlowDisk()
    async with Server(tmp_path, access=disk) as server:
        disk.hold()
        waiting = server.submit(prompt_of(200))
        await asyncio.sleep(0)
        waiting.cancel()
        disk.release()
        assert await server.cached(prompt_of(200)) == 200


@pytest.mark.parametrize("share", [0.1, 0.5, 0.75, 0.9, 0.99])
async def test_damaged_records_are_evaluated(tmp_path: Path, share: float) -> None:
    """What is shallower and whole is used; the answer is right in any case."""
    prompt = prompt_of(300)
    async with Server(tmp_path) as server:
        await server.ask(prompt[:100])
        await server.ask(prompt)
        await server.written()
    damage(tmp_path, share)
    async with Server(tmp_path) as server:
        first = await server.cached(prompt)
        assert first < 300 or not server.store.counters.damaged  # else it was a record that this prompt has no use for
        assert await server.cached(prompt) == 300


async def test_a_disk_that_cannot_be_read(tmp_path: Path) -> None:
    async with Server(tmp_path) as server:
        await server.ask(prompt_of(200))
        await server.written()
    disk = FaultyDisk()
    async with Server(tmp_path, access=disk) as server:
        disk.fail_read = lambda: errno.EIO
        assert await server.cached(prompt_of(200)) == 0
        assert {event for event, _ in server.reports} == {"disk_record_damaged"}


async def test_a_full_disk_turns_writing_off(tmp_path: Path) -> None:
    """It is said once; requests go on, and what was written is read."""
    disk = FaultyDisk()
    async with Server(tmp_path, access=disk) as server:
        await server.ask(prompt_of(200))
        await server.written()
        disk.fail_write = lambda: errno.ENOSPC
        for seed in range(1, 5):
            await server.ask(prompt_of(200, seed))
            await server.written()
        assert [event for event, _ in server.reports] == ["disk_tier_off"]
        assert not server.disk.stats().store.writable
        server.cache.clear()
        assert await server.cached(prompt_of(200)) == 200


async def test_memory_that_requests_need_is_given_back(tmp_path: Path) -> None:
    """A reading under way holds pages; the only running request takes them, and the one that waited evaluates."""
    long = prompt_of(600)
    async with Server(tmp_path, pages=64) as server:
        await server.ask(long)
        await server.written()
    disk = SlowDisk()
    async with Server(tmp_path, pages=64, access=disk) as server:
        disk.hold()
        waiting = server.submit(long)
        await until(lambda: bool(server.cache.transfers.imports))
        await server.ask(prompt_of(700, seed=3))
        assert not server.cache.transfers.imports
        disk.release()
        assert await waiting.tokens() == expected_answer(long, 5)


async def test_what_is_not_finite_is_forgotten(tmp_path: Path) -> None:
    """A poisoned request: none of its states is used again, after a restart neither."""
    prompt = prompt_of(200)
    async with Server(tmp_path) as server:
        await server.ask(prompt[:100])
        await server.written()
        server.backend.poison(prompt[:150])
        reader = server.submit(prompt)
        await reader.tokens()
        assert reader.finished is not None
        assert reader.finished.error
        await server.written()
        server.cache.clear()
        assert await server.cached(prompt[:100]) == 0
        server.cache.clear()
    async with Server(tmp_path) as server:
        assert await server.cached(prompt[:50]) <= 50


async def test_a_clock_that_jumps(tmp_path: Path) -> None:
    """Forwards by years and backwards: speeds are misjudged for a while, and nothing else."""
    async with Server(tmp_path) as server:
        await server.ask(prompt_of(600))
        await server.written()
    jumps = itertools.cycle([0.0, 1e9, -1e9, 5.0, 4.0])
    async with Server(tmp_path, clock=lambda: next(jumps)) as server:
        for seed in range(4):
            await server.ask(prompt_of(300, seed))
        assert await server.cached(prompt_of(600)) == 600
        assert server.disk._rate > 0


async def test_use_cache_off_reads_nothing(tmp_path: Path) -> None:
    async with Server(tmp_path) as server:
        await server.ask(prompt_of(200))
        await server.written()
    async with Server(tmp_path) as server:
        assert (await server.ask(prompt_of(200), use_cache=False)).usage.cached_tokens == 0
        assert server.store.stats().counters.bytes_read == 0


async def test_what_does_not_pay_is_not_read(tmp_path: Path) -> None:
    """Evaluating takes no time: the disk is left alone."""
    async with Server(tmp_path) as server:
        await server.ask(prompt_of(200))
        await server.written()
    async with Server(tmp_path, token_s=1e-9) as server:
        server.disk._rate = 1.0
        assert await server.cached(prompt_of(200)) == 0


@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize("seed", range(6))
async def test_random_use_with_restarts(tmp_path: Path, hybrid: bool, seed: int) -> None:
    """Conversations that grow, branch and are cut off, several at once, in little memory, over restarts: every answer is that of a
    server without a cache."""
    rng = random.Random(seed)
    texts = [prompt_of(rng.randrange(20, 300), n) for n in range(5)]
    for _ in range(3):
        host = (30, 5) if rng.random() < 0.5 else (0, 0)
        async with Server(tmp_path, hybrid=hybrid, pages=60, snapshots=rng.randrange(4, 10), host=host, budget=1 << 19) as server:
            for _ in range(6):
                readers = []
                for _ in range(rng.randrange(1, 5)):
                    base = rng.choice(texts)
                    prompt = (*base[: rng.randrange(1, len(base) + 1)], *prompt_of(rng.randrange(0, 40), rng.randrange(3)))
                    if len(prompt) < 500:
                        texts.append(prompt)
                    readers.append((prompt, server.submit(prompt, 4)))
                if rng.random() < 0.3:
                    readers.pop()[1].cancel()
                for prompt, reader in readers:
                    assert await reader.tokens() == expected_answer(prompt, 4)
                server.cache.check()


class SlowDisk(FileAccess):
    """Reads wait while it is held."""

    def __init__(self) -> None:
        self._gate = threading.Event()
        self._gate.set()

    def hold(self) -> None:
        self._gate.clear()

    def release(self) -> None:
        self._gate.set()

    def read(self, fd: int, buffer: memoryview, offset: int) -> int:
        self._gate.wait()
        return super().read(fd, buffer, offset)


# -- slots ------------------------------------------------------------------------------------------------------------------
async def test_a_saved_slot_is_as_warm_as_before(tmp_path: Path) -> None:
    """Saved, killed, restored; then the same prompt, an edited end, the next turn."""
    prompt = prompt_of(300)
    turn = (*prompt, *expected_answer(prompt, 5), 7, 7, 7)
    edited = (*prompt[:290], *prompt_of(20, seed=1))
    (tmp_path / "a").mkdir()
    async with Server(tmp_path / "a") as server:
        await server.ask(prompt, slot=2)
        saved = await server.files.save(2, "talk.bin")
        assert saved.num_tokens == 304
        hot = [await server.cached(tokens, 3) for tokens in (prompt, turn, edited)]
    (tmp_path / "b" / "slots").mkdir(parents=True)
    (tmp_path / "a" / "slots" / "talk.bin").rename(tmp_path / "b" / "slots" / "talk.bin")
    async with Server(tmp_path / "b") as server:
        restored = await server.files.restore(0, "talk.bin")
        assert (restored.num_tokens, restored.num_bytes) == (304, saved.num_bytes)
        assert [await server.cached(tokens, 3) for tokens in (prompt, turn, edited)] == hot
        assert hot[0] == 300


@pytest.mark.parametrize("hybrid", [True, False])
async def test_a_flush_forgets_memory_and_disk(tmp_path: Path, hybrid: bool) -> None:
    """Nothing of before is known any more, in this process or the next one; what comes after is kept as ever. Also in the middle of
    writing."""
    prompts = [prompt_of(200, seed) for seed in range(4)]
    async with Server(tmp_path, hybrid=hybrid) as server:
        await server.ask(prompts[0])
        await server.written()
        await server.ask(prompts[1])
        pin = server.engine.pins.add(np.array(prompts[1], np.int32), "", 1)
        running = server.submit(prompts[2], 20)
        flushed = await server.engine.flush()
        assert pin is not None
        assert flushed.num_pins == 1
        assert flushed.disk_bytes > 0
        assert not server.engine.pins.listed()
        assert await running.tokens() == expected_answer(prompts[2], 20)
        await server.written()
        assert [await server.cached(prompt, 0) for prompt in prompts[:2]] == [0, 0]
        await server.engine.flush()
        assert server.store.stats().states == server.store.stats().pages == 0
        await server.ask(prompts[3])
        await server.written()
    async with Server(tmp_path, hybrid=hybrid) as server:
        assert [await server.cached(prompt, 0) for prompt in prompts[:3]] == [0, 0, 0]
        assert await server.cached(prompts[3], 0) == 200


async def test_a_slot_is_restored_where_it_is_still_known(tmp_path: Path) -> None:
    """In the process that has saved it, whole or in part still in memory: no error, and as warm as before."""
    prompt = prompt_of(300)
    async with Server(tmp_path) as server:
        await server.ask(prompt)
        await server.files.save(0, "talk.bin")
        assert (await server.files.restore(1, "talk.bin")).num_tokens == 304
        server.cache.clear()
        await server.ask(prompt[:100])
        assert (await server.files.restore(1, "talk.bin")).num_tokens == 304
        server.cache.check()
        assert await server.cached(prompt) == 300
