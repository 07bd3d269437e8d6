"""Who waits, in what order, and for whom: the waiting queue and joining on a prefix that another sequence is evaluating."""

import bisect
from collections.abc import Collection, Iterable, Iterator

from svc.errors import QueueFullError
from svc.memory.placement import Wanted, WantedKind
from svc.memory.sequence_cache import COLD, Lease, ResumePoint, SequenceCache
from svc.slots.request import JoinWait, Sequence
from svc.slots.slot import Slot

JOIN_MIN_TOKENS = 32  # waiting for a shorter common prefix saves less than it delays


class WaitingQueue:
    """Sequences without a slot, best rank first. Bounded for newcomers; preempted ones always come back. Owner: the scheduler."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(list(self._sequences))

    @property
    def bound(self) -> int:
        return self._bound

    def check_room(self, free_slots: int, newcomers: int = 1) -> None:
        """Raises QueueFullError when newcomers would make more wait than the bound, those that a free slot awaits not counted."""
        if len(self._sequences) + newcomers > self._bound + free_slots:
            raise QueueFullError(
                f"the queue is full: {len(self._sequences)} requests are waiting (max_queue={self._bound})", retry_after_s=2.0
            )

    def add(self, sequence: Sequence) -> None:
        bisect.insort(self._sequences, sequence, key=lambda s: s.rank)

    def remove(self, sequence: Sequence) -> None:
        self._sequences.remove(sequence)


def find_join(sequence: Sequence, resume: ResumePoint, seated: Iterable[Slot]) -> tuple[Slot, int] | None:
    """The seated sequence whose coming capture saves `sequence` most, and where; None when nobody ahead helps.

    The join point is the end of the common prefix, and must lie ahead of what is planned for the leader: a state that has been
    passed is gone.
    """
    if not sequence.request.use_cache or sequence.generated:
        return None
    best: tuple[Slot, int] | None = None
    for slot in seated:
        if slot.leaving:
            continue
        point = sequence.common_prefix(slot.sequence)
        if point <= max(slot.planned, resume.position, best[1] if best else 0):
            continue
        if point - resume.position >= JOIN_MIN_TOKENS or point == sequence.num_prompt:
            best = (slot, point)
    return best


def fits(sequence: Sequence, resume: ResumePoint, seated: Collection[Slot], cache: SequenceCache, squeezed: bool) -> bool:
    """Whether its known tokens find pages without preempting anybody, those already seated counted with all of theirs.

    `squeezed`: somebody was preempted and nobody has ended since.
    """
    if not seated:
        return True
    page_tokens = cache.plan.layout.page_tokens
    promised = sum(-(-(slot.remaining + 1) // page_tokens) for slot in seated)
    needed = -(-(len(sequence.tokens) + 1) // page_tokens) - resume.position // page_tokens
    needed += cache.idle_pages(sequence.tokens, resume)
    # After a preemption only with room for all to grow, or the next one would follow at once and undo what has been computed.
    growth = max(2 * len(seated), cache.plan.num_pages // 10) if squeezed else 0
    return needed + promised + growth <= cache.free_pages_possible()


def any_helps(states: Iterable[tuple[Sequence, int]], sequence: Sequence, resume: ResumePoint, *, hybrid: bool) -> bool:
    """Whether one of the states (whose, after how many tokens), once published, carries `sequence` further than its resume point:
    then it is worth waiting for."""
    return any(_helps(sequence, resume, other, position, hybrid=hybrid) for other, position in states)


def _helps(sequence: Sequence, resume: ResumePoint, other: Sequence, position: int, *, hybrid: bool) -> bool:
    """The last token before `position` of `other` may not be known yet; then it is taken for the same."""
    if not sequence.request.use_cache or position <= resume.position:
        return False
    length = min(position, len(sequence.tokens), len(other.tokens))
    same = sequence.tokens[:length] == other.tokens[:length]
    if hybrid:
        return position <= len(sequence.tokens) and bool(same.all())
    common = length if same.all() else int(same.argmin())
    reach = common if common == position else min(common, len(sequence.tokens) - 1)  # only a snapshot spares the last token too
    return resume.position < reach


class Joins:
    """Waiters and their leaders. Owner: the scheduler. A waiter holds no slot and no page, only a pin on its capture."""

    def __init__(self, cache: SequenceCache) -> None:
        self._cache = cache
        self._waiters: list[Sequence] = []

    def wait(self, sequence: Sequence, leader: Slot, position: int) -> None:
        """Lets `sequence` wait until `leader` has captured at `position`."""
        self.forget(sequence)  # it may have waited for a shorter prefix before
        sequence.join = JoinWait(leader.sequence, position)
        sequence.joined = True
        leader.want(Wanted(position, WantedKind.JOIN))
        self._waiters.append(sequence)

    def waiting(self, sequence: Sequence) -> bool:
        """Whether its leader is still on the way."""
        return sequence in self._waiters

    def advanced(self, leader: Sequence, position: int) -> None:
        """The leader's state up to `position` is committed: those who waited for no more go on, their capture pinned if there."""
        for waiter in [w for w in self._waiters if w.join and w.join.leader is leader and w.join.position <= position]:
            assert waiter.join is not None
            self._waiters.remove(waiter)
            waiter.join.pinned = self._cache.pin_at(waiter.tokens, waiter.join.position)

    def left(self, leader: Sequence) -> None:
        """The leader is gone (ended, preempted, failed): its waiters go on from the deepest snapshot there is."""
        for waiter in [w for w in self._waiters if w.join and w.join.leader is leader]:
            waiter.join = None
            self._waiters.remove(waiter)

    def forget(self, sequence: Sequence) -> None:
        """A waiter has resumed, or is gone: its pin is given back."""
        if sequence in self._waiters:
            self._waiters.remove(sequence)
        if sequence.join is not None and sequence.join.pinned is not None:
            self._cache.unpin(sequence.join.pinned)
        sequence.join = None

    def open_alone(
        self, sequence: Sequence, resume: ResumePoint, waiting: Iterable[Sequence], now: float
    ) -> tuple[Lease | None, ResumePoint]:
        """With nobody seated, and no room on the device for what has to come from the host: pins are in the way. So without them,
        or else from nothing. Where it resumes is given back too."""
        lease = self._cache.open(sequence.tokens, resume, now) if self.release_pins(waiting) else None
        return (lease, resume) if lease is not None else (self._cache.open(sequence.tokens, COLD, now), COLD)

    def release_pins(self, sequences: Iterable[Sequence]) -> bool:
        """Gives back the pins of waiters that have not resumed yet (memory is short). Whether there were any."""
        pinned = [s for s in sequences if s.join is not None and s.join.pinned is not None]
        for sequence in pinned:
            self.forget(sequence)
        return bool(pinned)
