"""Corpora out of packages: R's serialization, line wrapping."""

import struct
import zlib

from tests.demo_model.scripts import load_script

fetch = load_script("fetch")


def record(body: bytes) -> bytes:
    """A record of a lazy-load database as R writes it: length, then zlib over an XDR serialization of version 3."""
    header = b"X\n" + struct.pack(">iiii", 3, 0x040201, 0x030500, 5) + b"UTF-8"
    return struct.pack(">i", len(header + body)) + zlib.compress(header + body)


def strings(*lines: str) -> bytes:
    """A character vector (STRSXP) of UTF-8 CHARSXPs."""
    parts = [struct.pack(">ii", 0x00040009, len(line.encode())) + line.encode() for line in lines]
    return struct.pack(">ii", 16, len(lines)) + b"".join(parts)


def test_character_vectors_of_a_lazy_load_database() -> None:
    """All of them, in the order of the file; records of another type (here integers) are passed over."""
    integers = struct.pack(">iiii", 13, 2, 1, 2)
    database = record(strings("EMMA", "", "naïve")) + record(integers) + record(strings("PERSUASION"))
    assert fetch._string_vectors(database) == [["EMMA", "", "naïve"], ["PERSUASION"]]


def test_unwrap() -> None:
    """One line per paragraph; rows of stars and volume headings go; typographic quotes and italics become plain."""
    text = "CHAPTER I\n\n\n“It is\r\nvery _odd_,”  said\nshe.\n\n* * *\n\nVOLUME II\n\nThe end is near.\n"
    assert fetch._unwrap(text) == 'CHAPTER I\n\n"It is very odd," said she.\n\nThe end is near.'
