"""The cache directory: segment files, which only grow, and the index of what is in them. Owner of the directory.

One process writes into a directory; a lock file says so. Each start begins a new segment; earlier ones are only read. A record is
found again by its key (records.py), and its payload is compared with its checksum whenever it is read: what is damaged is dropped,
and the request that wanted it evaluates.

When the budget is used up the oldest segment goes. What was of use lately is written anew before that, the rest is lost: of all
records those used last are kept that together take half of the budget. Files that are not ours, of other models or other versions
of the format, are left where they are until the space is needed, and go first.

A kill at any moment loses what was being written, and no more: a record that is not whole has a wrong checksum, or the file ends in
it. Nothing is synchronised with the disk before the end, so that a loss of power may cost what the system had not written yet, and
is noticed in the same way.

All calls may come from several threads. `begins`, `find`, `forget` and `stats` only look at the index and take no time; the others
wait for the disk.
"""

import fcntl
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from svc.disk.files import Appender, FileAccess, OpenFile, read_identity, read_record, records
from svc.disk.index import Entry, Index, Missing
from svc.disk.index import Path as KnownPath
from svc.disk.records import (
    FORGOTTEN,
    PAGE,
    ROOT,
    STATE,
    DamagedRecordError,
    Identity,
    Payload,
    Record,
    checksum,
    difference,
    file_head,
    record_of,
    state_key,
)
from svc.errors import ConfigError
from svc.sizes import format_size

SUFFIX = ".hrcache"
LARGEST_SEGMENT_BYTES = 256 << 20
SEGMENTS = 8  # at least so many in a budget, so that a file that goes takes little with it


class DiskReadError(Exception):
    """A record cannot be read. It has been dropped; `str(error)` names the file and says why."""


class DiskFullError(Exception):
    """Nothing can be written any more: the disk is full or fails. `str(error)` says why."""


@dataclass(slots=True)
class DiskCounters:
    """Counted where it happens, never reset."""

    pages_written: int = 0
    states_written: int = 0
    bytes_written: int = 0
    pages_read: int = 0
    states_read: int = 0
    bytes_read: int = 0
    damaged: int = 0  # records dropped because they could not be read
    moved: int = 0  # records written anew before their segment went
    evicted: int = 0  # records lost with their segment


@dataclass(slots=True)
class Segment:
    """A file of records, or a file of which only the name and the size matter."""

    number: int
    path: Path
    size: int
    file: OpenFile | None  # None: not ours


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file, or the rest of one, that is not read, and why."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class DiskStats:
    """How full it is at one moment."""

    pages: int
    states: int
    used_bytes: int
    budget: int
    writable: bool
    counters: DiskCounters


