"""Stop strings: where an answer ends, and what of its text may be shown before that is known."""

from svc.errors import RequestError


class StopChecker:
    """Finds the stop string that begins earliest in a text that comes in pieces; however it is cut, the result is the same.

    Text from which a stop string could still grow is held back. A stop string is reported once none that begins before it can
    be completed any more; of two that begin at the same place, the shorter one counts.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        if not all(stop):
            raise RequestError("a stop string must not be empty", param="stop")
        self._stop = tuple(sorted(set(stop), key=lambda s: (len(s), s)))
        self._first_chars = frozenset(s[0] for s in stop)
        self._held = ""
        self.hit: str | None = None  # the stop string found; text after it is ignored

    def push(self, text: str) -> tuple[str, str | None]:
        """Take `text`; returns what may be shown now, and the stop string once it is found (the text before it is all out)."""
        if self.hit is not None:
            return "", self.hit
        if not self._held and self._first_chars.isdisjoint(text):  # nearly every token
            return text, None
        return self._decide(self._held + text, at_end=False)

    def flush(self) -> tuple[str, str | None]:
        """The text has ended: what was held back is shown, or cut at a stop string that was waiting for an earlier one."""
        if self.hit is not None:
            return "", self.hit
        return self._decide(self._held, at_end=True)

    def _decide(self, text: str, *, at_end: bool) -> tuple[str, str | None]:
        found, start = self._first_complete(text)
        end = len(text) if found is None else start
        open_start = end if at_end else self._first_open(text, end)
        if open_start < end or found is None:
            self._held = text[open_start:]
            return text[:open_start], None
        self._held, self.hit = "", found
        return text[:start], found

    def _first_complete(self, text: str) -> tuple[str | None, int]:
        """The stop string that begins first in `text`, the shortest of those that begin there, and where."""
        found, start = None, len(text)
        for stop in self._stop:
            at = text.find(stop)
            if 0 <= at < start:
                found, start = stop, at
        return found, start

    def _first_open(self, text: str, end: int) -> int:
        """The first position before `end` from which the rest of `text` begins a stop string; `end` if there is none."""
        for stop in self._stop:
            at = text.find(stop[0], max(0, len(text) - len(stop) + 1), end)
            while at >= 0:
                if stop.startswith(text[at:]):
                    end = at
                    break
                at = text.find(stop[0], at + 1, end)
        return end
