"""llama.cpp's own server tests against Headrace: `python -m tests.peer_suite` (or `make test-peer`).

The tests come from the package registry into a cache; nothing of them is here but the names of those that do not pass, with
reasons (`not_passing.tsv`). Exit code 1 when a test ends otherwise than that file says.
"""

import argparse
import csv
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.bench.peers.build import LLAMA, unpacked
from tests.peer_suite.plugin import OUTCOMES

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).parent / "not_passing.tsv"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "headrace" / "peers"
TEST_TIMEOUT_S = 120
PASSES, NOT_OURS, FAILS = "passes", "n/a", "fails"


@dataclass(frozen=True, slots=True)
class Row:
    """Tests that do not pass: a file, a function with all its parameters, or one test."""

    tests: str
    verdict: str  # NOT_OURS: it asks for what Headrace is not, or for what its model says; FAILS: for what it could do
    reason: str

    def covers(self, test: str) -> bool:
        return test == self.tests or test.startswith((self.tests + "::", self.tests + "["))

    @property
    def is_file(self) -> bool:
        return "::" not in self.tests


def rows() -> list[Row]:
    with TABLE.open(newline="") as file:
        return [Row(*line) for line in csv.reader(file, delimiter="\t") if line and not line[0].startswith("#")]


def row_of(test: str, table: Iterable[Row]) -> Row | None:
    """The most particular one."""
    return max((row for row in table if row.covers(test)), key=lambda row: len(row.tests), default=None)


def run(folder: Path, arguments: list[str], table: list[Row]) -> list[dict[str, str]]:
    """The outcomes of the tests, in order. Their own output goes to a log beside them."""
    server = folder / "headrace-as-llama-server"
    server.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m tests.peer_suite.shim "$@"\n')
    server.chmod(0o755)
    outcomes, log = folder / "outcomes.jsonl", folder / "pytest.log"
    outcomes.write_text("")
    environ = os.environ | {
        OUTCOMES: str(outcomes), "LLAMA_SERVER_BIN_PATH": str(server), "PORT": str(_free_port()), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    command = [sys.executable, "-m", "pytest", "-p", "tests.peer_suite.plugin", "-m", "not slow", f"--timeout={TEST_TIMEOUT_S}"]
    skipped = [f"--ignore={row.tests}" for row in table if row.is_file] if not arguments else []
    with log.open("w") as lines:
        subprocess.run(
            [*command, *skipped, *(arguments or ["unit"])], cwd=folder, env=environ, stdout=lines, stderr=lines, check=False
        )
    print(f"log: {log}", file=sys.stderr)
    return [json.loads(line) for line in outcomes.read_text().splitlines()]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def report(outcomes: list[dict[str, str]], table: list[Row]) -> bool:
    """Prints each test and the totals; whether all is as the table says."""
    counts = dict.fromkeys((PASSES, NOT_OURS, FAILS), 0)
    as_expected = True
    covered: dict[Row, set[str]] = {}
    for outcome in outcomes:
        row = row_of(outcome["id"], table)
        passed = outcome["outcome"] == "passed"
        verdict = PASSES if passed else row.verdict if row else FAILS
        counts[verdict] += 1
        if row is not None:
            covered.setdefault(row, set()).add(verdict)
        reason = "" if passed else row.reason if row else f"UNEXPECTED: {outcome['message']}"
        as_expected &= passed or row is not None
        print(f"{verdict:6}  {outcome['id']}" + (f": {reason}" if reason else ""))
    for row in table:
        if row.is_file and row not in covered:
            print(f"{NOT_OURS:6}  {row.tests}, not run: {row.reason}")
        elif covered.get(row) == {PASSES}:
            as_expected = False
            print(f"UNEXPECTED: all of {row.tests} passes, and {TABLE.name} says otherwise")
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()) + f" of {len(outcomes)} tests run")
    return as_expected


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.peer_suite", description=__doc__)
    parser.add_argument(
        "tests", nargs="*", help="files or tests such as unit/test_basic.py; default: all but files that do not apply"
    )
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"folder for llama.cpp's sources ({CACHE})")
    options = parser.parse_args()
    home = options.cache / LLAMA.package
    home.mkdir(parents=True, exist_ok=True)
    table = rows()
    outcomes = run(unpacked(LLAMA, home) / "tools" / "server" / "tests", options.tests, table)
    return 0 if report(outcomes, table) else 1


if __name__ == "__main__":
    sys.exit(main())
