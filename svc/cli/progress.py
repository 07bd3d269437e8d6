"""A progress line on stderr: redrawn in place on a terminal, a whole line every LINE_EVERY_S seconds elsewhere."""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

REDRAW_S = 0.1
LINE_EVERY_S = 10.0
BAR_WIDTH = 24


class ProgressLine:
    """A context manager. `update` may be called at any rate; the line on a terminal is wiped at the end."""

    def __init__(
        self,
        label: str,
        total: int,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        quiet: bool = False,
    ) -> None:
        """`total` units of work, at least 1. `quiet` shows nothing. `clock` in seconds."""
        self._label = label
        self._total = total
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._quiet = quiet
        self._terminal = self._stream.isatty()
        self._began = self._shown = clock()
        self._drawn = 0  # characters on the terminal's line

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.wipe()

    def wipe(self) -> None:
        """Removes the line from a terminal, before something else is printed there."""
        if self._drawn:
            self._stream.write("\r" + " " * self._drawn + "\r")
            self._stream.flush()
            self._drawn = 0

    def update(self, done: int, note: str = "") -> None:
        """Shows that `done` of `total` units are done; `note` follows the estimate."""
        now = self._clock()
        if self._quiet or now - self._shown < (REDRAW_S if self._terminal else LINE_EVERY_S):
            return
        self._shown = now
        text = self.text(done, now - self._began, note)
        if self._terminal:
            self._stream.write("\r" + text.ljust(self._drawn))
            self._drawn = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def text(self, done: int, elapsed_s: float, note: str = "") -> str:
        """The line: a bar, a percentage, the time left, and the note."""
        share = min(done / self._total, 1.0)
        filled = int(share * BAR_WIDTH)
        left = f", {duration(elapsed_s / share - elapsed_s)} left" if 0 < share < 1 else ""
        tail = f", {note}" if note else ""
        return f"{self._label} [{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {100 * share:3.0f} %{left}{tail}"


def duration(seconds: float) -> str:
    """A duration for people: "12 s", "3 min 05 s", "2 h 10 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
