"""LineWriter: `put` never waits, what is lost is counted and said, and the end has a deadline."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from svc.line_writer import LineWriter

PATIENCE_S = 60.0  # for a slow machine; nothing waits that long in a run that passes


def notice(number: int) -> str:
    return f"<{number} lost>"


class Reader:
    """The other end of `write`: every write waits for a permit. Takes at most `piece` bytes of each."""

    def __init__(self, *, permits: int = 0, piece: int = 1 << 30, failures: int = 0) -> None:
        """The first `failures` writes raise BrokenPipeError."""
        self.received = bytearray()
        self.num_writes = 0
        self._piece = piece
        self._failures = failures
        self._permits = threading.Semaphore(permits)
        self._entered = threading.Semaphore(0)

    def write(self, data: memoryview) -> int:
        self.num_writes += 1
        self._entered.release()
        assert self._permits.acquire(timeout=PATIENCE_S)
        if self.num_writes <= self._failures:
            raise BrokenPipeError
        self.received += data[: self._piece]
        return min(len(data), self._piece)

    def wait_until_stalled(self) -> None:
        """Returns once a further write waits for its permit."""
        assert self._entered.acquire(timeout=PATIENCE_S)

    def permit(self, writes: int = 10**4) -> None:
        self._permits.release(writes)

    @property
    def lines(self) -> list[str]:
        return self.received.decode().splitlines()


@given(st.lists(st.text(st.characters(exclude_characters="\n"), max_size=50)), st.integers(1, 100))
def test_all_lines_in_order(lines: list[str], piece: int) -> None:
    """Whatever the text (lone surrogates too), and however little each write takes."""
    reader = Reader(permits=10**4, piece=piece)
    writer = LineWriter(reader.write, notice)
    for line in lines:
        writer.put(line)
    assert writer.close(PATIENCE_S)
    assert bytes(reader.received) == b"".join(line.encode("utf-8", "backslashreplace") + b"\n" for line in lines)
    assert writer.num_dropped == 0


def test_a_stalled_reader_costs_lines_and_no_time() -> None:
    """Lines beyond the bound are dropped and counted; when lines fit again, a notice comes where they are missing."""
    reader = Reader()
    writer = LineWriter(reader.write, notice, max_waiting_bytes=14)
    writer.put("12345")
    reader.wait_until_stalled()
    for line in ("1234567", "a", "b"):  # 6 and 8 bytes with their ends: then it is full
        writer.put(line)
    assert writer.num_dropped == 2
    reader.permit(1)
    reader.wait_until_stalled()  # in the second batch: the six bytes of the first are free
    writer.put("y")
    reader.permit()
    assert writer.close(PATIENCE_S)
    assert reader.lines == ["12345", "1234567", "<2 lost>", "y"]


def test_the_notice_comes_without_a_further_line() -> None:
    """As soon as everything else is written."""
    reader = Reader()
    writer = LineWriter(reader.write, notice, max_waiting_bytes=6)
    writer.put("12345")
    reader.wait_until_stalled()
    writer.put("a")
    reader.permit(1)
    reader.wait_until_stalled()
    reader.permit()
    assert writer.close(PATIENCE_S)
    assert reader.lines == ["12345", "<1 lost>"]


def test_the_end_does_not_wait_for_a_stalled_reader() -> None:
    """`close` says that lines are left; what comes later is dropped."""
    reader = Reader()
    writer = LineWriter(reader.write, notice)
    writer.put("a")
    reader.wait_until_stalled()
    assert not writer.close(0.0)
    writer.put("b")
    assert writer.num_dropped == 1
    reader.permit()
    assert writer.close(PATIENCE_S)
    assert reader.lines == ["a", "<1 lost>"]


def test_a_reader_that_has_left() -> None:
    """Its lines are counted, and no notice is tried for a notice that failed."""
    reader = Reader(failures=2)
    writer = LineWriter(reader.write, notice)
    writer.put("a")
    reader.wait_until_stalled()
    writer.put("b")
    reader.permit()
    assert writer.close(PATIENCE_S)
    assert (reader.num_writes, reader.lines, writer.num_dropped) == (2, [], 2)


def test_a_reader_that_comes_back() -> None:
    """The next line that arrives is followed by the notice."""
    reader = Reader(failures=1)
    writer = LineWriter(reader.write, notice)
    writer.put("a")
    reader.wait_until_stalled()
    writer.put("b")
    reader.permit()
    assert writer.close(PATIENCE_S)
    assert (reader.lines, writer.num_dropped) == (["b", "<1 lost>"], 1)
