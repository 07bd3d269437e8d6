"""Logging: structlog, one JSON object per line (or a readable form on a terminal), on stderr.

The standard library's loggers (aiohttp, asyncio) write the same lines. Nothing logs inside a step; no line has prompt text.
"""

import io
import logging
import os
import select
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, WrappedLogger

from svc.line_writer import LineWriter

Logger = structlog.stdlib.BoundLogger
Level = Literal["debug", "info", "warning", "error"]
Form = Literal["auto", "json", "console"]

FLUSH_S = 2.0  # at the end of the process, for lines that still wait

_encoder = msgspec.json.Encoder(enc_hook=repr)


def configure_logging(level: Level = "info", form: Form = "auto", stream: TextIO | None = None) -> Logger:
    """Sets up the process's logging and returns the logger. `auto`: console on a terminal, JSON otherwise. Each line is written
    at once, by the caller.
    """
    out = stream if stream is not None else sys.stderr
    return _configure(level, _is_json(form, out), out.isatty(), logging.StreamHandler(out))


@contextmanager
def background_logging(level: Level = "info", form: Form = "auto") -> Iterator[tuple[Logger, LineWriter]]:
    """As `configure_logging`, for a server: a thread writes the lines, so that a stalled reader of stderr stops nobody.

    Within, whatever else is printed to `sys.stderr` takes the same way. Leaving waits at most FLUSH_S for the last lines.
    """
    out = sys.stderr
    as_json = _is_json(form, out)
    writer = LineWriter(unbuffered(out), _json_notice if as_json else _plain_notice)
    try:
        with redirect_stderr(_Lines(writer)):
            yield _configure(level, as_json, out.isatty(), _Handler(writer)), writer
    finally:
        writer.close(FLUSH_S)


def _is_json(form: Form, out: TextIO) -> bool:
    return form == "json" or (form == "auto" and not out.isatty())


def _configure(level: Level, as_json: bool, colors: bool, handler: logging.Handler) -> Logger:
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _without_none,
    ]
    final: list[structlog.typing.Processor]
    if as_json:
        final = [structlog.processors.format_exc_info, _event_first, structlog.processors.JSONRenderer(serializer=_to_json)]
    else:
        final = [structlog.dev.ConsoleRenderer(colors=colors)]
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    logger: Logger = structlog.get_logger("headrace")
    return logger


class _Handler(logging.Handler):
    """Hands formatted records to the writer."""

    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._writer.put(self.format(record))
        except Exception:  # a field that cannot be shown must not fail the code that logs it
            self._writer.put(f"a log line could not be formatted: {traceback.format_exc()}")


class _Lines(io.TextIOBase):
    """Stands in for `sys.stderr`: passes whole lines to the writer."""

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer
        self._begun = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._writer.put(line)
        return len(text)


def unbuffered(out: TextIO) -> Callable[[memoryview], int]:
    """Writes to the stream's descriptor, whose state no lock of Python guards: a process can end while a write blocks."""
    try:
        descriptor = out.fileno()
    except OSError:  # a stream in memory

        def write_text(data: memoryview) -> int:
            out.write(str(data, "utf-8"))
            return len(data)

        return write_text

    def write(data: memoryview) -> int:
        while True:
            try:
                return os.write(descriptor, data)
            except BlockingIOError:  # another process that shares the descriptor has made it non-blocking
                select.select([], [descriptor], [])

    return write


def _json_notice(number: int) -> str:
    event = {"timestamp": _now(), "level": "warning", "event": "log_lines_dropped", "number": number, "reason": "stderr stalled"}
    return _to_json(event)


def _plain_notice(number: int) -> str:
    return f"{_now()} [warning] log_lines_dropped number={number} reason=stderr stalled"


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _without_none(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Leaves out fields without a value."""
    return {key: value for key, value in event.items() if value is not None}


def _event_first(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Puts time, level and event first, for people who read the lines."""
    head = {key: event[key] for key in ("timestamp", "level", "event") if key in event}
    return head | dict(event)


def _to_json(event: EventDict, **_: Any) -> str:
    return _encoder.encode(event).decode()
