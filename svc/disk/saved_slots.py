"""Files of saved slots: one conversation's pages and all its states, in the format of records.py with a record at the end.

A file is complete or it is not there: it is written under another name first. Before anything of it is used all of it is read and
compared with its checksums.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from svc.disk.files import Appender, FileAccess, Found, OpenFile, read_identity, read_record, records
from svc.disk.records import (
    END,
    PAGE,
    ROOT,
    STATE,
    DamagedRecordError,
    Identity,
    Payload,
    difference,
    page_key,
    record_of,
    state_key,
)
from svc.errors import RequestError
from svc.memory.tokens import TokenArray

UNFINISHED = ".unfinished"  # suffix of a file that is being written
MAX_NAME_BYTES = 200


@dataclass(frozen=True, slots=True)
class SavedState:
    """One state of a saved conversation."""

    position: int
    kind: int
    found: Found


@dataclass(frozen=True, slots=True)
class SavedSlot:
    """A saved conversation whose file has been read once and found to be whole."""

    file: OpenFile
    tokens: TokenArray
    pages: tuple[Found, ...]  # whole ones, in order
    states: tuple[SavedState, ...]  # by position; the last is at the end
    size: int  # bytes of the file

    def read(self, found: Found) -> Payload:
        """RequestError if the file was changed meanwhile."""
        try:
            return read_record(FileAccess(), self.file, found.record, found.offset)
        except (DamagedRecordError, OSError) as error:
            raise refused(self.file.path.name, error) from None


@dataclass(frozen=True, slots=True)
class Listed:
    """A file of the folder."""

    name: str
    size: int  # bytes
    modified: float  # Unix seconds
    num_tokens: int  # 0 if it cannot be used
    problem: str | None  # why it cannot


def checked_name(name: str) -> str:
    """A bare file name. RequestError for anything else."""
    odd = not name or name.startswith(".") or name.endswith(UNFINISHED) or len(name.encode(errors="replace")) > MAX_NAME_BYTES
    if odd or any(character in "/\\:" or not character.isprintable() for character in name):
        message = "must be a bare file name: printable, without slashes or colons, and not beginning with a dot"
        raise RequestError(f"filename {message}, not {name[:100]!r}", param="filename", code="invalid_filename")
    return name


def refused(name: str, error: Exception) -> RequestError:
    """The file cannot be used."""
    reason = error.strerror if isinstance(error, OSError) else str(error)
    if isinstance(error, OSError) and error.errno == errno.ELOOP:
        reason = "it is a symbolic link"
    return RequestError(f"the saved slot {name!r} cannot be restored: {reason}", param="filename", code="invalid_slot_file")


class SlotWriter:
    """Writes one file. Use `writing`."""

    def __init__(self, appender: Appender, identity: Identity) -> None:
        self._appender = appender
        self._identity = identity
        self._key = ROOT
        self._keys = [ROOT]  # before each tile
        self._count = 0

    @property
    def size(self) -> int:
        return self._appender.size

    def add_page(self, tokens: bytes, payload: Payload) -> None:
        """The next whole page. OSError."""
        key = page_key(self._key, tokens)
        self._add(PAGE, 0, len(self._keys) * self._identity.page_tokens, key, self._key, tokens, [payload])
        self._key = key
        self._keys.append(key)

    def add_state(self, position: int, kind: int, tail_tokens: bytes, state: Payload, tail: Payload | None) -> None:
        """A state after all its whole pages have been added. OSError."""
        before = self._keys[position // self._identity.page_tokens]
        key = state_key(before, tail_tokens)
        self._add(STATE, kind, position, key, before, tail_tokens, [state] if tail is None else [state, tail])

    def end(self) -> None:
        """OSError."""
        self._add(END, 0, self._count, self._key, ROOT, b"", [])
        self._appender.sync()

    def _add(
        self, kind: int, capture: int, position: int, key: bytes, before: bytes, tokens: bytes, payload: list[Payload]
    ) -> None:
        self._appender.append(record_of(kind, capture, position, key, before, tokens, payload), payload)
        self._count += 1


@contextmanager
def writing(folder: Path, name: str, identity: Identity, access: FileAccess | None = None) -> Iterator[SlotWriter]:
    """Makes the file, or replaces the one of that name, when the block ends well: call `end` in it. Nothing is left if it fails.

    OSError.
    """
    target, unfinished = folder / name, folder / (name + UNFINISHED)
    if target.is_symlink():
        raise RequestError(f"{name!r} is a link and is not written", param="filename", code="invalid_filename")
    with suppress(FileNotFoundError):
        unfinished.unlink()
    try:
        writer = SlotWriter(Appender(access or FileAccess(), unfinished, identity), identity)
        yield writer
        unfinished.rename(target)
    finally:
        with suppress(OSError):
            unfinished.unlink()


def open_saved(folder: Path, name: str, identity: Identity, access: FileAccess | None = None) -> SavedSlot:
    """Reads and checks all of a file. RequestError naming what is wrong with it."""
    access = access or FileAccess()
    try:
        file = OpenFile(folder / name, os.O_RDONLY | os.O_NOFOLLOW)
        return _checked(access, file, identity)
    except FileNotFoundError:
        raise RequestError(f"there is no saved slot {name!r}", param="filename", code="slot_file_not_found") from None
    except (DamagedRecordError, OSError) as error:
        raise refused(name, error) from None


def listed(folder: Path, identity: Identity) -> list[Listed]:
    """All files of the folder by name, without reading their payloads. OSError."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not path.is_file() or path.name.endswith(UNFINISHED) or path.name.startswith("."):
            continue
        status = path.stat()
        num_tokens, problem = 0, None
        try:
            file = OpenFile(path, os.O_RDONLY | os.O_NOFOLLOW)
            num_tokens = len(_structure(FileAccess(), file, identity).tokens)
        except (DamagedRecordError, OSError) as error:
            problem = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        found.append(Listed(path.name, status.st_size, status.st_mtime, num_tokens, problem))
    return found


