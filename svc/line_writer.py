"""Writes lines on a thread of its own: a reader that stalls (a log driver, a suspended terminal) does not block the callers."""

import threading
import time
from collections import deque
from collections.abc import Callable

MAX_WAITING_BYTES = 4 * 2**20  # some ten thousand log lines
BATCH_BYTES = 64 * 2**10  # written at once: what a pipe holds


class LineWriter:
    """Owner of the waiting lines and of the thread that writes them.

    Lines beyond `max_waiting_bytes` are dropped and counted; `notice(number)` takes their place as soon as writing goes on.
    """

    def __init__(
        self, write: Callable[[memoryview], int], notice: Callable[[int], str], *, max_waiting_bytes: int = MAX_WAITING_BYTES
    ) -> None:
        """`write` may block; it returns the number of bytes written, and OSError from it drops the lines."""
        self.num_dropped = 0
        self._write = write
        self._notice = notice
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0  # of the batch being written too
        self._unreported = 0  # lines dropped since the last notice
        self._broken = False  # the last write failed
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)  # a daemon: it may never come back from a write
        self._thread.start()

    def put(self, text: str) -> None:
        """Queues one line, given without its end. Never waits."""
        line = text.encode("utf-8", "backslashreplace") + b"\n"
        with self._changed:
            if self._closing or self._waiting_bytes + len(line) > self._max_waiting_bytes:
                self._count_dropped(1)
                return
            if self._unreported:
                self._queue_notice()
            self._queue(line)

    def close(self, deadline_s: float) -> bool:
        """Writes what waits, for at most `deadline_s` seconds; whether all was written. Later lines are dropped."""
        ends = time.monotonic() + deadline_s
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(max(0.0, ends - time.monotonic()))
        return not self._thread.is_alive()

    def _queue(self, line: bytes) -> None:
        self._waiting.append(line)
        self._waiting_bytes += len(line)
        self._changed.notify_all()

    def _queue_notice(self) -> None:
        number, self._unreported = self._unreported, 0
        self._queue(self._notice(number).encode() + b"\n")

    def _count_dropped(self, number: int) -> None:
        self.num_dropped += number
        self._unreported += number

    def _run(self) -> None:
        while batch := self._next_batch():
            try:
                self._write_all(b"".join(batch))
                self._broken = False
            except OSError:
                self._broken = True
                with self._changed:
                    self._count_dropped(len(batch))
            with self._changed:
                self._waiting_bytes -= sum(map(len, batch))

    def _next_batch(self) -> list[bytes]:
        """Waits for lines. Empty: closed, and nothing waits."""
        with self._changed:
            while not self._waiting:
                if self._unreported and not self._broken:
                    self._queue_notice()
                elif self._closing:
                    return []
                else:
                    self._changed.wait()
            batch = [self._waiting.popleft()]
            size = len(batch[0])
            while self._waiting and size + len(self._waiting[0]) <= BATCH_BYTES:
                batch.append(self._waiting.popleft())
                size += len(batch[-1])
            return batch

    def _write_all(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._write(rest) :]
