"""Lexemes as positions, and the automaton that reads several of them at once.

A position is one place of a character in a lexeme. What a lexer can be in the middle of is a set of positions. Going through those
sets shows where it would go on with a longer lexeme although a shorter one might be meant.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from svc.http.text.grammar.gbnf.nodes import Chain, Chars, Choice, Node, Ref, Repeat

MAX_POSITIONS = 4000  # of all lexemes together
MAX_LOOKS = 1_000_000  # at positions, while the automaton runs: about a second
FEW = 2


class TooLargeError(Exception):
    """The lexemes are too large to be looked at like this."""


class Alphabet:
    """Sets of characters as bit sets: characters that all sets of a grammar treat alike share one bit."""

    def __init__(self, sets: Iterable[Chars]) -> None:
        edges = {edge for chars in sets for first, last in chars.ranges for edge in (first, last + 1)}
        self._bit = {edge: n for n, edge in enumerate(sorted(edges))}

    def bits(self, chars: Chars) -> int:
        return sum((1 << self._bit[last + 1]) - (1 << self._bit[first]) for first, last in chars.ranges)


@dataclass(slots=True)
class Ends:
    """Of a lexeme: whether it may be empty, the positions that its words begin and end with."""

    nullable: bool
    first: frozenset[int] = frozenset()
    last: frozenset[int] = frozenset()


@dataclass(slots=True)
class Positions:
    """Those of all lexemes of a grammar."""

    alphabet: Alphabet
    chars: list[int] = field(default_factory=list)  # per position, as bits
    lexeme: list[int] = field(default_factory=list)  # per position, its number
    follow: list[set[int]] = field(default_factory=list)  # per position, those that may come next
    parts: list[Ends] = field(default_factory=list)  # per lexeme

    def add(self, node: Node) -> None:
        """One more lexeme."""
        self.parts.append(self._part(node))

    def _part(self, node: Node) -> Ends:
        match node:
            case Chars():
                return self._position(node)
            case Chain(items):
                return self._chain([self._part(item) for item in items])
            case Choice(options):
                parts = [self._part(option) for option in options]
                return Ends(any(p.nullable for p in parts), _union(p.first for p in parts), _union(p.last for p in parts))
            case Repeat(inside, least, most):
                return self._repeated(inside, least, most)
            case Ref():
                raise AssertionError("a lexeme refers to no rule")

    def _position(self, node: Chars) -> Ends:
        if len(self.chars) >= MAX_POSITIONS:
            raise TooLargeError
        here = frozenset({len(self.chars)})
        self.chars.append(self.alphabet.bits(node))
        self.lexeme.append(len(self.parts))
        self.follow.append(set())
        return Ends(False, here, here)

    def _chain(self, parts: Sequence[Ends]) -> Ends:
        whole = Ends(True)
        for part in parts:
            for position in whole.last:
                self.follow[position] |= part.first
            first = whole.first | part.first if whole.nullable else whole.first
            last = whole.last | part.last if part.nullable else part.last
            whole = Ends(whole.nullable and part.nullable, first, last)
        return whole

    def _repeated(self, inside: Node, least: int, most: int | None) -> Ends:
        """More than a few repetitions are looked at as any number: that only adds words."""
        parts = [self._part(inside) for _ in range(min(least, FEW))]
        if most is None or most - least > FEW:
            loop = self._part(inside)
            for position in loop.last:
                self.follow[position] |= loop.first
            parts.append(Ends(True, loop.first, loop.last))
        else:
            rest = Ends(True)
            for _ in range(most - least):
                longer = self._chain([self._part(inside), rest])
                rest = Ends(True, longer.first, longer.last)
            parts.append(rest)
        return self._chain(parts)

    def begin(self, lexemes: int) -> frozenset[int]:
        """The positions that words of these lexemes (as bits) begin with."""
        return _union(part.first for number, part in enumerate(self.parts) if lexemes >> number & 1)


class Lexer:
    """Reads the longest lexeme that is allowed, again and again, over all texts at once."""

    def __init__(self, positions: Positions, first: int, following: Sequence[int]) -> None:
        """Lexemes as bits: `first` may begin a text, `following[n]` may come behind lexeme n."""
        self._at = positions
        self._last = _union(part.last for part in positions.parts)
        self._following = following
        self._allowed = {first}
        self._waiting = [first]
        self._looks = 0
        self.overlong: set[int] = set()  # lexemes that get in the way of a shorter one, and that one

    def run(self) -> None:
        """Fills `overlong`. TooLargeError if it takes too long."""
        while self._waiting:
            self._read(self._at.begin(self._waiting.pop()))

    def _read(self, begin: frozenset[int]) -> None:
        """One lexeme, out of those that begin with these positions."""
        waiting = self._moves(begin)
        seen: set[frozenset[int]] = set()
        while waiting:
            state = waiting.pop()
            if state not in seen:
                seen.add(state)
                nexts = _union(self._at.follow[position] for position in state)
                self._note({self._at.lexeme[position] for position in state & self._last}, nexts)
                waiting += self._moves(nexts)

    def _note(self, ended: set[int], nexts: frozenset[int]) -> None:
        """Some lexemes end here, all with the same text; others could go on."""
        following = 0
        for number in ended:
            following |= self._following[number]
        behind = _bits(self._at.chars[position] for position in self._at.begin(following))
        longer = {self._at.lexeme[position] for position in nexts if self._at.chars[position] & behind}
        if longer:
            self.overlong |= longer | ended
        if following and following not in self._allowed:
            self._allowed.add(following)
            self._waiting.append(following)

    def _moves(self, positions: frozenset[int]) -> list[frozenset[int]]:
        """What one more character leads to."""
        states: set[frozenset[int]] = set()
        left = _bits(self._at.chars[position] for position in positions)
        while left:
            self._looks += len(positions)
            if self._looks > MAX_LOOKS:
                raise TooLargeError
            bit = left & -left
            state = frozenset(position for position in positions if self._at.chars[position] & bit)
            states.add(state)
            left &= ~self._alike(positions, state, left)
        return list(states)

    def _alike(self, positions: frozenset[int], state: frozenset[int], chars: int) -> int:
        """Of `chars`, those that lead from `positions` to `state`."""
        for position in positions:
            chars &= self._at.chars[position] if position in state else ~self._at.chars[position]
        return chars


def _union(sets: Iterable[Iterable[int]]) -> frozenset[int]:
    return frozenset().union(*sets)


def _bits(sets: Iterable[int]) -> int:
    bits = 0
    for more in sets:
        bits |= more
    return bits
