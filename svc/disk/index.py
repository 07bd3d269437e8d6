"""What is in the cache files: by the keys of pages and states (records.py). Where each record is, and when it was last of use.

Time is a counter of uses, so that no clock matters. A use of a state is a use of all pages of its path: no page is older than what
comes behind it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from svc.disk.records import FORGOTTEN, PAGE, ROOT, STATE, Record, page_key, page_keys, state_key


@dataclass(slots=True, eq=False)
class Entry:
    """A record in a file."""

    record: Record
    segment: int
    offset: int
    last_use: int


@dataclass(frozen=True, slots=True)
class Path:
    """What is known of some tokens: their whole pages in order, and the state behind them or behind some tokens more."""

    position: int
    pages: tuple[Entry, ...]
    state: Entry | None

    @property
    def entries(self) -> tuple[Entry, ...]:
        return (*self.pages, self.state) if self.state is not None else self.pages


@dataclass(frozen=True, slots=True)
class Missing:
    """The records that a path still lacks, without payload checksums: its pages by tile, and the state at its end."""

    keys: tuple[bytes, ...]  # of all whole pages
    pages: tuple[tuple[int, bytes], ...]  # (tile, tokens)
    state: bool
    tail: bytes  # tokens behind the last whole page


@dataclass(slots=True)
class Index:
    """Entries by key. Not for several threads at once: DiskStore has the lock."""

    page_tokens: int
    hybrid: bool
    pages: dict[bytes, Entry] = field(default_factory=dict)
    states: dict[bytes, Entry] = field(default_factory=dict)
    behind: dict[bytes, list[Entry]] = field(default_factory=dict)  # states by the key of the last whole page before
    uses: int = 0

    def __len__(self) -> int:
        return len(self.pages) + len(self.states)

    def begins(self, tokens: NDArray[np.int32]) -> bool:
        """Whether anything at all is known of some tokens: one look, before a longer one."""
        if ROOT in self.behind:
            return True
        first = tokens[: self.page_tokens].astype("<i4", copy=False).tobytes()
        return len(tokens) >= self.page_tokens and page_key(ROOT, first) in self.pages

    def find(self, tokens: NDArray[np.int32], beyond: int) -> Path | None:
        """The deepest point of `tokens` at which a sequence can resume, if it lies beyond so many tokens.

        Hybrid: the deepest state with all its pages. Attention-only: all whole pages known, but for the last token, or a state at
        the very end.
        """
        data, size = tokens.astype("<i4", copy=False).tobytes(), 4 * self.page_tokens
        pages: list[Entry] = []
        best: Entry | None = None
        best_pages = 0
        key = ROOT
        while True:
            start = len(pages) * size
            for entry in self.behind.get(key, ()):
                end = start + len(entry.record.tokens)
                if (
                    data[start:end] == entry.record.tokens
                    and end <= len(data)
                    and (best is None or end // 4 > best.record.position)
                ):
                    best, best_pages = entry, len(pages)
            if start + size > len(data):
                break
            key = page_key(key, data[start : start + size])
            page = self.pages.get(key)
            if page is None:
                break
            pages.append(page)
        position = best.record.position if best is not None else 0
        if not self.hybrid and position < len(tokens):
            position, best, best_pages = min(len(pages) * self.page_tokens, len(tokens) - 1), None, len(pages)
        return Path(position, tuple(pages[:best_pages]), best) if position > beyond else None

    def missing(self, tokens: NDArray[np.int32]) -> Missing:
        """What a path of exactly these tokens lacks."""
        keys, pages = [], []
        for tile, (key, part) in enumerate(page_keys(tokens, self.page_tokens)):
            keys.append(key)
            if key not in self.pages:
                pages.append((tile, part))
        tail = tokens[len(keys) * self.page_tokens :].astype("<i4", copy=False).tobytes()
        key = state_key(keys[-1] if keys else ROOT, tail)
        return Missing(tuple(keys), tuple(pages), key not in self.states, tail)

    def add(self, record: Record, segment: int, offset: int) -> None:
        """A record that was written or found. One with the same key is replaced."""
        if record.kind == FORGOTTEN and record.key in self.states:
            self.drop(self.states[record.key])
        if record.kind not in (PAGE, STATE):
            return
        self.uses += 1
        entry = Entry(record, segment, offset, self.uses)
        if record.kind == PAGE:
            self.pages[record.key] = entry
            return
        others = [other for other in self.behind.get(record.before, ()) if other.record.key != record.key]
        self.behind[record.before] = [*others, entry]
        self.states[record.key] = entry

    def drop(self, entry: Entry) -> None:
        """It is gone, or damaged. Nothing happens if it was replaced since."""
        record = entry.record
        table = self.pages if record.kind == PAGE else self.states
        if table.get(record.key) is not entry:
            return
        del table[record.key]
        if record.kind == PAGE:
            return
        others = [other for other in self.behind[record.before] if other is not entry]
        if others:
            self.behind[record.before] = others
        else:
            del self.behind[record.before]

    def touch(self, entries: Iterable[Entry]) -> None:
        """They have been of use."""
        self.uses += 1
        for entry in entries:
            entry.last_use = self.uses

    def touch_path(self, keys: Iterable[bytes]) -> None:
        """The pages of a path have been of use, as far as they are known."""
        self.touch(entry for key in keys if (entry := self.pages.get(key)) is not None)

    def order_paths(self) -> None:
        """Makes every page as young as what comes behind it, after records were found in the order in which they were written."""
        for entry in sorted(self.states.values(), key=lambda entry: -entry.last_use):
            page = self.pages.get(entry.record.before)
            while page is not None and page.last_use < entry.last_use:
                page.last_use = entry.last_use
                page = self.pages.get(page.record.before)

    def entries(self) -> list[Entry]:
        """All, in no order."""
        return [*self.pages.values(), *self.states.values()]

    def reachable(self, entry: Entry) -> bool:
        """Whether the page before is there: without it nobody can resume at the entry or behind."""
        return entry.record.before == ROOT or entry.record.before in self.pages

    def resumable(self, tokens: NDArray[np.int32]) -> list[Entry]:
        """All states that a sequence with these tokens could resume at, if their pages are there."""
        known = [ROOT, *(key for key, _ in page_keys(tokens, self.page_tokens))]
        return [entry for tile, key in enumerate(known) for entry in self._matching(key, tile, tokens)]

    def _matching(self, key: bytes, tile: int, tokens: NDArray[np.int32]) -> Iterator[Entry]:
        tail = tokens[tile * self.page_tokens :].astype("<i4", copy=False).tobytes()
        return iter([entry for entry in self.behind.get(key, ()) if tail.startswith(entry.record.tokens)])
