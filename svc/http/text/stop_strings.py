"""Stop strings: where an answer ends, and what of its text may be shown before that is known.

All of them are looked for at once, by the automaton of Aho and Corasick: the work for a character does not grow with their number
or length.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from svc.errors import RequestError


class _Node:
    """A beginning of stop strings: those from `low` to `high` in their order begin with the same `depth` characters."""

    __slots__ = ("children", "depth", "fallback", "found", "high", "low")

    def __init__(self, depth: int, low: int, high: int) -> None:
        self.depth, self.low, self.high = depth, low, high
        self.children: dict[str, _Node] = {}  # by the next character; those that a text has reached
        self.fallback = self  # the longest other node with which this one's characters end
        self.found: str | None = None  # the longest stop string with which they end


class StopStrings:
    """The stop strings of a request. Its nodes are made where a text reaches them, so it costs nothing until then."""

    def __init__(self, stop: Sequence[str]) -> None:
        assert stop, "without stop strings there is nothing to look for"
        if not all(stop):
            raise RequestError("a stop string must not be empty", param="stop")
        self._sorted = sorted(set(stop))
        self.root = _Node(0, 0, len(self._sorted))
        self.first_chars = re.compile("[" + re.escape("".join({text[0] for text in stop})) + "]")

    def step(self, node: _Node, char: str) -> _Node:
        """The node of the longest beginning with which a text ends: `node` is that of the text before `char`."""
        made = []  # nodes of the same ending, each the fallback of the one before
        while (known := node.children.get(char)) is None:
            child = self._child(node, char)
            if child is not None:
                node.children[char] = child
                made.append(child)
            if node is self.root:
                known = node
                break
            node = node.fallback
        for child in reversed(made):
            child.fallback = known
            text = self._sorted[child.low]
            child.found = text if len(text) == child.depth else known.found
            known = child
        return known

    def _child(self, node: _Node, char: str) -> _Node | None:
        """A new node one character deeper, without what it shares with others."""

        def next_char(text: str) -> str:
            return text[node.depth : node.depth + 1]

        low = bisect_left(self._sorted, char, node.low, node.high, key=next_char)
        high = bisect_right(self._sorted, char, low, node.high, key=next_char)
        return _Node(node.depth + 1, low, high) if low < high else None


class StopChecker:
    """Finds the stop string that begins earliest in a text that comes in pieces; however it is cut, the result is the same.

    Text from which a stop string could still grow is held back. A stop string is reported once none that begins before it can
    be completed any more; of two that begin at the same place, the shorter one counts.
    """

    def __init__(self, stop: StopStrings) -> None:
        self.hit: str | None = None  # the stop string found; text after it is ignored
        self._stop = stop
        self._node = stop.root
        self._held = ""  # not shown yet
        self._hidden: list[tuple[int, int]] = []  # where in `_held` there is text that is never shown
        self._found: tuple[int, str] | None = None  # where in `_held` the earliest stop string so far begins, and which

    def push(self, text: str, *, hidden: str = "") -> str:
        """Takes `text`, or `hidden` text that counts for stop strings but is never shown; returns what may be shown now.

        Once a stop string is found (`hit`), the text before it is all out.
        """
        if self.hit is not None:
            return ""
        text = hidden or text
        if self._node is self._stop.root and not self._stop.first_chars.search(text):  # nearly every token
            return "" if hidden else text
        begin = len(self._held)
        self._held += text
        if hidden:
            self._hidden.append((begin, len(self._held)))
        return self._look(begin)

    def flush(self) -> str:
        """The text has ended: what was held back is shown, or cut at a stop string that was waiting for an earlier one."""
        if self.hit is not None:
            return ""
        if self._found is not None:
            return self._end()
        return self._release(len(self._held))

    def _look(self, begin: int) -> str:
        """Looks at `_held` from `begin` on."""
        node, root, step, found = self._node, self._stop.root, self._stop.step, self._found
        at, end = begin, len(self._held)
        while at < end:
            if node is root:
                first = self._stop.first_chars.search(self._held, at)
                if first is None:
                    break
                at = first.start()
            node = step(node, self._held[at])
            at += 1
            if node.found is not None and (found is None or at - len(node.found) < found[0]):
                found = at - len(node.found), node.found
            if found is not None and at - node.depth >= found[0]:
                self._found = found
                return self._end()
        self._node, self._found = node, found
        return self._release(end - node.depth)

    def _end(self) -> str:
        assert self._found is not None
        start, self.hit = self._found
        return self._release(start)

    def _release(self, count: int) -> str:
        """The first `count` characters held, without the hidden ones."""
        text, self._held = self._held[:count], self._held[count:]
        if self._found is not None:
            self._found = self._found[0] - count, self._found[1]
        if not self._hidden:
            return text
        spans, self._hidden = self._hidden, [(max(0, a - count), b - count) for a, b in self._hidden if b > count]
        shown, last = [], 0
        for start, end in spans:
            shown.append(text[last:start])
            last = max(last, end)
        return "".join(shown) + text[last:]
