"""The format of cache files: a header that says whose they are, then records of pages and states, each with its checksum.

    file     magic, version, length of the identity, identity (JSON), checksum of these
    record   header of RECORD.size bytes, token ids, payload

A page record holds one whole page of a path: the tokens of its rows, and the page as the device has it. A state record holds the
state after `position` tokens: the tokens behind the last whole page, the state, and, where there are such tokens, their page.

Names. Every whole page of a path has a key, the hash of the key before it and its tokens, so the key names the whole path up to
there. A state's key is that of the pages before it and of the tokens behind them. A record has its key and the key before.

Everything is little-endian. A record is written in one go and never changed. The header and the tokens have a checksum of their
own, so that a file can be listed without its payloads; the payload's is compared when it is read.
"""

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

FILE_MAGIC = b"HRCACHE\n"
VERSION = 1  # of the format; files of another version are not read
KEY_BYTES = 16
ROOT = bytes(KEY_BYTES)  # the key before the first page
PAGE, STATE, FORGOTTEN, END = 1, 2, 3, 4
"""Kinds of records. FORGOTTEN: the state with its key must not be used any more. END: of a saved slot, with the number of records
before it in place of a position."""

FILE_HEAD = struct.Struct("<8sII")  # magic, version, bytes of the identity
RECORD = struct.Struct("<4sBBHIIQ16s16s16s16s")
"""Magic, kind, kind of capture, 0, position, number of tokens, bytes of the payload, key, key before, checksum of the payload,
checksum of all this and of the tokens."""
RECORD_MAGIC = b"hrec"
MAX_IDENTITY_BYTES = 1 << 20
MAX_TOKENS = 1 << 16

Payload = NDArray[np.uint8]


class DamagedRecordError(Exception):
    """What is in a file is not what was written, or not for this model. `str(error)` says what is wrong and names no file."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Whose bytes these are: they mean something only to the same weights with the same layout on the same kind of device."""

    fingerprint: str  # of the weights, and of all settings that change what they compute
    backend: str  # "cpu", "cuda" or "reference": each has its own order inside a state
    page_tokens: int
    page_bytes: int
    state_bytes: int  # of a snapshot
    kv_type: str


@dataclass(frozen=True, slots=True)
class Record:
    """One record without its payload."""

    kind: int
    capture: int  # a state's WantedKind
    position: int  # tokens of its path up to its end
    key: bytes
    before: bytes  # key of the page before
    tokens: bytes  # int32: of the page, or behind the last whole page
    payload_bytes: int
    payload_checksum: bytes

    @property
    def payload_offset(self) -> int:
        """From the record's beginning."""
        return RECORD.size + len(self.tokens)

    @property
    def total_bytes(self) -> int:
        return self.payload_offset + self.payload_bytes


def checksum(*parts: bytes | memoryview) -> bytes:
    """16 bytes."""
    digest = hashlib.blake2b(digest_size=KEY_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()


def page_key(before: bytes, tokens: bytes) -> bytes:
    """Key of the page with those tokens, behind the page `before`."""
    return hashlib.blake2b(tokens, digest_size=KEY_BYTES, key=before).digest()


def state_key(before: bytes, tokens: bytes) -> bytes:
    """Key of the state behind `tokens`, which follow the whole page `before`."""
    return hashlib.blake2b(tokens, digest_size=KEY_BYTES, key=before, person=b"state").digest()


def page_keys(tokens: NDArray[np.int32], page_tokens: int) -> Iterator[tuple[bytes, bytes]]:
    """(key, tokens) of each whole page, in order."""
    data, size, key = tokens.astype("<i4", copy=False).tobytes(), 4 * page_tokens, ROOT
    for start in range(0, len(data) - size + 1, size):
        part = data[start : start + size]
        key = page_key(key, part)
        yield key, part


def record_of(
    kind: int, capture: int, position: int, key: bytes, before: bytes, tokens: bytes, payload: Sequence[Payload]
) -> Record:
    """The record of a payload, with its size and checksum."""
    size = sum(len(part) for part in payload)
    return Record(kind, capture, position, key, before, tokens, size, checksum(*(part.data for part in payload)))


def file_head(identity: Identity) -> bytes:
    text = msgspec.json.encode(identity)
    head = FILE_HEAD.pack(FILE_MAGIC, VERSION, len(text)) + text
    return head + checksum(head)


def parse_file_head(data: bytes) -> tuple[Identity, int]:
    """The identity of a file that begins with `data`, and the offset of its first record. DamagedRecordError."""
    if len(data) < FILE_HEAD.size or data[: len(FILE_MAGIC)] != FILE_MAGIC:
        raise DamagedRecordError("it is no cache file of Headrace")
    _, version, length = FILE_HEAD.unpack_from(data)
    if version != VERSION:
        raise DamagedRecordError(f"its format has the version {version}, and this program reads {VERSION}")
    end = FILE_HEAD.size + length
    if length > MAX_IDENTITY_BYTES or len(data) < end + KEY_BYTES:
        raise DamagedRecordError("it ends within its header")
    if checksum(data[:end]) != data[end : end + KEY_BYTES]:
        raise DamagedRecordError("its header is damaged")
    try:
        return msgspec.json.decode(data[FILE_HEAD.size : end], type=Identity), end + KEY_BYTES
    except msgspec.MsgspecError as error:
        raise DamagedRecordError(f"its header is damaged: {error}") from None


def difference(theirs: Identity, ours: Identity) -> str | None:
    """Why the bytes of one do not fit the other, as a sentence about the file; None if they do."""
    if theirs == ours:
        return None
    if theirs.fingerprint != ours.fingerprint:
        return "it belongs to another model, or to other settings of this one"
    name = next(name for name in Identity.__struct_fields__ if getattr(theirs, name) != getattr(ours, name))
    return f"it was written with {name}={getattr(theirs, name)}, and the server has {getattr(ours, name)}"


def pack_record(record: Record) -> bytes:
    """Its header and tokens; the payload follows."""
    count = len(record.tokens) // 4
    fields = (RECORD_MAGIC, record.kind, record.capture, 0, record.position, count, record.payload_bytes)
    bare = RECORD.pack(*fields, record.key, record.before, record.payload_checksum, bytes(KEY_BYTES))
    return bare[:-KEY_BYTES] + checksum(bare[:-KEY_BYTES], record.tokens) + record.tokens


def tokens_bytes(head: bytes) -> int:
    """Bytes of the tokens that follow a record's header. DamagedRecordError."""
    if len(head) < RECORD.size or head[:4] != RECORD_MAGIC:
        raise DamagedRecordError("a record's header is damaged")
    count: int = RECORD.unpack(head[: RECORD.size])[5]
    if count > MAX_TOKENS:
        raise DamagedRecordError("a record's header is damaged")
    return 4 * count


def parse_record(head: bytes, tokens: bytes) -> Record:
    """`head`: RECORD.size bytes. DamagedRecordError."""
    _, kind, capture, _, position, _, size, key, before, payload_checksum, own = RECORD.unpack(head)
    if checksum(head[:-KEY_BYTES], tokens) != own:
        raise DamagedRecordError("a record's header is damaged")
    return Record(kind, capture, position, key, before, tokens, size, payload_checksum)
