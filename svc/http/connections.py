"""How many clients may be connected at once, and which of them goes when there are more."""

import enum
import os
import resource
from collections.abc import Callable
from typing import Protocol

WARN_EVERY_S = 60.0
SPARE_DESCRIPTORS = 16  # for files, pipes and the loop itself


def affordable(connections: int) -> int:
    """Connections that there may be, of those wanted: each is a file descriptor. Raises the soft limit as far as the hard one."""
    others = len(os.listdir("/proc/self/fd")) + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised, count = fitted(connections, others, soft, hard)
    if raised != soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return count


def fitted(connections: int, others: int, soft: int, hard: int) -> tuple[int, int]:
    """(soft limit, connections that it allows), where `others` are descriptors for something else."""
    wanted, unlimited = connections + others, resource.RLIM_INFINITY
    if soft == unlimited or soft >= wanted:
        return soft, connections
    raised = wanted if hard == unlimited else min(wanted, hard)
    return raised, max(1, raised - others)


def shared_out(possible: int, wanted: int, most_reserved: int) -> tuple[int, int]:
    """(connections for all requests, more for probes and metrics) of those that are possible; a quarter is reserved at most."""
    reserve = min(most_reserved, possible // 4)
    return min(wanted, max(1, possible - reserve)), reserve


class Client(Protocol):
    """What is looked at of a connection."""

    idle_since_s: float | None  # None while a request is being answered

    def drop(self) -> None:
        """Closes it at once."""


class Entry(enum.Enum):
    """What a connection is let in for."""

    OPEN = "open"
    PROBES = "probes"  # only what needs no key: probes and metrics
    REFUSED = "refused"


class Connections:
    """Owner of the set of open connections, which are at most `limit` and, for probes and metrics, `reserve` more."""

    def __init__(self, limit: int, reserve: int, on_full: Callable[[int], None]) -> None:
        """`on_full` is told the number of connections when there are too many, once a minute at most."""
        self.limit = limit
        self.num_dropped = 0
        self.num_refused = 0
        self._reserve = reserve
        self._on_full = on_full
        self._open: dict[Client, None] = {}
        self._quiet_until_s = 0.0

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, newcomer: Client, now_s: float) -> Entry:
        """A newcomer takes the place of the connection that has been idle for longest; where all are busy, one of the reserve."""
        self._open[newcomer] = None
        if len(self._open) <= self.limit:
            return Entry.OPEN
        if now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + WARN_EVERY_S
            self._on_full(len(self._open))
        self._drop_idle(newcomer)
        if len(self._open) <= self.limit:
            return Entry.OPEN
        if len(self._open) <= self.limit + self._reserve:
            return Entry.PROBES
        self.num_refused += 1
        return Entry.REFUSED

    def leave(self, client: Client) -> None:
        self._open.pop(client, None)

    def _drop_idle(self, newcomer: Client) -> None:
        others = (client for client in self._open if client is not newcomer)
        idle = [(client.idle_since_s, client) for client in others if client.idle_since_s is not None]
        if idle:
            _, longest = min(idle, key=lambda pair: pair[0])
            self.num_dropped += 1
            self.leave(longest)
            longest.drop()