def _checked(access: FileAccess, file: OpenFile, identity: Identity) -> SavedSlot:
    saved = _structure(access, file, identity)
    for found in (*saved.pages, *(state.found for state in saved.states)):
        read_record(access, file, found.record, found.offset)
    return saved


def _structure(access: FileAccess, file: OpenFile, identity: Identity) -> SavedSlot:
    """What is in it and whether it belongs together. DamagedRecordError, OSError."""
    theirs, offset = read_identity(access, file)
    reason = difference(theirs, identity)
    if reason is not None:
        raise DamagedRecordError(reason)
    pages, states, keys, ended = [], [], [ROOT], False
    for found in records(access, file, offset):
        record = found.record
        if ended:
            raise DamagedRecordError("it goes on behind its end")
        if record.kind == PAGE:
            _expect(record.key == page_key(keys[-1], record.tokens) and len(record.tokens) == 4 * identity.page_tokens)
            _expect(record.payload_bytes == identity.page_bytes)
            keys.append(record.key)
            pages.append(found)
        elif record.kind == STATE:
            states.append(SavedState(record.position, record.capture, found))
        else:
            _expect(record.kind == END and record.position == len(pages) + len(states))
            ended = True
    if not ended:
        raise DamagedRecordError("it is cut off: its end is missing")
    return SavedSlot(file, _tokens(pages, states, keys, identity), tuple(pages), _ordered(states), file.size)


def _tokens(pages: list[Found], states: list[SavedState], keys: list[bytes], identity: Identity) -> TokenArray:
    """The tokens of the whole conversation, once every state is known to be one of it."""
    _expect(bool(states))
    whole = b"".join(page.record.tokens for page in pages)
    last = _ordered(states)[-1]
    data = whole + last.found.record.tokens
    _expect(4 * last.position == len(data))
    for state in states:
        record, size = state.found.record, identity.page_tokens
        full, rest = divmod(state.position, size)
        _expect(0 < full * size + rest <= len(data) // 4 and record.tokens == data[4 * full * size : 4 * state.position])
        _expect(record.before == keys[full] and record.key == state_key(record.before, record.tokens))
        _expect(record.payload_bytes == identity.state_bytes + (identity.page_bytes if rest else 0))
    return np.frombuffer(data, "<i4").astype(np.int32)


def _ordered(states: list[SavedState]) -> tuple[SavedState, ...]:
    return tuple(sorted(states, key=lambda state: state.position))


def _expect(holds: bool) -> None:
    if not holds:
        raise DamagedRecordError("its records do not belong together")
