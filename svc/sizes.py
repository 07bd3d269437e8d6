"""Sizes in bytes as people write them."""

import re

UNIT_BYTES = {
    "": 1,
    "B": 1,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}


def parse_size(text: str) -> int:
    """Bytes of "4GiB", "1.5 MiB", "500MB" or "1048576". Raises ValueError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]i?b|b|)", text.strip(), re.IGNORECASE | re.ASCII)
    if match is None:
        raise ValueError(f"{text!r} is not a size")
    return int(float(match[1]) * UNIT_BYTES[match[2].upper()]) if "." in match[1] else int(match[1]) * UNIT_BYTES[match[2].upper()]


def format_size(size: int | str) -> str:
    """The shortest exact form that `parse_size` reads back: "64MiB", "1000"."""
    if isinstance(size, str):
        return size
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        count, rest = divmod(size, UNIT_BYTES[unit.upper()])
        if count and not rest:
            return f"{count}{unit}"
    return str(size)
