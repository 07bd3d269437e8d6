"""Files of records: reading them, appending to them. Every call of the system that can fail is in `FileAccess`."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from svc.disk.records import (
    FILE_HEAD,
    KEY_BYTES,
    MAX_IDENTITY_BYTES,
    RECORD,
    DamagedRecordError,
    Identity,
    Payload,
    Record,
    checksum,
    file_head,
    pack_record,
    parse_file_head,
    parse_record,
    tokens_bytes,
)

MAX_BUFFERS = 512  # of one write; the system takes 1,024


class FileAccess:
    """Reads and writes. Tests put a disk here that fails, fills up or is slow."""

    def read(self, fd: int, buffer: memoryview, offset: int) -> int:
        """Bytes read into `buffer`, 0 at the end of the file. OSError."""
        return os.preadv(fd, [buffer], offset)

    def write(self, fd: int, parts: list[bytes | memoryview]) -> int:
        """Bytes appended. OSError."""
        return os.writev(fd, parts)

    def advise(self, fd: int, offset: int, length: int, advice: int) -> None:
        with suppress(OSError, AttributeError):
            os.posix_fadvise(fd, offset, length, advice)


class OpenFile:
    """A descriptor that is closed when nobody uses it any more: a reader goes on while the file is removed."""

    def __init__(self, path: Path, flags: int) -> None:
        """OSError."""
        self.path = path
        self.fd = -1
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o600)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    @property
    def size(self) -> int:
        return os.fstat(self.fd).st_size


@dataclass(frozen=True, slots=True)
class Found:
    """A record and where it begins."""

    record: Record
    offset: int


def read_exactly(access: FileAccess, file: OpenFile, size: int, offset: int) -> Payload:
    """uint8 [size]. DamagedRecordError where the file ends before; OSError."""
    data = np.empty(size, np.uint8)
    view, done = data.data, 0
    while done < size:
        count = access.read(file.fd, view[done:], offset + done)
        if count == 0:
            raise DamagedRecordError("it ends within a record")
        done += count
    return data


def read_identity(access: FileAccess, file: OpenFile) -> tuple[Identity, int]:
    """The identity and the offset of the first record. DamagedRecordError, OSError."""
    size = min(file.size, FILE_HEAD.size + MAX_IDENTITY_BYTES + KEY_BYTES)
    head = read_exactly(access, file, min(size, FILE_HEAD.size), 0).tobytes()
    if len(head) == FILE_HEAD.size:
        size = min(size, FILE_HEAD.size + FILE_HEAD.unpack(head)[2] + KEY_BYTES)
        head = read_exactly(access, file, size, 0).tobytes()
    return parse_file_head(head)


def records(access: FileAccess, file: OpenFile, offset: int) -> Iterator[Found]:
    """All records from `offset` on, without their payloads. DamagedRecordError where they cannot be followed further; OSError."""
    end = file.size
    while offset < end:
        head = read_exactly(access, file, RECORD.size, offset).tobytes()
        tokens = read_exactly(access, file, tokens_bytes(head), offset + RECORD.size).tobytes()
        record = parse_record(head, tokens)
        if offset + record.total_bytes > end:
            raise DamagedRecordError("it ends within a record")
        yield Found(record, offset)
        offset += record.total_bytes


def read_record(access: FileAccess, file: OpenFile, expected: Record, offset: int) -> Payload:
    """The payload of a record, uint8. DamagedRecordError if anything differs from what was written; OSError."""
    data = read_exactly(access, file, expected.total_bytes, offset)
    head, tokens = data[: RECORD.size].tobytes(), data[RECORD.size : expected.payload_offset].tobytes()
    if tokens_bytes(head) != len(expected.tokens) or parse_record(head, tokens) != expected:
        raise DamagedRecordError("another record is where one was written")
    payload = data[expected.payload_offset :]
    if checksum(payload.data) != expected.payload_checksum:
        raise DamagedRecordError("a record's contents are damaged")
    return payload


class Appender:
    """A file that grows by whole records. Owner of its end."""

    def __init__(self, access: FileAccess, path: Path, identity: Identity) -> None:
        """Makes the file, which must not exist. OSError."""
        self.file = OpenFile(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        self._access = access
        self.size = 0
        self._append([file_head(identity)])

    def append(self, record: Record, payload: list[Payload]) -> int:
        """Where it begins. After an OSError the file is as before, or cannot be used any more (`size` is right in both cases)."""
        begin = self.size
        self._append([pack_record(record), *(part.data for part in payload)])
        return begin

    def sync(self) -> None:
        """What was written is on the disk. OSError."""
        os.fdatasync(self.file.fd)

    def _append(self, parts: list[bytes | memoryview]) -> None:
        left = [memoryview(part) for part in parts if len(part)]
        written = 0
        try:
            while left:
                count = self._access.write(self.file.fd, list(left[:MAX_BUFFERS]))
                written += count
                while left and count >= len(left[0]):
                    count -= len(left.pop(0))
                if left:
                    left[0] = left[0][count:]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self.file.fd, self.size)
            raise
        self.size += written