@dataclass(slots=True)
class DiskStore:
    """Open it with `DiskStore.open`."""

    folder: Path
    identity: Identity
    budget: int  # bytes of all files together
    index: Index
    access: FileAccess
    lock_file: IO[str]
    skipped: list[Skipped] = field(default_factory=list)  # what was not read at the start
    counters: DiskCounters = field(default_factory=DiskCounters)
    failure: str | None = None  # why nothing is written any more
    segments: list[Segment] = field(default_factory=list)  # the next to go first
    current: Appender | None = None
    mutex: threading.RLock = field(default_factory=threading.RLock)  # of the index and the list of segments: never held for long
    writing: threading.Lock = field(default_factory=threading.Lock)  # of the files; taken before the other

    @classmethod
    def open(cls, folder: Path, identity: Identity, budget: int, *, hybrid: bool, access: FileAccess | None = None) -> "DiskStore":
        """Makes the folder if need be, locks it and lists its files. ConfigError naming what is wrong with it."""
        lock_file = _locked(folder)
        store = cls(folder, identity, budget, Index(identity.page_tokens, hybrid), access or FileAccess(), lock_file)
        try:
            store._list_files()
            while store.used_bytes > budget:  # it was larger before, or a kill came between writing anew and removing
                store._lose_segment()
        except OSError as error:
            raise ConfigError(f"cache_dir: {folder} cannot be read: {error.strerror}") from None
        return store

    def __repr__(self) -> str:
        return f"DiskStore({self.folder}, {len(self.index)} records, {format_size(self.used_bytes)} of {format_size(self.budget)})"

    @property
    def used_bytes(self) -> int:
        """Of all segments."""
        return sum(segment.size for segment in self.segments)

    def close(self) -> None:
        """What was written is on the disk, and another process may use the folder."""
        with self.writing, self.mutex:
            if self.current is not None:
                with suppress(OSError):
                    self.current.sync()
                self.current = None
            self.segments.clear()
            self.lock_file.close()

    def stats(self) -> DiskStats:
        with self.mutex:
            return DiskStats(
                pages=len(self.index.pages),
                states=len(self.index.states),
                used_bytes=self.used_bytes,
                budget=self.budget,
                writable=self.failure is None,
                counters=replace(self.counters),
            )

    # -- looking and reading ----------------------------------------------------------------------------------------------------
    def begins(self, tokens: NDArray[np.int32]) -> bool:
        """Whether `find` may find something. Quick."""
        with self.mutex:
            return self.index.begins(tokens)

    def find(self, tokens: NDArray[np.int32], beyond: int) -> KnownPath | None:
        """The deepest point of `tokens` at which a sequence can resume, if it lies beyond so many tokens. Notes no use."""
        with self.mutex:
            return self.index.find(tokens, beyond)

    def expect(self, path: Sequence[Entry], read: Sequence[Entry]) -> None:
        """Notes the use of a path, and lets the system read ahead what of it is about to be read."""
        with self.mutex:
            self.index.touch(path)
            files = {segment.number: segment.file for segment in self.segments}
        for entry in read:
            file = files.get(entry.segment)
            if file is not None:
                self.access.advise(file.fd, entry.offset, entry.record.total_bytes, os.POSIX_FADV_WILLNEED)

    def read(self, entry: Entry) -> Payload:
        """The payload, uint8. DiskReadError: then the record is dropped."""
        with self.mutex:
            file = next((segment.file for segment in self.segments if segment.number == entry.segment), None)
        if file is None:
            raise DiskReadError(f"{self.folder}: a record was lost with its file")
        try:
            payload = read_record(self.access, file, entry.record, entry.offset)
        except (DamagedRecordError, OSError) as error:
            with self.mutex:
                self.index.drop(entry)
                self.counters.damaged += 1
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise DiskReadError(f"{file.path}: {reason}") from None
        with self.mutex:
            self.counters.pages_read += entry.record.kind == PAGE
            self.counters.states_read += entry.record.kind == STATE
            self.counters.bytes_read += len(payload)
        return payload

    # -- writing ----------------------------------------------------------------------------------------------------------------
    def missing(self, tokens: NDArray[np.int32]) -> Missing:
        """What a path of exactly these tokens lacks. Notes a use of what is there."""
        with self.mutex:
            missing = self.index.missing(tokens)
            self.index.touch_path(missing.keys)
            return missing

    def add_page(self, missing: Missing, tile: int, tokens: bytes, payload: Payload) -> None:
        """A whole page of a path. DiskFullError: nothing is written any more."""
        before = missing.keys[tile - 1] if tile else ROOT
        self._write(PAGE, 0, (tile + 1) * self.identity.page_tokens, missing.keys[tile], before, tokens, [payload])

    def add_state(self, missing: Missing, position: int, capture: int, state: Payload, tail: Payload | None) -> None:
        """The state at the end of a path; `tail`: the page of the tokens behind the last whole one. DiskFullError."""
        before = missing.keys[-1] if missing.keys else ROOT
        key = state_key(before, missing.tail)
        self._write(STATE, capture, position, key, before, missing.tail, [state] if tail is None else [state, tail])
        with self.mutex:
            self.index.touch_path(missing.keys)

    def forget(self, tokens: NDArray[np.int32]) -> list[Record]:
        """These tokens are not trusted any more: nobody resumes at their states. Give what it returns to `write_forgotten`, so that
        it holds after a restart too."""
        with self.mutex:
            entries = self.index.resumable(tokens)
            for entry in entries:
                self.index.drop(entry)
        return [replace(entry.record, kind=FORGOTTEN, payload_bytes=0, payload_checksum=checksum()) for entry in entries]

    def write_forgotten(self, forgotten: Sequence[Record]) -> None:
        """DiskFullError: nothing is written any more."""
        with self.writing:
            for record in forgotten:
                self._find_space(record.total_bytes)
                self._append(record, [])

    def clear(self) -> None:
        """Forgets everything and removes all files."""
        with self.writing, self.mutex:
            self.current = None
            for segment in self.segments:
                with suppress(OSError):
                    segment.path.unlink()
            self.segments.clear()
            self.index = Index(self.identity.page_tokens, self.index.hybrid)

    def _write(
        self, kind: int, capture: int, position: int, key: bytes, before: bytes, tokens: bytes, payload: list[Payload]
    ) -> None:
        record = record_of(kind, capture, position, key, before, tokens, payload)
        with self.writing:
            self._find_space(record.total_bytes)
            self._append(record, payload)
        with self.mutex:
            self.counters.pages_written += kind == PAGE
            self.counters.states_written += kind == STATE

    def _append(self, record: Record, payload: list[Payload]) -> None:
        if self.failure is not None:
            raise DiskFullError(self.failure)
        try:
            appender = self.current
            if appender is None or appender.size + record.total_bytes > self._segment_bytes(record):
                appender = self._begin_segment()
            offset = appender.append(record, payload)
        except OSError as error:
            self.failure = f"{self.folder}: {error.strerror}"
            self.current = None
            raise DiskFullError(self.failure) from None
        with self.mutex:
            segment = self.segments[-1]
            segment.size = appender.size
            self.counters.bytes_written += record.total_bytes
            self.index.add(record, segment.number, offset)

    def _segment_bytes(self, record: Record) -> int:
        return max(min(LARGEST_SEGMENT_BYTES, self.budget // SEGMENTS), record.total_bytes)

    def _begin_segment(self) -> Appender:
        number = 1 + max((segment.number for segment in self.segments), default=0)
        path = self.folder / f"{number:08d}{SUFFIX}"
        self.current = Appender(self.access, path, self.identity)
        with self.mutex:
            self.segments.append(Segment(number, path, self.current.size, self.current.file))
        return self.current

    def _find_space(self, size: int) -> None:
        """Lets segments go until so many bytes more are within the budget. DiskFullError where the budget is too small."""
        size += len(file_head(self.identity))  # a new segment may begin
        if size > self.budget // 2:
            raise DiskFullError(f"cache_dir_bytes={format_size(self.budget)} is too little for a record of {format_size(size)}")
        while self.segments and self.used_bytes + size > self.budget:
            self._lose_segment()

    def _lose_segment(self) -> None:
        """The oldest goes. What of it was of use lately is written anew."""
        with self.mutex:
            segment = self.segments.pop(0)
            everything = self.index.entries()
        old = _last_use_of_old(everything, self.budget // 2)
        # A page goes before what comes behind it, and is as young: so what is kept is a whole path.
        entries = [entry for entry in everything if entry.segment == segment.number]
        entries.sort(key=lambda entry: (-entry.last_use, entry.record.position, entry.record.kind))
        with self.mutex:
            for entry in entries:
                self.index.drop(entry)
        if self.current is not None and segment.file is self.current.file:
            self.current = None
        for entry in entries:
            if not (entry.last_use > old and self.index.reachable(entry) and self._write_anew(entry, segment)):
                self.counters.evicted += 1
        with suppress(OSError):
            segment.path.unlink()

    def _write_anew(self, entry: Entry, segment: Segment) -> bool:
        if segment.file is None:
            return False
        try:
            payload = read_record(self.access, segment.file, entry.record, entry.offset)
            self._append(entry.record, [payload])
        except (DamagedRecordError, OSError, DiskFullError):
            return False
        with self.mutex:
            table = self.index.pages if entry.record.kind == PAGE else self.index.states
            table[entry.record.key].last_use = entry.last_use
            self.counters.moved += 1
        return True

    # -- starting ---------------------------------------------------------------------------------------------------------------
    def _list_files(self) -> None:
        """Finds all records of earlier runs. Files that are not ours come first in `segments`, so that they go first."""
        ours: list[Segment] = []
        for number, path in _numbered(self.folder):
            segment = Segment(number, path, path.stat().st_size, None)
            try:
                file = OpenFile(path, os.O_RDONLY)
                identity, offset = read_identity(self.access, file)
                reason = difference(identity, self.identity)
                if reason is None:
                    segment.file = file
                    self._list_records(segment, file, offset)
            except (DamagedRecordError, OSError) as error:
                reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
            if reason is not None:
                self.skipped.append(Skipped(path, reason))
            (self.segments if segment.file is None else ours).append(segment)
        self.segments += ours
        self.index.order_paths()

    def _list_records(self, segment: Segment, file: OpenFile, offset: int) -> None:
        for found in records(self.access, file, offset):
            self.index.add(found.record, segment.number, found.offset)


def _last_use_of_old(entries: Sequence[Entry], limit_bytes: int) -> int:
    """The latest use of those that are not among the ones used last, which together have at most so many bytes. Those used at
    the same time, as a path is, stay together."""
    uses = np.array([entry.last_use for entry in entries], np.int64)
    sizes = np.array([entry.record.total_bytes for entry in entries], np.int64)
    order = np.argsort(-uses, kind="stable")
    too_many = uses[order][np.cumsum(sizes[order]) > limit_bytes]
    return int(too_many[0]) if len(too_many) else 0


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    found = [(path.name.removesuffix(SUFFIX), path) for path in folder.glob(f"*{SUFFIX}")]
    return sorted((int(name), path) for name, path in found if name.isdecimal() and name.isascii())


def check_folder(folder: Path) -> None:
    """Makes it if need be. ConfigError if it cannot be used; that another process has it does not matter."""
    _lock_file(folder).close()


def _lock_file(folder: Path) -> IO[str]:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return (folder / "lock").open("a+")
    except OSError as error:
        raise ConfigError(f"cache_dir: {folder} cannot be used: {error.strerror}") from None


def _locked(folder: Path) -> IO[str]:
    """The lock file, locked. ConfigError."""
    file = _lock_file(folder)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        owner = file.read().strip() or "another process"
        file.close()
        raise ConfigError(f"cache_dir: {folder} is in use by process {owner}; give each server a directory of its own") from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file
