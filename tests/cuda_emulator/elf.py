"""Reads what compilers leave in ELF files: the `__shared__` variables of a module, the sections of a GPU's machine code."""

import struct
from dataclasses import dataclass
from pathlib import Path

_OBJECT = 1  # symbol type
_LOADED = 1  # segment type


@dataclass(frozen=True, slots=True)
class SharedVariable:
    name: str  # mangled
    offset: int  # from the load address
    nbytes: int


@dataclass(frozen=True, slots=True)
class Image:
    size: int  # of all loaded segments, from the load address
    shared: tuple[SharedVariable, ...]


def read_image(path: Path) -> Image:
    """Of a little-endian ELF64 shared library.

    `__shared__` variables stand in the section .emu_shared. Those in function templates do not, as g++ ignores the section
    attribute there; they are known by being local to a function (`_ZZ...`), which nothing else in a kernel source is."""
    data = path.read_bytes()
    segments = _table(data, "<IIQQQQQQ", *struct.unpack_from("<Q", data, 32), *struct.unpack_from("<HH", data, 54))
    size = max(address + length for kind, _, _, address, _, _, length, _ in segments if kind == _LOADED)
    sections, names = _sections(data)
    shared = set()
    for section in (section for section, name in zip(sections, names, strict=True) if name == ".symtab"):
        strings = sections[section[6]][4]
        for name_at, info, _, index, value, length in _table(data, "<IBBHQQ", section[4], section[9], section[5] // section[9]):
            if info & 15 != _OBJECT or not length or not 0 < index < len(sections):
                continue
            symbol = _text(data, strings + name_at)
            local = symbol.startswith("_ZZ") and not symbol.startswith("_ZZN3emu") and names[index] in (".bss", ".data")
            if local or names[index] == ".emu_shared":
                shared.add(SharedVariable(symbol, value, length))
    return Image(size, tuple(sorted(shared, key=lambda variable: variable.offset)))


def sections(data: bytes) -> dict[str, bytes]:
    """Contents by name."""
    rows, names = _sections(data)
    return {name: data[row[4] : row[4] + row[5]] for name, row in zip(names, rows, strict=True)}


def _sections(data: bytes) -> tuple[list[tuple[int, ...]], list[str]]:
    rows = _table(data, "<IIQQQQIIQQ", *struct.unpack_from("<Q", data, 40), *struct.unpack_from("<HH", data, 58))
    (names_at,) = struct.unpack_from("<H", data, 62)
    return rows, [_text(data, rows[names_at][4] + row[0]) for row in rows]


def _table(data: bytes, row: str, start: int, stride: int, count: int) -> list[tuple[int, ...]]:
    return [struct.unpack_from(row, data, start + stride * i) for i in range(count)]


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()
