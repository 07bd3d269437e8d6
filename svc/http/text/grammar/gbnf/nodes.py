"""What a grammar is made of: characters, and ways to combine them."""

from collections.abc import Iterable
from dataclasses import dataclass

LAST_CHAR = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)  # no text contains them


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of `ranges` (first and last code point each), which are in order and apart from each other."""

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]], *, negated: bool = False) -> "Chars":
        merged: list[tuple[int, int]] = []
        for first, last in sorted(ranges):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], last))
            elif first <= last:
                merged.append((first, last))
        return cls(_without(_all_others(merged) if negated else merged, SURROGATES))


@dataclass(frozen=True, slots=True)
class Chain:
    """All of `items`, one after the other."""

    items: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of `options`."""

    options: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`node` from `least` to `most` times; None: any number."""

    node: "Node"
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Ref:
    """The rule of that name."""

    name: str


Node = Chars | Chain | Choice | Repeat | Ref


def _all_others(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    starts = [0, *(last + 1 for _, last in ranges)]
    ends = [*(first - 1 for first, _ in ranges), LAST_CHAR]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if start <= end]


def _without(ranges: Iterable[tuple[int, int]], hole: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    cut = [part for first, last in ranges for part in ((first, min(last, hole[0] - 1)), (max(first, hole[1] + 1), last))]
    return tuple(dict.fromkeys((first, last) for first, last in cut if first <= last))
