"""Log lines: one JSON object each, whoever writes them."""

import io
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator

import pytest
import structlog

from svc.log import Form, background_logging, configure_logging, unbuffered


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


def test_a_server_logs_through_a_thread(capsys: pytest.CaptureFixture[str]) -> None:
    """The same lines, all of them written by the end; what is printed to stderr goes the same way, in order."""
    with background_logging("info", "json") as (logger, writer):
        logger.info("first", size=1)
        print("printed", file=sys.stderr)
        logger.info("last")
    lines = capsys.readouterr().err.splitlines()
    assert (json.loads(lines[0])["event"], lines[1], json.loads(lines[-1])["event"]) == ("first", "printed", "last")
    assert writer.num_dropped == 0


def test_a_field_that_cannot_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """The code that logs it goes on; the line says why there is none."""

    class Broken:
        def __repr__(self) -> str:
            raise ValueError("no repr")

    with background_logging("info", "json") as (logger, _):
        logger.info("odd", value=Broken())
        logger.info("next")
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.startswith("a log line could not be formatted")
    assert json.loads(last)["event"] == "next"


@pytest.mark.parametrize("form", ["json", "console"])
def test_dropped_lines_are_said(form: Form, capsys: pytest.CaptureFixture[str]) -> None:
    """A line of the log's own form, with their number."""
    with background_logging("info", form) as (logger, writer):
        writer._count_dropped(3)
        logger.info("next")
    notice, following = capsys.readouterr().err.splitlines()
    assert "next" in following
    if form == "json":
        line = json.loads(notice)
        assert (line["level"], line["event"], line["number"]) == ("warning", "log_lines_dropped", 3)
        assert list(line)[:3] == list(json.loads(following))[:3]
    else:
        assert "log_lines_dropped" in notice
        assert "number=3" in notice


def test_a_descriptor_that_does_not_block() -> None:
    """Another process may have made the shared descriptor non-blocking: a full pipe is waited for all the same."""
    source, sink = os.pipe()
    os.set_blocking(sink, False)
    data = b"x" * 2**20  # more than a pipe holds
    with open(sink, "w") as out, open(source, "rb") as pipe:
        received = threading.Thread(target=lambda: read.append(pipe.read(len(data))))
        read: list[bytes] = []
        write, rest = unbuffered(out), memoryview(data)
        received.start()
        while rest:
            rest = rest[write(rest) :]
        received.join()
    assert read == [data]
