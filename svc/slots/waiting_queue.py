"""The waiting queue: sequences without a slot, in the order in which they are to get one."""

import bisect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, filterfalse, zip_longest

from svc.errors import QueueFullError
from svc.slots.request import Sequence

RETRY_S = 2.0


class WaitingQueue:
    """Sequences without a slot. Bounded for newcomers; preempted ones always come back. Owner: the scheduler.

    A higher priority goes first. Within one priority sequences that had a slot before come first, oldest first; then tenants take
    turns, one sequence each, so that a tenant with one sequence waits for at most one of each other tenant. A tenant's own are in
    the order of arrival.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._levels: dict[int, _Level] = {}  # by priority; none is empty
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Sequence]:
        return self.in_turn(lambda sequence: False)

    def places(self, queue_share: float) -> int:
        """How many may wait: of a tenant with that share."""
        return self._bound if queue_share >= 1.0 else min(self._bound, max(1, round(self._bound * queue_share)))

    def in_turn(self, aside: Callable[[Sequence], bool]) -> Iterator[Sequence]:
        """All but those that are set `aside`, which need no turn. The queue may change meanwhile."""
        levels = [self._levels[priority] for priority in sorted(self._levels, reverse=True)]
        for level in levels:
            yield from level.in_turn(aside)

    def check_capacity(self, free_slots: int, newcomers: int, tenant: str, queue_share: float) -> None:
        """Raises QueueFullError when newcomers of a tenant would make more wait than the bound, or more of the tenant's than its
        share of it. Those that a free slot awaits do not count."""
        if self._length + newcomers > self._bound + free_slots:
            message = f"the queue is full: {self._length} requests are waiting (max_queue={self._bound})"
            raise QueueFullError(message, retry_after_s=RETRY_S)
        if queue_share < 1.0:
            share, waiting = self.places(queue_share), self._num_of(tenant)
            if waiting + newcomers > share + free_slots:
                message = f"this key's share of the queue is full: {waiting} of its requests are waiting, {share} may"
                raise QueueFullError(message, retry_after_s=RETRY_S, code="queue_share")

    def _num_of(self, tenant: str) -> int:
        return sum(len(level.lines.get(tenant, ())) for level in self._levels.values())

    def add(self, sequence: Sequence) -> None:
        self._levels.setdefault(sequence.request.priority, _Level()).add(sequence)
        self._length += 1

    def remove(self, sequence: Sequence) -> None:
        """It has ended while it waited."""
        self._remove(sequence, ends_turn=False)

    def take(self, sequence: Sequence, aside: Callable[[Sequence], bool]) -> None:
        """It gets a slot: that was its tenant's turn, unless an earlier sequence of that tenant keeps waiting for it."""
        level = self._levels[sequence.request.priority]
        self._remove(sequence, ends_turn=level.is_next(sequence, aside))

    def _remove(self, sequence: Sequence, *, ends_turn: bool) -> None:
        level = self._levels[sequence.request.priority]
        level.remove(sequence, ends_turn=ends_turn)
        self._length -= 1
        if not (level.returned or level.lines):
            del self._levels[sequence.request.priority]


@dataclass(slots=True, eq=False)
class _Level:
    """The sequences of one priority."""

    returned: list[Sequence] = field(default_factory=list)  # they had a slot before; oldest first
    lines: dict[str, list[Sequence]] = field(default_factory=dict)  # by tenant, in the order of turns; each oldest first

    def in_turn(self, aside: Callable[[Sequence], bool]) -> Iterator[Sequence]:
        returned = filterfalse(aside, self.returned.copy())
        lines = [filterfalse(aside, line.copy()) for line in self.lines.values()]
        rounds: Iterable[Sequence | None] = lines[0] if len(lines) == 1 else chain.from_iterable(zip_longest(*lines))
        yield from returned
        yield from (sequence for sequence in rounds if sequence is not None)

    def is_next(self, sequence: Sequence, aside: Callable[[Sequence], bool]) -> bool:
        """Whether it is the one that its tenant's turn is for."""
        return sequence is next(filterfalse(aside, self._home(sequence)), None)

    def add(self, sequence: Sequence) -> None:
        if sequence.had_slot:
            bisect.insort(self.returned, sequence, key=lambda other: other.order)
        else:
            self.lines.setdefault(sequence.request.tenant, []).append(sequence)

    def remove(self, sequence: Sequence, *, ends_turn: bool) -> None:
        self._home(sequence).remove(sequence)
        if sequence.had_slot:
            return
        tenant = sequence.request.tenant
        line = self.lines[tenant]
        if ends_turn or not line:
            del self.lines[tenant]
        if ends_turn and line:
            self.lines[tenant] = line

    def _home(self, sequence: Sequence) -> list[Sequence]:
        return self.returned if sequence.had_slot else self.lines[sequence.request.tenant]
