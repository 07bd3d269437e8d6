"""When the engine has been idle for a while, the cache's integrity check runs once: a lost page is found before it is missed.

The check blocks the event loop, so it never runs beside requests, and only after work since the last one.
"""

import asyncio
from collections.abc import Callable

IDLE_S = 60.0  # of idleness before a check
EVERY_S = 600.0  # at least, between two checks


class IdleCheck:
    """Owner of the timer. `idle` and `busy` are called by the engine, on its loop."""

    def __init__(
        self,
        check: Callable[[], None],
        report: Callable[[Exception | None], None],
        clock: Callable[[], float],
        *,
        idle_s: float = IDLE_S,
        every_s: float = EVERY_S,
    ) -> None:
        """`check` raises if something does not add up; `report` gets the exception, or None. `clock`: seconds."""
        self._check = check
        self._report = report
        self._clock = clock
        self._idle_s = idle_s
        self._every_s = every_s
        self._next_s = clock()  # earliest time of the next check
        self._timer: asyncio.TimerHandle | None = None
        self._worked = False  # since the last check

    def idle(self) -> None:
        """Nothing runs or waits: a check is due after `idle_s` of that."""
        if self._worked and self._timer is None:
            delay_s = max(self._idle_s, self._next_s - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._run)

    def busy(self) -> None:
        """A request has arrived, or the engine stops."""
        self._worked = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        self._timer, self._worked = None, False
        try:
            self._check()
        except Exception as error:  # an AssertionError, or what the check ran into: no reason to stop serving
            self._report(error)
        else:
            self._report(None)
        self._next_s = self._clock() + self._every_s
