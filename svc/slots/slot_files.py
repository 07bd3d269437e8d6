"""Saving what a slot held into a file, restoring it, and forgetting it: llama-server's slot actions.

A slot here belongs to a request only while that runs, and what it computed stays in the cache. So a slot's number stands for the
last sequence that ran there, or was restored there, and an action works on what the cache has of that sequence: its pages, and all
states at which it or an edited version of it could go on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from svc.disk.files import FileAccess, Found
from svc.disk.records import Identity, Payload
from svc.disk.saved_slots import Listed, SavedSlot, SlotWriter, checked_name, listed, open_saved, writing
from svc.errors import DrainingError, RequestError
from svc.memory.placement import WantedKind
from svc.memory.sequence_cache import SequenceCache, SnapshotRef
from svc.memory.tokens import TokenArray
from svc.memory.transfers import Import, Incoming
from svc.slots.block_copies import BlockCopies, Worker, parts

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class SlotAction:
    """What an action did."""

    num_tokens: int
    num_bytes: int
    duration_s: float


class SlotFiles:
    """The folder of saved slots. Actions run one after the other."""

    def __init__(
        self,
        folder: Path | None,
        identity: Identity,
        worker: Worker,
        cache: SequenceCache,
        *,
        clock: Callable[[], float],
        access: FileAccess | None = None,
    ) -> None:
        """`folder` None: saving and restoring are refused."""
        self._folder = folder
        self._identity = identity
        self._access = access or FileAccess()
        self.copies = BlockCopies(worker, cache)
        self._cache = cache
        self._num_slots = cache.plan.num_rows
        self._clock = clock
        self.states_saved: Callable[[], Awaitable[None]] = _nothing_to_wait_for  # the engine's
        self._turn = asyncio.Lock()
        self._held: dict[int, TokenArray] = {}  # by slot

    def note(self, slot: int, tokens: TokenArray | None) -> None:
        """A sequence has ended in a slot, or asked to be known under that number. None: one that shares nothing with others."""
        if tokens is None:
            self._held.pop(slot, None)
        elif slot < self._num_slots:
            self._held[slot] = tokens

    def forget_all(self) -> None:
        """No slot stands for anything any more. Files stay."""
        self._held.clear()

    def held_tokens(self, slot: int) -> int:
        """Tokens of the sequence that a slot stands for, 0 if none."""
        return len(self._held.get(slot, ()))

    # -- save -------------------------------------------------------------------------------------------------------------------
    async def save(self, slot: int, name: str) -> SlotAction:
        """RequestError; nothing is left of a file that could not be finished."""
        folder, name, begun = self._checked_folder(), checked_name(name), time.perf_counter()
        async with self._turn:
            await self.states_saved()
            transfers = self._cache.transfers
            states = [ref for ref in transfers.on_path(self._tokens_of(slot)) if transfers.path(ref) is not None]
            if not states:
                raise self._nothing(slot)
            deepest = transfers.path(states[-1])
            assert deepest is not None
            try:
                size = await self._write(folder, name, states, deepest.tokens)
            except OSError as error:
                raise RequestError(
                    f"slot {slot} cannot be saved as {name!r}: {error.strerror}", param="filename", code="slot_file_not_written"
                ) from None
        return SlotAction(len(deepest.tokens), size, time.perf_counter() - begun)

    async def _write(self, folder: Path, name: str, states: list[SnapshotRef], tokens: TokenArray) -> int:
        page_tokens = self._identity.page_tokens
        data = tokens.astype("<i4").tobytes()
        with writing(folder, name, self._identity, self._access) as writer:
            for tiles in parts(range(len(tokens) // page_tokens), self._identity.page_bytes):
                blocks = await self.copies.read_pages(states[-1], tiles)
                if blocks is None:
                    raise self._gone()
                pages = [data[4 * tile * page_tokens : 4 * (tile + 1) * page_tokens] for tile in tiles]
                await _on_thread(_add_pages, writer, pages, blocks)
            for ref in states:
                await self._write_state(writer, ref)
            await _on_thread(writer.end)
            return writer.size

    async def _write_state(self, writer: SlotWriter, ref: SnapshotRef) -> None:
        """A state that has left the memory meanwhile is left out, unless it is the one at the end."""
        path = self._cache.transfers.path(ref)
        if path is None:
            return
        position = len(path.tokens)
        full, rest = divmod(position, self._identity.page_tokens)
        tail = await self.copies.read_pages(ref, [full]) if rest else None
        state = await self.copies.read_state(ref)
        if state is None or (rest and tail is None):
            return
        tokens = path.tokens[position - rest :].astype("<i4").tobytes()
        await _on_thread(writer.add_state, position, int(path.kind), tokens, state, None if tail is None else tail[0])

    # -- restore ----------------------------------------------------------------------------------------------------------------
    async def restore(self, slot: int, name: str) -> SlotAction:
        """RequestError; then nothing has changed."""
        folder, name, begun = self._checked_folder(), checked_name(name), time.perf_counter()
        async with self._turn:
            saved = await _on_thread(open_saved, folder, name, self._identity, self._access)
            states = [Incoming(state.position, WantedKind.from_file(state.kind)) for state in saved.states]
            transfers = self._cache.transfers
            coming = transfers.begin(saved.tokens, states, self._clock())
            if coming is None:
                message = f"there is no memory for the {len(saved.tokens)} tokens of {name!r}: requests use it, or it is too small"
                raise DrainingError(message) if self._cache.num_available_pages() else RequestError(message, code="slot_too_large")
            try:
                await self._fill(coming, saved)
                if coming.closed:
                    raise DrainingError(f"the memory for {name!r} was needed by requests; try again")
                transfers.finish(coming, self._clock())
            finally:
                transfers.release(coming)
            self._held[slot] = saved.tokens
        return SlotAction(len(saved.tokens), saved.size, time.perf_counter() - begun)

    async def _fill(self, coming: Import, saved: SavedSlot) -> None:
        index = coming.first_own
        for part in parts(saved.pages[index:], self._identity.page_bytes):
            payloads = await _on_thread(_read_all, saved, part)
            if coming.closed:
                return
            await self.copies.write_pages(coming, coming.pages[index : index + len(part)], np.stack(payloads))
            index += len(part)
            if coming.closed:
                return
        refs = dict(coming.snapshots)
        for state in saved.states:
            at_end = state.position == len(saved.tokens)
            if state.position not in refs and not at_end:
                continue
            payload = (await _on_thread(_read_all, saved, [state.found]))[0]
            if coming.closed:
                return
            values, tail = payload[: self._identity.state_bytes], payload[self._identity.state_bytes :]
            if at_end and len(tail):  # its page is never one that was known: a whole one would be
                await self.copies.write_pages(coming, coming.pages[-1:], tail[None])
            if state.position in refs:
                await self.copies.write_state(coming, refs[state.position], values)

    # -- erase, list ------------------------------------------------------------------------------------------------------------
    def erase(self, slot: int) -> int:
        """Forgets what only this sequence can use; the number of its tokens. RequestError where there is nothing."""
        tokens = self._tokens_of(slot)
        del self._held[slot]
        self._cache.transfers.forget(tokens)
        return len(tokens)

    async def files(self) -> list[Listed]:
        """RequestError without a folder, or if it cannot be read."""
        folder = self._checked_folder()
        try:
            return await _on_thread(listed, folder, self._identity)
        except OSError as error:
            raise RequestError(f"slot_save_path cannot be read: {error.strerror}", code="slot_files_unreadable") from None

    # -- parts ------------------------------------------------------------------------------------------------------------------
    def _checked_folder(self) -> Path:
        if self._folder is None:
            message = "This server does not save slots: start it with --slot-save-path."
            raise RequestError(message, code="not_supported")
        return self._folder

    def _tokens_of(self, slot: int) -> TokenArray:
        tokens = self._held.get(slot)
        if tokens is None:
            raise self._nothing(slot)
        return tokens

    @staticmethod
    def _nothing(slot: int) -> RequestError:
        return RequestError(
            f"slot {slot} has nothing to save: no request has ended there, or it has left the memory", code="slot_empty"
        )

    @staticmethod
    def _gone() -> RequestError:
        return RequestError("the slot's contents left the memory while they were saved; try again", code="slot_empty")


async def _nothing_to_wait_for() -> None:
    pass


async def _on_thread(function: Callable[..., Value], *args: object) -> Value:
    return await asyncio.to_thread(function, *args)


def _add_pages(writer: SlotWriter, pages: list[bytes], blocks: Payload) -> None:
    for tokens, block in zip(pages, blocks, strict=True):
        writer.add_page(tokens, block)


def _read_all(saved: SavedSlot, part: list[Found]) -> list[Payload]:
    return [saved.read(found) for found in part]
