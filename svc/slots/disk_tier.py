"""The disk under the memory: what is published is written there when there is time, and what a request could use is brought back.

Writing. Every published snapshot is a candidate: first those that conversations go on from, then the sparse ones. Its state and
the pages that are not there yet are copied out a few megabytes at a time (block_copies.py), and written by a thread of its own.
What has left the memory before its turn is not written. Nothing that is not finite is written.

Reading. When a request arrives and the disk knows its prompt further than the memory does, it waits in the queue while others go
on; a thread reads the records in order, the compute thread copies them into pages and a snapshot taken for them, and then it is
admitted as if they had never been away. Requests for the same state share one reading. When reading fails, takes longer than
evaluating would, or the memory is needed, the request evaluates.

Everything here runs on the event loop; threads only read, write and copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from svc.compute.blocks import Blocks, finite_page, finite_state
from svc.disk.index import Entry, Missing
from svc.disk.index import Path as DiskPath
from svc.disk.store import DiskFullError, DiskReadError, DiskStats, DiskStore
from svc.memory.placement import WantedKind
from svc.memory.sequence_cache import SequenceCache, SnapshotRef
from svc.memory.tokens import TokenArray
from svc.memory.transfers import Import, Incoming, KnownPath
from svc.slots.block_copies import BlockCopies, Worker, parts
from svc.slots.joins import Joins
from svc.slots.request import Sequence

FIRST_RATE = 300e6  # bytes a second that the disk is believed to read before it has
SMOOTHING = 0.25  # weight of the newest reading in the moving average
QUICK_TOKENS = 2_048  # a prompt up to that length is looked up on the loop; longer ones on a thread
MIN_WAIT_S = 2.0  # a request waits at least so long for the disk, before it evaluates
UNHURRIED = (WantedKind.SPARSE, WantedKind.GENERATED)  # written after all others, and only where they save much
UNHURRIED_GAIN = 4.0  # times the reading that such a state must save
ATTEMPTS = 3  # at one prompt: each failure takes a damaged record out of the index

Value = TypeVar("Value")
Published = SnapshotRef | TokenArray
"""A snapshot, or tokens whose pages an attention-only model knows."""


class Outcome(enum.Enum):
    """Of bringing a state into the memory."""

    HERE = "here"
    DAMAGED = "damaged"  # a record has been dropped: it is worth looking again
    TOO_SLOW = "too_slow"
    NO_MEMORY = "no_memory"  # or it was needed meanwhile


@dataclass(slots=True)
class DiskTierCounters:
    """Counted where it happens, never reset."""

    fetches: int = 0  # states that requests waited for, and got
    fetched_tokens: int = 0
    given_up: int = 0  # for a slow disk, or because the memory was needed
    gone: int = 0  # snapshots that left the memory before they were written


@dataclass(frozen=True, slots=True)
class DiskTierStats:
    store: DiskStats
    counters: DiskTierCounters
    waiting: int  # snapshots to be written
    fetching: int  # requests that wait for the disk


class DiskTier:
    """Between one SequenceCache and one DiskStore. Owner of two threads."""

    def __init__(
        self,
        store: DiskStore,
        worker: Worker,
        cache: SequenceCache,
        joins: Joins,
        *,
        clock: Callable[[], float],
        token_s: Callable[[], float | None],
        report: Callable[[str, str], None],
    ) -> None:
        """`token_s`: seconds to evaluate a token of a prompt, once known. `report`: an event's name and the reason, for the log."""
        self.counters = DiskTierCounters()
        self.wake_engine: Callable[[], None] = lambda: None
        self._store = store
        self.copies = BlockCopies(worker, cache)
        self._cache = cache
        self._transfers = cache.transfers
        self._transfers.copied = True
        self._joins = joins
        self._clock = clock
        self._token_s = token_s
        self._report = report
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="disk-reader")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="disk-writer")
        self._queues: tuple[deque[Published], deque[Published]] = (deque(), deque())  # to be written: at once, unhurried
        self._news = asyncio.Event()
        self._all_written = asyncio.Event()
        self._all_written.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way: dict[bytes, asyncio.Event] = {}  # readings, by the key of the last record
        self._num_fetching = 0
        self._num_cleared = 0
        self._rate = FIRST_RATE

    def __repr__(self) -> str:
        return f"DiskTier({self._store!r}, {self._num_waiting} to write, {self._num_fetching} requests wait)"

    @property
    def num_fetching(self) -> int:
        """Requests that wait for the disk."""
        return self._num_fetching

    @property
    def _num_waiting(self) -> int:
        return sum(map(len, self._queues))

    def stats(self) -> DiskTierStats:
        return DiskTierStats(self._store.stats(), replace(self.counters), self._num_waiting, self._num_fetching)

    # -- life -------------------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        self._run(self._write_all())

    async def stop(self, limit_s: float) -> None:
        """Writes what is still to be written, for at most so long, and closes the store."""
        self.note_published()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._all_written.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._on(self._writer, self._store.close)
        self._reader.shutdown(wait=False)
        self._writer.shutdown(wait=False)

    def _run(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work, name="disk")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _on(self, thread: ThreadPoolExecutor, function: Callable[..., Value], *args: Any) -> Value:
        return await asyncio.get_running_loop().run_in_executor(thread, function, *args)

    # -- reading ----------------------------------------------------------------------------------------------------------------
    def consider(self, sequence: Sequence) -> None:
        """A request has arrived: it may wait for the disk."""
        if not sequence.request.use_cache or sequence.request.space:
            return
        tokens = sequence.tokens[: sequence.num_prompt].copy()
        if self._store.begins(tokens):
            sequence.fetching = True
            self._num_fetching += 1
            self._run(self._fetch(sequence, tokens))

    async def _fetch(self, sequence: Sequence, tokens: TokenArray) -> None:
        """Brings the deepest state of a prompt that the disk knows and the memory does not, if that pays."""
        try:
            for _ in range(ATTEMPTS):
                known = self._cache.match(tokens).position
                found = await self._find(tokens, known)
                if found is None or sequence.finished or not self._pays(found, known):
                    return
                outcome = await self._bring(found, tokens, known)
                if outcome is Outcome.HERE:
                    self._joins.fetched(sequence, found.position)
                if outcome is not Outcome.DAMAGED:
                    return
        except Exception as error:  # a bug of ours, or of the device: the request evaluates
            self._report("disk_fetch_failed", repr(error))
        finally:
            sequence.fetching = False
            self._num_fetching -= 1
            self.wake_engine()

    async def _find(self, tokens: TokenArray, known: int) -> DiskPath | None:
        if len(tokens) <= QUICK_TOKENS:
            return self._store.find(tokens, known)
        return await self._on(self._reader, self._store.find, tokens, known)

    def _pays(self, found: DiskPath, known: int) -> bool:
        """Whether reading is likely to take less time than evaluating."""
        token_s = self._token_s()
        return token_s is None or self._read_s(found, known) < max(token_s * (found.position - known), 0.02)

    def _read_s(self, found: DiskPath, known: int) -> float:
        """Of what lies beyond the first `known` tokens, whose pages are in memory."""
        entries = found.entries[known // self._store.identity.page_tokens :]
        return sum(entry.record.payload_bytes for entry in entries) / self._rate

    async def _bring(self, found: DiskPath, tokens: TokenArray, known: int) -> Outcome:
        key = found.entries[-1].record.key
        other = self._under_way.get(key)
        if other is not None:
            await other.wait()
            return Outcome.HERE if self._cache.match(tokens).position >= found.position else Outcome.NO_MEMORY
        ended = self._under_way[key] = asyncio.Event()
        try:
            limit_s = max(MIN_WAIT_S, 2 * self._read_s(found, known), (self._token_s() or 0.0) * (found.position - known))
            async with asyncio.timeout(limit_s):
                return await self._read_path(found, tokens)
        except TimeoutError:
            self.counters.given_up += 1
            outcome = Outcome.TOO_SLOW
            self._report("disk_slow", f"reading {found.position} tokens took longer than {limit_s:.1f} s; they are evaluated")
        except DiskReadError as error:
            self._report("disk_record_damaged", str(error))
            outcome = Outcome.DAMAGED
        finally:
            del self._under_way[key]
            ended.set()
        return outcome

    async def _read_path(self, found: DiskPath, tokens: TokenArray) -> Outcome:
        page_tokens = self._store.identity.page_tokens
        end = found.position if found.state is not None else len(found.pages) * page_tokens
        states = [Incoming(end, WantedKind.from_file(found.state.record.capture))] if found.state is not None else []
        coming = self._transfers.begin(tokens[:end], states, self._clock())
        if coming is None:
            self.counters.given_up += 1
            return Outcome.NO_MEMORY
        try:
            await self._fill(coming, found)
            if coming.closed:  # the memory was needed
                self.counters.given_up += 1
                return Outcome.NO_MEMORY
            self._transfers.finish(coming, self._clock())
        finally:
            self._transfers.release(coming)
        self.counters.fetches += 1
        self.counters.fetched_tokens += end
        return Outcome.HERE

    async def _fill(self, coming: Import, found: DiskPath) -> None:
        """Copies everything into its places, as long as they are ours."""
        wanted = found.pages[coming.first_own :]
        entries = [*wanted, found.state] if found.state is not None and coming.snapshots else list(wanted)
        await self._on(self._reader, self._store.expect, found.entries, entries)
        begun, index = self._clock(), coming.first_own
        for part in parts(wanted, self._store.identity.page_bytes):
            blocks = np.stack(await self._on(self._reader, self._read_all, part))
            if coming.closed:
                return
            await self.copies.write_pages(coming, coming.pages[index : index + len(part)], blocks)
            index += len(part)
        if found.state is not None:
            payload = await self._on(self._reader, self._store.read, found.state)
            if coming.closed:
                return
            state, tail = np.split(payload, [self._store.identity.state_bytes])
            if len(tail):
                await self.copies.write_pages(coming, coming.pages[-1:], tail[None])
            for _, ref in coming.snapshots:
                await self.copies.write_state(coming, ref, state)
        self._learn_rate(entries, self._clock() - begun)

    def _read_all(self, entries: Items[Entry]) -> list[NDArray[np.uint8]]:
        return [self._store.read(entry) for entry in entries]

    def _learn_rate(self, entries: Iterable[Entry], elapsed_s: float) -> None:
        size = sum(entry.record.payload_bytes for entry in entries)
        if size >= 1 << 20 and elapsed_s > 0:
            self._rate += SMOOTHING * (size / elapsed_s - self._rate)

    # -- writing ----------------------------------------------------------------------------------------------------------------
    def note_published(self) -> None:
        """A step has ended: what it published is to be written, and what it made doubtful is not to be read."""
        transfers = self._transfers
        while transfers.distrusted:
            forgotten = self._store.forget(transfers.distrusted.popleft())
            if forgotten:
                self._run(self._write_forgotten(forgotten))
        if not transfers.news:
            return
        while transfers.news:
            ref = transfers.news.popleft()
            if not isinstance(ref, SnapshotRef):
                self._queues[0].append(ref)
            elif transfers.ring.is_published(ref):
                self._queues[transfers.ring.kind(ref.snapshot_id) in UNHURRIED].append(ref)
        if self._store.failure is None and self._num_waiting:
            self._all_written.clear()
            self._news.set()

    async def _write_forgotten(self, forgotten: Any) -> None:
        with contextlib.suppress(DiskFullError):
            await self._on(self._writer, self._store.write_forgotten, forgotten)

    async def _write_all(self) -> None:
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                while self._num_waiting:
                    at_once, unhurried = self._queues
                    await self._save((at_once or unhurried).popleft())
                self._all_written.set()
        except DiskFullError as error:
            self._report("disk_tier_off", f"{error}: nothing is written there until the server starts again")
        except Exception as error:  # a bug of ours, or of the device: the server goes on without writing
            self._report("disk_write_failed", repr(error))
        for queue in self._queues:
            queue.clear()
        self._all_written.set()

    async def clear(self) -> None:
        """Forgets everything and removes all files. What is being written of it is not; clear the memory before."""
        self._num_cleared += 1
        for queue in self._queues:
            queue.clear()
        await self._on(self._writer, self._store.clear)

    async def _save(self, ref: Published) -> None:
        cleared = self._num_cleared
        path = self._transfers.path(ref)
        if path is None:
            self.counters.gone += 1
            return
        missing = await self._on(self._writer, self._store.missing, path.tokens)
        wanted = missing.state if isinstance(ref, SnapshotRef) else bool(missing.pages)
        if not wanted or not await self._on(self._writer, self._worth, path):
            return
        for part in parts(missing.pages, self._store.identity.page_bytes):
            blocks = await self.copies.read_pages(ref, [tile for tile, _ in part])
            if blocks is None or cleared != self._num_cleared:
                self.counters.gone += 1
                return
            if not await self._on(self._writer, self._add_pages, missing, part, blocks):
                return
        if isinstance(ref, SnapshotRef):
            await self._save_state(ref, path, missing, cleared)

    async def _save_state(self, ref: SnapshotRef, path: KnownPath, missing: Missing, cleared: int) -> None:
        tail = await self.copies.read_pages(ref, [len(missing.keys)]) if missing.tail else None
        state = await self.copies.read_state(ref)
        if state is None or (tail is None and missing.tail) or cleared != self._num_cleared:
            self.counters.gone += 1
            return
        await self._on(self._writer, self._add_state, missing, path, state, None if tail is None else tail[0])

    def _worth(self, path: KnownPath) -> bool:
        """Whether reading the state is likely to save time. On the writer's thread.

        Those that conversations go on from are compared with evaluating everything, so that a restart changes nothing for them; the
        others with what the disk has already.
        """
        token_s, read_s = self._token_s(), self._store.identity.state_bytes / self._rate
        if token_s is None:
            return True
        if path.kind not in UNHURRIED:
            return token_s * len(path.tokens) > read_s
        nearest = self._store.find(path.tokens[:-1], 0)
        known = nearest.position if nearest is not None else 0
        return token_s * (len(path.tokens) - known) > UNHURRIED_GAIN * read_s

    def _add_pages(self, missing: Missing, part: Items[tuple[int, bytes]], blocks: Blocks) -> bool:
        """Whether all numbers in them are finite; else those from the first that are not on are not written."""
        for (tile, tokens), block in zip(part, blocks, strict=True):
            if not finite_page(block, self._cache.plan.layout):
                return False
            self._store.add_page(missing, tile, tokens, block)
        return True

    def _add_state(self, missing: Missing, path: KnownPath, state: Blocks, tail: Blocks | None) -> None:
        if finite_state(state, self._cache.plan.layout):
            self._store.add_state(missing, len(path.tokens), path.kind, state, tail)
