"""Logging: structlog, one JSON object per line (or a readable form on a terminal), on stderr.

The standard library's logging (aiohttp, asyncio) is led into the same lines. Nothing logs inside a step; no line has prompt text.
"""

import logging
import sys
from typing import Any, Literal, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, WrappedLogger

Logger = structlog.stdlib.BoundLogger

_encoder = msgspec.json.Encoder(enc_hook=repr)


def configure_logging(
    level: Literal["debug", "info", "warning", "error"] = "info",
    form: Literal["auto", "json", "console"] = "auto",
    stream: TextIO | None = None,
) -> Logger:
    """Sets the process's logging up and returns the logger. `auto`: console on a terminal, JSON otherwise."""
    out = stream if stream is not None else sys.stderr
    as_json = form == "json" or (form == "auto" and not out.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _without_none,
    ]
    final: list[structlog.typing.Processor]
    if as_json:
        final = [structlog.processors.format_exc_info, _event_first, structlog.processors.JSONRenderer(serializer=_to_json)]
    else:
        final = [structlog.dev.ConsoleRenderer(colors=out.isatty())]

    handler = logging.StreamHandler(out)
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


def _without_none(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """A field that has no value is not written."""
    return {key: value for key, value in event.items() if value is not None}


def _event_first(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """When, how bad, what: in this order, so that lines can be read by people too."""
    head = {key: event[key] for key in ("timestamp", "level", "event") if key in event}
    return head | dict(event)


def _to_json(event: EventDict, **_: Any) -> str:
    return _encoder.encode(event).decode()
