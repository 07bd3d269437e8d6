"""A pytest plugin for llama.cpp's tests: no downloads, and the outcome of each test as a line of JSON.

Loaded with `-p`, before the suite's own conftest.
"""

import json
import os
import sys
from types import ModuleType
from typing import Any

import pytest

OUTCOMES = "PEER_SUITE_OUTCOMES"  # the file that the lines are appended to


def _refuse(url: str, *_: Any, **__: Any) -> str:
    pytest.skip(f"would download {url}")


# The suite downloads with a module of this name, and imports it before any hook is called.
sys.modules["wget"] = ModuleType("wget")
sys.modules["wget"].download = _refuse  # type: ignore[attr-defined]


def pytest_collection_modifyitems() -> None:
    """The suite starts every kind of server once, to have its model downloaded."""
    import utils  # type: ignore[import-not-found]  # the suite's

    utils.ServerPreset.load_all = staticmethod(lambda: None)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call" and report.outcome == "passed":
        return
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash is not None else report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    line = {"id": report.nodeid, "outcome": report.outcome, "message": message.splitlines()[0][:200] if message else ""}
    with open(os.environ[OUTCOMES], "a") as file:
        print(json.dumps(line), file=file)
