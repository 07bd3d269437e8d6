"""What a JSON text is made of, counted before anything is built from it.

`msgspec.json.decode` holds the interpreter lock until the whole text has become objects, whatever thread calls it, and twenty
million empty lists stop every stream for ten seconds. numpy counts them without the lock, a slice at a time.
"""

import re

import numpy as np
import numpy.typing as npt

from svc.errors import RequestError
from svc.http.text.json_escapes import SLICE_BYTES, Bytes, Escapes

UNCOUNTED_BYTES = 2**16  # up to here no text can hold so much that it matters
# Values of a text, where an object, an array and a key count for more, and the decoder stops at every escape in a string: building
# them takes 10 to 25 ms on an ordinary machine, whatever they are. 330,000 numbers, or 65,000 keys with theirs.
MAX_WEIGHT = 5 * 2**16
EXTRA_WEIGHT = 4  # of an object, an array or a key
ESCAPES_PER_VALUE = 6
MAX_DEPTH = 200  # levels: far below what Python's recursion, the decoder's and the encoder's take
_BLOCK = 64
_MAX_BLOCKS = 4  # of digits only, one after the other: Python's integers take time that grows with the square of their length
MAX_DIGITS = (_MAX_BLOCKS + 1) * _BLOCK  # fewer are taken

_COMMA, _COLON, _OPENING, _CLOSING, _DIGIT = range(1, 6)
_KIND = np.zeros(256, np.uint8)
for _kind, _characters in ((_COMMA, b","), (_COLON, b":"), (_OPENING, b"[{"), (_CLOSING, b"]}"), (_DIGIT, b"0123456789")):
    _KIND[list(_characters)] = _kind
_KEY = re.compile(rb'"(\w{1,64})"\s*$', re.ASCII)

Flags = npt.NDArray[np.bool_]


def check_weight(body: bytes | bytearray) -> None:
    """RequestError for a text of more values than `MAX_WEIGHT`, of more levels than `MAX_DEPTH`, or with a number of more digits
    than any number has; it names the outermost field that holds them. What is no JSON passes, as far as it is none.
    """
    if len(body) <= UNCOUNTED_BYTES and body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    scan = _Scan()
    text = np.frombuffer(body, np.uint8)
    for start in range(0, len(text), SLICE_BYTES):
        scan.add(text[start : start + SLICE_BYTES])
        if scan.weight > MAX_WEIGHT or scan.max_depth > MAX_DEPTH or scan.long_number:
            raise _too_much(scan, _field(body, scan.last_field))


def _too_much(scan: "_Scan", where: str | None) -> RequestError:
    subject = where or "The request body"
    if scan.weight > MAX_WEIGHT:
        message = (
            f"{subject} has too many values: at most {MAX_WEIGHT} are taken in one request, where each object, array and key "
            f"counts as {EXTRA_WEIGHT} more, and {ESCAPES_PER_VALUE} escapes in strings count as one value."
        )
        return RequestError(message, param=where, code="too_many_values")
    if scan.max_depth > MAX_DEPTH:
        return RequestError(f"{subject} is nested more than {MAX_DEPTH} levels deep.", param=where, code="invalid_json")
    return RequestError(f"{subject} has a number of more than {MAX_DIGITS} digits.", param=where)


class _Scan:
    """The counts of a text read slice by slice, and how the last slice ended."""

    def __init__(self) -> None:
        self.max_depth = 0
        self.long_number = False
        self.last_field = -1  # where the last colon of the outermost object is
        self._num_values = 1  # the outermost value has no comma and no bracket around it
        self._read_bytes = 0
        self._depth = 0
        self._in_string = False
        self._escapes = Escapes()
        self._digits = np.zeros(_MAX_BLOCKS, np.bool_)  # whether the last blocks had nothing else

    @property
    def weight(self) -> int:
        return self._num_values + self._escapes.num_seen // ESCAPES_PER_VALUE

    def add(self, text: Bytes) -> None:
        """`text` must have whole blocks unless it is the last slice."""
        kinds = _KIND[text]
        kinds[self._inside(text)] = 0
        openings, keys = kinds == _OPENING, kinds == _COLON
        num_openings, num_keys = int(np.count_nonzero(openings)), int(np.count_nonzero(keys))
        self._num_values += int(np.count_nonzero(kinds == _COMMA)) + (EXTRA_WEIGHT + 1) * num_openings + EXTRA_WEIGHT * num_keys
        self._count_digits(kinds == _DIGIT)
        self._follow(openings, kinds == _CLOSING, keys)
        self._read_bytes += len(text)

    def _inside(self, text: Bytes) -> Flags:
        """Whether each character is part of a string (its first quote is, the last is not)."""
        quotes = text == ord('"')
        quotes[self._escapes.find(text)] = False
        inside: Flags = np.bitwise_xor.accumulate(quotes.view(np.uint8)).view(np.bool_) ^ self._in_string
        self._in_string = bool(inside[-1])
        return inside

    def _count_digits(self, digits: Flags) -> None:
        blocks = digits[: len(digits) // _BLOCK * _BLOCK].view(np.uint64).reshape(-1, _BLOCK // 8)
        full = np.concatenate((self._digits, (blocks == 0x0101010101010101).all(axis=1)))
        self._digits = full[-_MAX_BLOCKS:]
        if len(full) > _MAX_BLOCKS:
            self.long_number = bool(np.lib.stride_tricks.sliding_window_view(full, _MAX_BLOCKS + 1).all(axis=1).any())

    def _follow(self, openings: Flags, closings: Flags, keys: Flags) -> None:
        depth = np.cumsum(openings.view(np.int8) - closings.view(np.int8), dtype=np.int32) + self._depth
        outermost = np.flatnonzero(keys & (depth == 1))
        if len(outermost):
            self.last_field = self._read_bytes + int(outermost[-1])
        self.max_depth = max(self.max_depth, int(depth.max()))
        self._depth = int(depth[-1])


def _field(body: bytes | bytearray, colon: int) -> str | None:
    """The key before that colon, if it reads like a field's name."""
    key = _KEY.search(bytes(body[max(0, colon - 70) : colon])) if colon >= 0 else None
    return key[1].decode() if key else None
