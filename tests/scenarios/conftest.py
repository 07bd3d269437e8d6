"""The recompute ratio of each scenario: tokens evaluated over the least a perfect hybrid cache would evaluate."""

from collections.abc import Callable, Iterator

import pytest

from tests.scenarios.server import Reply, Server

_RATIOS = pytest.StashKey[list[tuple[str, int, int]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_RATIOS] = []


@pytest.fixture
def ratio(request: pytest.FixtureRequest) -> Iterator[Callable[[Reply, int], None]]:
    """`ratio(reply, least)`: notes what a reply evaluated and the least that was possible."""
    rows = request.config.stash[_RATIOS]

    def note(reply: Reply, least: int) -> None:
        rows.append((request.node.name, reply.evaluated, least))

    return note


@pytest.fixture
def served(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model of all servers of a test."""
    monkeypatch.setattr(Server, "model", request.param)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash[_RATIOS]
    if not rows:
        return
    terminalreporter.section("recompute ratio (1.00 is a perfect hybrid cache)")
    for name in dict.fromkeys(name for name, _, _ in rows):
        evaluated = sum(row[1] for row in rows if row[0] == name)
        least = sum(row[2] for row in rows if row[0] == name)
        terminalreporter.write_line(f"{name:60} {evaluated:8} / {least:8} = {evaluated / max(least, 1):.2f}")
    total = sum(row[1] for row in rows) / max(sum(row[2] for row in rows), 1)
    terminalreporter.write_line(f"{'all':60} {total:.2f}")
