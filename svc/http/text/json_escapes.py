"""Escapes in JSON text, found by numpy: slice by slice, and without the interpreter lock that `re` would hold for all of a body."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

SLICE_BYTES = 2**16  # between two of them other threads get the interpreter lock
_HIGH, _LOW = 1, 2  # by the digit behind `\ud`
_HALF = np.zeros(256, np.uint8)
_HALF[list(b"89abAB")], _HALF[list(b"cdefCDEF")] = _HIGH, _LOW
_IS_HEX = np.zeros(256, np.bool_)
_IS_HEX[list(b"0123456789abcdefABCDEF")] = True
_ESCAPE_BYTES = len(r"\ud83d")

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.intp]


class Escapes:
    """Finds the escaped characters of a text that is read slice by slice: behind each run of backslashes whose length is odd."""

    def __init__(self) -> None:
        self.num_seen = 0  # of backslashes too, which are not found
        self._pending = False  # whether the next slice begins with one

    def find(self, text: Bytes) -> Places:
        slashes = text == ord("\\")
        first = np.zeros(int(self._pending), np.intp)
        slashes[first] = False
        at = np.flatnonzero(slashes)
        self._pending = False
        if not len(at):
            return first
        last_of_run = np.append(np.diff(at) != 1, True)
        ends = at[last_of_run]
        lengths = np.diff(np.flatnonzero(last_of_run), prepend=-1)
        self.num_seen += int(((lengths + 1) // 2).sum())
        escaped = ends[lengths % 2 == 1] + 1
        if len(escaped) and escaped[-1] == len(text):
            self._pending = True
            escaped = escaped[:-1]
        return np.concatenate((first, escaped))


def well_formed_json(body: bytes | bytearray) -> bytes | bytearray:
    """JSON text with the escapes of lone surrogates (`"\\ud83d"`) replaced by U+FFFD's; its length does not change.

    Clients cut text inside an emoji, and JavaScript and Python then write half of its pair, which no decoder takes.
    """
    if rb"\ud" not in body and rb"\uD" not in body:
        return body
    lone = _lone_surrogates(np.frombuffer(body, np.uint8))
    if not len(lone):
        return body
    mended = bytearray(body)
    text = np.frombuffer(mended, np.uint8)
    for offset, digit in enumerate(b"fffd", 1):
        text[lone + offset] = digit
    return mended


def _lone_surrogates(text: Bytes) -> Places:
    """Where the `u` of their escapes is."""
    at: Places = np.concatenate([np.zeros(0, np.intp), *_surrogates(text)])
    if not len(at):
        return at
    half = _HALF[text[at + 2]]
    # A pair is a high one with a low one right behind it.
    begins_pair = np.append((half[:-1] == _HIGH) & (half[1:] == _LOW) & (np.diff(at) == _ESCAPE_BYTES), False)
    ends_pair = np.append(False, begins_pair[:-1])
    lone: Places = at[~begins_pair & ~ends_pair]
    return lone


def _surrogates(text: Bytes) -> Iterator[Places]:
    """Where the `u` of each surrogate's escape is, of a slice at a time."""
    escapes = Escapes()
    for start in range(0, len(text), SLICE_BYTES):
        at = escapes.find(text[start : start + SLICE_BYTES]) + start
        at = at[at < len(text) - 4]
        at = at[(text[at] == ord("u")) & ((text[at + 1] | 0x20) == ord("d"))]
        at = at[_HALF[text[at + 2]] > 0]
        yield at[_IS_HEX[text[at + 3]] & _IS_HEX[text[at + 4]]]
