"""Whole pages and states between a SequenceCache and bytes, through the compute thread. On the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from collections.abc import Sequence as Items
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from svc.compute.backend import Backend, Slab
from svc.compute.blocks import Blocks
from svc.memory.page_pool import Pages
from svc.memory.sequence_cache import SequenceCache, SnapshotRef
from svc.memory.tokens import TokenArray
from svc.memory.transfers import Import

COPY_BYTES = 8 << 20  # of one copy between two steps: about a millisecond

Value = TypeVar("Value")


class Worker(Protocol):
    """The compute thread (compute/worker.py)."""

    @property
    def backend(self) -> Backend: ...

    def call(self, function: Callable[..., Value], *args: Any) -> Awaitable[Value]: ...


class BlockCopies:
    """Each call is queued on the compute thread when its places are looked up, behind the steps submitted so far.

    Where the device's memory is the machine's, reading does not take that thread's time.
    """

    def __init__(self, worker: Worker, cache: SequenceCache) -> None:
        self.wake_engine: Callable[[], None] = lambda: None
        self._worker = worker
        self._pool = cache.transfers.pool
        self._ring = cache.transfers.ring
        self._transfers = cache.transfers
        self._page_bytes = cache.plan.layout.page_bytes

    async def read_pages(self, ref: SnapshotRef | TokenArray, tiles: Items[int]) -> Blocks | None:
        """Pages of a path (Transfers.path), uint8 [n, page_bytes]; None when they have left the memory."""
        await self._moves_taken()
        places = self._places(ref, tiles)
        if places is not None and self._worker.backend.read_anywhere:
            num_freed = self._pool.num_freed
            blocks = await self._read_beside(Slab.PAGES, places)
            if self._pool.num_freed == num_freed:
                return blocks
            places = self._places(ref, tiles)  # again, in the order of the steps
        if places is None:
            return None
        blocks = np.empty((len(places), self._page_bytes), np.uint8)
        parts = ((Slab.PAGES, places >= 0, places), (Slab.HOST_PAGES, places < 0, -1 - places))
        read = self._worker.backend.read_blocks
        calls = [(at, self._worker.call(read, slab, there[at].tolist())) for slab, at, there in parts if at.any()]
        for at, call in calls:
            blocks[at] = await call
        return blocks

    async def read_state(self, ref: SnapshotRef) -> Blocks | None:
        """A snapshot, uint8 [snapshot_bytes]; None when it has left the memory."""
        await self._moves_taken()
        if not self._ring.is_published(ref):
            return None
        if self._worker.backend.read_anywhere:
            states = await self._read_beside(Slab.SNAPSHOTS, np.array([self._ring.device_place(ref)]))
            return cast(Blocks, states[0]) if self._ring.is_published(ref) else None  # then it was all the time
        on_host = self._ring.on_host(ref.snapshot_id)
        place = self._ring.host_place(ref) if on_host else self._ring.device_place(ref)
        slab = Slab.HOST_SNAPSHOTS if on_host else Slab.SNAPSHOTS
        states = await self._worker.call(self._worker.backend.read_blocks, slab, [place])
        return cast(Blocks, states[0])

    def _places(self, ref: SnapshotRef | TokenArray, tiles: Items[int]) -> NDArray[np.int32] | None:
        """Of those pages of a path, None when they have left the memory."""
        path = self._transfers.path(ref)
        if path is None or max(tiles) >= len(path.pages):
            return None
        return self._pool.places_of(path.pages[list(tiles)])

    async def _read_beside(self, slab: Slab, places: NDArray[Any]) -> Blocks:
        """On a thread, while steps run, which may write there: who asks looks afterwards whether the places have changed hands."""
        return await asyncio.to_thread(self._worker.backend.read_blocks, slab, places.tolist())

    async def write_pages(self, coming: Import, pages: Pages, blocks: Blocks) -> None:
        """Fills pages of an import; nothing if it is closed."""
        await self._moves_taken()
        if not coming.closed:
            places = self._pool.places_of(pages).tolist()
            await self._worker.call(self._worker.backend.write_blocks, Slab.PAGES, places, blocks)

    async def write_state(self, coming: Import, ref: SnapshotRef, state: Blocks) -> None:
        """Fills a snapshot of an import; nothing if it is closed."""
        await self._moves_taken()
        if not coming.closed:
            places = [self._ring.device_place(ref)]
            await self._worker.call(self._worker.backend.write_blocks, Slab.SNAPSHOTS, places, state[None])

    async def _moves_taken(self) -> None:
        """Waits until no move between the tiers waits for a step: until then a place may not hold yet what it is said to hold."""
        while self._transfers.moves_wait:
            taken = asyncio.Event()
            self._transfers.waiting.append(taken.set)
            self.wake_engine()
            await taken.wait()


def parts(items: Items[Value], item_bytes: int) -> Iterator[Items[Value]]:
    """Consecutive ones, at most COPY_BYTES at a time."""
    count = max(1, COPY_BYTES // max(item_bytes, 1))
    return (items[start : start + count] for start in range(0, len(items), count))
