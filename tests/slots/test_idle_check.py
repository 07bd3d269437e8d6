"""The integrity check in idle moments: when it runs, and that nothing it finds ends the server."""

import asyncio
from collections.abc import Callable

import pytest

from svc.slots.idle_check import IdleCheck


class Checked:
    """A check with a clock and timers set by hand. `delays` are those asked for; `fire` lets the last one run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.now_s = 1000.0
        self.delays: list[float] = []
        self.reports: list[Exception | None] = []
        self._due: list[tuple[asyncio.Handle, Callable[[], None]]] = []
        self._error = error
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", self._call_later)
        self.check = IdleCheck(self._run, self.reports.append, lambda: self.now_s, idle_s=60, every_s=600)

    def _call_later(self, delay_s: float, run: Callable[[], None]) -> asyncio.Handle:
        handle = asyncio.Handle(run, (), asyncio.get_running_loop())
        self.delays.append(delay_s)
        self._due.append((handle, run))
        return handle

    def _run(self) -> None:
        if self._error is not None:
            raise self._error

    def fire(self) -> None:
        """Time passes until the last timer is due."""
        handle, run = self._due.pop()
        self.now_s += self.delays[-1]
        if not handle.cancelled():
            run()


async def test_only_idleness_after_work_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before the first request, once after a minute without requests, and not again without work."""
    checked = Checked(monkeypatch)
    checked.check.idle()
    assert checked.delays == []
    checked.check.busy()
    checked.check.idle()
    checked.check.idle()
    assert checked.delays == [60]
    checked.fire()
    checked.check.idle()
    assert (checked.delays, checked.reports) == ([60], [None])


async def test_a_request_puts_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer that was set is cancelled."""
    checked = Checked(monkeypatch)
    checked.check.busy()
    checked.check.idle()
    checked.check.busy()
    checked.fire()
    assert checked.reports == []
    checked.check.idle()
    checked.fire()
    assert checked.reports == [None]


async def test_checks_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a server is idle, two checks are ten minutes apart."""
    checked = Checked(monkeypatch)
    checked.check.busy()
    checked.check.idle()
    checked.fire()
    checked.check.busy()
    checked.now_s += 100
    checked.check.idle()
    assert checked.delays == [60, 500]


@pytest.mark.parametrize("error", [AssertionError("page 3 is lost"), KeyError(3)])
async def test_what_it_finds_is_reported(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """An inconsistency, or what the check itself ran into; the next check comes as usual."""
    checked = Checked(monkeypatch, error)
    for _ in range(2):
        checked.check.busy()
        checked.check.idle()
        checked.fire()
    assert checked.reports == [error, error]
