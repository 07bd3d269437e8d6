"""Joining: a request waits for a state that another one, ahead on the same prefix, is about to capture."""

from collections.abc import Iterable

from svc.memory.placement import Wanted, WantedKind
from svc.memory.sequence_cache import COLD, Lease, ResumePoint, SequenceCache
from svc.slots.operator_pins import OperatorPins
from svc.slots.request import JoinWait, Sequence
from svc.slots.slot import Slot

JOIN_MIN_TOKENS = 32  # waiting for a shorter common prefix saves less than it delays


def find_join(sequence: Sequence, resume: ResumePoint, slots: Iterable[Slot]) -> tuple[Slot, int] | None:
    """The slot whose coming capture saves `sequence` most, and its position; None when nobody ahead helps.

    The join point is the end of the common prefix, and must lie ahead of what is planned for the leader: a state that has been
    passed is gone.
    """
    if not sequence.request.use_cache or sequence.generated:
        return None
    best: tuple[Slot, int] | None = None
    for slot in slots:
        if not slot.active:
            continue
        point = sequence.common_prefix(slot.sequence)
        if point <= max(slot.planned, resume.position, best[1] if best else 0, sequence.missed_join):
            continue
        if point - resume.position >= JOIN_MIN_TOKENS or point == sequence.num_prompt:
            best = (slot, point)
    return best


def any_helps(states: Iterable[tuple[Sequence, int]], sequence: Sequence, resume: ResumePoint, *, hybrid: bool) -> bool:
    """Whether one of the coming states (its sequence, tokens before it) will carry `sequence` further than its resume point: then
    it should wait for that."""
    return any(_helps(sequence, resume, other, position, hybrid=hybrid) for other, position in states)


def _helps(sequence: Sequence, resume: ResumePoint, other: Sequence, position: int, *, hybrid: bool) -> bool:
    """The last token before `position` of `other` may not be known yet; then it is taken for the same."""
    if not sequence.request.use_cache or position <= resume.position:
        return False
    length = min(position, len(sequence.tokens), len(other.tokens))
    common = min(sequence.common_tokens(other, length), length)
    if hybrid:
        return position <= len(sequence.tokens) and common == length
    reach = common if common == position else min(common, len(sequence.tokens) - 1)  # only a snapshot spares the last token too
    return resume.position < reach


class Joins:
    """Waiting requests and their leaders. Owner: the scheduler. A waiting request has no slot and no page, only a pin on its
    capture."""

    def __init__(self, cache: SequenceCache, pins: OperatorPins | None = None) -> None:
        self.pins = pins or OperatorPins(cache)
        self._cache = cache
        self._waiting: dict[Sequence, None] = {}  # in order

    def __len__(self) -> int:
        """Number of requests that wait."""
        return len(self._waiting)

    def wait(self, sequence: Sequence, leader: Slot, position: int) -> None:
        """Lets `sequence` wait until `leader` has captured at `position`."""
        self.forget(sequence)  # it may have waited for a shorter prefix before
        sequence.join = JoinWait(leader.sequence, position)
        leader.want(Wanted(position, WantedKind.JOIN))
        self._waiting[sequence] = None

    def waiting(self, sequence: Sequence) -> bool:
        """Whether its leader is still on the way."""
        return sequence in self._waiting

    def aside(self, sequence: Sequence) -> bool:
        """Whether it needs no slot yet: it waits for its leader, or for what comes from the disk."""
        return sequence.fetching or sequence in self._waiting

    def advanced(self, leader: Sequence, position: int) -> None:
        """The leader's state up to `position` is committed: requests that waited for no more go on. Their capture is pinned; where
        it was skipped they do not wait for that prefix again, or each would evaluate it alone, one after the other."""
        for sequence in self._followers(leader):
            assert sequence.join is not None
            if sequence.join.position > position:
                continue
            del self._waiting[sequence]
            sequence.join.pinned = self._cache.pin_at(sequence.tokens, sequence.join.position, sequence.request.space)
            if sequence.join.pinned is None:
                sequence.missed_join = sequence.join.position

    def fetched(self, sequence: Sequence, position: int) -> None:
        """A state of its prompt has come from the disk: it is pinned until the sequence has resumed."""
        self.forget(sequence)
        pinned = None if sequence.finished else self._cache.pin_at(sequence.tokens, position)
        if pinned is not None:
            sequence.join = JoinWait(None, position, pinned)

    def left(self, leader: Sequence) -> None:
        """The leader is gone (ended, preempted, failed): its followers go on from the deepest snapshot there is."""
        for sequence in self._followers(leader):
            sequence.join = None
            del self._waiting[sequence]

    def forget(self, sequence: Sequence) -> None:
        """A waiting request has resumed, or is gone: its pin is given back."""
        self._waiting.pop(sequence, None)
        if sequence.join is not None and sequence.join.pinned is not None:
            self._cache.unpin(sequence.join.pinned)
        sequence.join = None

    def open_alone(
        self, sequence: Sequence, resume: ResumePoint, waiting: Iterable[Sequence], now: float
    ) -> tuple[Lease | None, ResumePoint]:
        """Opens with all slots empty, where the device has no places for the pages that must come from the host: pins are in the
        way, or what comes from the disk. So without them, or else from nothing. Returns the resume point used too."""
        released = self._cache.transfers.release_all() | self.release_pins(waiting)
        origin = sequence.request.owner, sequence.request.space
        lease = self._cache.open(sequence.buffer, resume, now, *origin) if released else None
        return (lease, resume) if lease is not None else (self._cache.open(sequence.buffer, COLD, now, *origin), COLD)

    def release_pins(self, sequences: Iterable[Sequence]) -> bool:
        """Gives back the pins of requests that have not resumed yet (memory is short). Whether there were any."""
        pinned = [s for s in sequences if s.join is not None and s.join.pinned is not None]
        for sequence in pinned:
            self.forget(sequence)
        return bool(pinned)

    def give_up_pins(self, sequences: Iterable[Sequence]) -> bool:
        """A request finds no page: gives back the pins of those that have not resumed yet, or else one of the operator's."""
        return self.release_pins(sequences) or self.pins.give_up()

    def forget_pins(self, sequences: Iterable[Sequence]) -> None:
        """Nothing that is known is kept."""
        self.release_pins(sequences)
        self.pins.release_all()

    def _followers(self, leader: Sequence) -> list[Sequence]:
        return [sequence for sequence in self._waiting if sequence.join and sequence.join.leader is leader]
