"""Log lines: one JSON object each, whoever writes them."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from svc.log import configure_logging


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_json_lines() -> None:
    """When, how bad and what come first; None is left out; the standard library's loggers write the same form."""
    out = io.StringIO()
    logger = configure_logging("info", "json", out)
    logger.info("serving", url="http://x", nothing=None, size=3)
    logger.debug("unseen")
    logging.getLogger("aiohttp.server").warning("odd %s", "request")
    first, second = map(json.loads, out.getvalue().splitlines())
    assert list(first) == ["timestamp", "level", "event", "url", "size"]
    assert (first["level"], first["event"], first["size"]) == ("info", "serving", 3)
    assert (second["level"], second["event"], second["logger"]) == ("warning", "odd request", "aiohttp.server")


def test_exception_is_one_line() -> None:
    """A traceback is a field, so that a line stays a line."""
    out = io.StringIO()
    logger = configure_logging("info", "json", out)
    try:
        raise ValueError("broken")
    except ValueError as error:
        logger.exception("request_failed")
        logger.error("step_failed", exc_info=error)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert len(lines) == 2
    assert all("ValueError: broken" in line["exception"] for line in lines)


def test_auto_is_json_when_no_terminal_reads() -> None:
    """And console where one is asked for."""
    out = io.StringIO()
    configure_logging("info", "auto", out).info("x")
    assert json.loads(out.getvalue())["event"] == "x"
    out = io.StringIO()
    configure_logging("info", "console", out).info("readable", size=3)
    assert "readable" in out.getvalue()
    assert "size=3" in out.getvalue()
    assert not out.getvalue().startswith("{")


def test_level() -> None:
    """What is less severe than asked for is not written, the standard library's lines included."""
    out = io.StringIO()
    logger = configure_logging("error", "json", out)
    logger.warning("unseen")
    logging.getLogger("x").warning("unseen")
    logger.error("seen")
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["seen"]
