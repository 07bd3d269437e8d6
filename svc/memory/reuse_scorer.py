"""The scores that decide what is kept: the work that a use would save, times the uses expected per second of keeping.

    score = work(shallower .. position) * rate(class, age) * recency(age)       of a snapshot: all have the same size in bytes
    recency(age) = (RECENT_S / (RECENT_S + age)) ^ RECENCY

and for pages the same, by the number of pages freed. The rate is learned (reuse.py). It is coarse, and at first a guess; of what is
as good by the rate the oldest goes first: that is what `recency` is for.

A request may have wanted what was evicted: its text is remembered for a while as a digest, and counts as used when it is asked for
again. Without that nothing would be learned of a load that never fits. When a snapshot goes, the one that its text resumes at from
then on inherits its expected use, so that the rest of a conversation that has lost its end is worth no less for that.

Owner of the entries' classes and ages.
"""

from dataclasses import dataclass

import numpy as np

from svc.memory.placement import WantedKind
from svc.memory.prefix_digest import PrefixDigests
from svc.memory.prefix_tree import Node
from svc.memory.reuse import Past, ReuseStatistics, class_of, count_ages, past_of, with_past
from svc.memory.scoring import Work
from svc.memory.tokens import TokenArray

RECENT_S = 10.0
RECENCY = 0.25
REMEMBERED = 4  # lost snapshots for each that there is place for
MAX_REMEMBERED = 8192
MAX_PASSED = 16  # snapshots above a resume point that are told of it
NO_USE = class_of(WantedKind.ANSWER_END)  # of a leaf without a snapshot (attention-only)


@dataclass(slots=True)
class Entry:
    """A published snapshot."""

    reuse_class: int
    since: float  # its last use, or its capture
    position: int
    digest: int
    inherited: tuple[int, float] | None = None  # class and last use of a lost one, whose text resumes here


class LostSnapshots:
    """The last `size` snapshots lost, as arrays: each request looks at all of them."""

    def __init__(self, size: int) -> None:
        self.classes = np.zeros(size, np.int64)
        self.since = np.full(size, np.nan)  # NaN: nothing there
        self.positions = np.zeros(size, np.int64)
        self.digests = np.zeros(size, np.uint64)
        self._next = 0

    def add(self, entry: Entry) -> tuple[int, float] | None:
        """Remembers one; returns the class and last use of the one forgotten for it."""
        index, self._next = self._next, (self._next + 1) % len(self.since)
        forgotten = None if np.isnan(self.since[index]) else (int(self.classes[index]), float(self.since[index]))
        self.classes[index], self.since[index] = entry.reuse_class, entry.since
        self.positions[index], self.digests[index] = entry.position, entry.digest
        return forgotten

    def find(self, position: int, digest: int) -> int | None:
        """That of exactly this text."""
        found = np.flatnonzero((self.digests == np.uint64(digest)) & (self.positions == position))
        return int(found[0]) if len(found) else None

    def between(self, start: int, end: int) -> "np.ndarray[tuple[int], np.dtype[np.intp]]":
        """Those at positions behind `start`, up to `end`."""
        return np.flatnonzero((self.positions > start) & (self.positions <= end))

    def forget(self, index: int) -> None:
        self.since[index], self.positions[index], self.digests[index] = np.nan, 0, 0


class ReuseScorer:
    """For one cache with so many snapshots, in all tiers."""

    def __init__(self, num_snapshots: int, work: Work) -> None:
        self.statistics = ReuseStatistics()
        self._work = work
        self._entries: dict[int, Entry] = {}  # by snapshot
        self._lost = LostSnapshots(min(REMEMBERED * num_snapshots, MAX_REMEMBERED))
        self._digests = PrefixDigests()

    # -- scores ---------------------------------------------------------------------------------------------------------------
    def capture(self, tokens: TokenArray, position: int, shallower: int, kind: WantedKind, now: float) -> float | None:
        return self._work.between(shallower, position) * self.statistics.rate(class_of(kind), 0.0)

    def snapshot(self, node: Node, shallower: int, now: float) -> float:
        return self._work.between(shallower, node.end) * self._expected(node, now)

    def pages(self, node: Node, num_freed: int, shallower: int, now: float) -> float:
        return self._work.between(shallower, node.end) * self._expected(node, now) / max(num_freed, 1)

    def _expected(self, node: Node, now: float) -> float:
        if node.snapshot_id is None:
            return self._expected_of(NO_USE, now - node.last_use)
        entry = self._entries[node.snapshot_id]
        own = self._expected_of(entry.reuse_class, now - entry.since)
        return own if entry.inherited is None else max(own, self._expected_of(entry.inherited[0], now - entry.inherited[1]))

    def _expected_of(self, reuse_class: int, age_s: float) -> float:
        """Uses per second."""
        recency: float = (RECENT_S / (RECENT_S + max(age_s, 0.0))) ** RECENCY
        return self.statistics.rate(reuse_class, age_s) * recency

    # -- what becomes of snapshots --------------------------------------------------------------------------------------------
    def published(self, node: Node, tokens: TokenArray, kind: WantedKind, now: float) -> None:
        assert node.snapshot_id is not None
        above = self._above(node)
        start, before = (0, 0) if above is None else (above.position, above.digest)
        digest = int(self._digests.of(tokens, start, before)[-1])
        lost = self._lost.find(len(tokens), digest)
        past = Past.NEW
        if lost is not None:
            past = past_of(int(self._lost.classes[lost]))
            self._lost.forget(lost)
        if kind is WantedKind.CANCELLED and above is not None and above.reuse_class == class_of(WantedKind.PROMPT_END):
            above.reuse_class = class_of(WantedKind.CANCELLED)  # an answer that was stopped may be asked for again
        self._entries[node.snapshot_id] = Entry(class_of(kind, past), now, len(tokens), digest)

    def opened(self, node: Node | None, tokens: TokenArray, position: int, now: float) -> None:
        entry = None if node is None or node.snapshot_id is None else self._entries[node.snapshot_id]
        lost = self._deepest_lost(tokens, position, 0 if entry is None else entry.digest)
        if lost is not None:  # that is what it would have used
            reuse_class = int(self._lost.classes[lost])
            self.statistics.use(reuse_class, now - float(self._lost.since[lost]))
            self._lost.classes[lost], self._lost.since[lost] = with_past(reuse_class, Past.USED), now
        elif entry is not None:
            self.statistics.use(entry.reuse_class, now - entry.since)
            entry.reuse_class = with_past(entry.reuse_class, Past.USED)
        if entry is not None and node is not None:
            entry.since, entry.inherited = now, None
            self._pass(node, now)
        if self.statistics.due:
            self._refresh(now)

    def lost(self, snapshot_id: int, heir: int | None, now: float | None) -> None:
        entry = self._entries.pop(snapshot_id)
        if now is None:
            return
        if heir is not None:
            above = self._entries[heir]
            wishes = [(entry.reuse_class, entry.since), entry.inherited, above.inherited]
            above.inherited = max(filter(None, wishes), key=lambda wish: self._expected_of(wish[0], now - wish[1]))
        forgotten = self._lost.add(entry)
        if forgotten is not None:
            self.statistics.end(forgotten[0], now - forgotten[1])

    # -- parts ----------------------------------------------------------------------------------------------------------------
    def _pass(self, node: Node, now: float) -> None:
        """A request has passed the snapshots above `node`: the nearest are told."""
        above, told = node.parent, 0
        while above is not None and told < MAX_PASSED:
            if above.snapshot_id is not None:
                entry, told = self._entries[above.snapshot_id], told + 1
                self.statistics.end(entry.reuse_class, now - entry.since)
                entry.reuse_class, entry.since = with_past(entry.reuse_class, Past.PASSED), now
            above = above.parent

    def _above(self, node: Node) -> Entry | None:
        """That of the next snapshot above."""
        above = node.parent
        while above is not None:
            if above.snapshot_id is not None and above.snapshot_id in self._entries:
                return self._entries[above.snapshot_id]
            above = above.parent
        return None

    def _deepest_lost(self, tokens: TokenArray, position: int, digest: int) -> int | None:
        """The deepest lost snapshot at which tokens[:position], with that digest, and what follows could have resumed."""
        candidates = self._lost.between(position, len(tokens))
        if not len(candidates):
            return None
        digests = self._digests.of(tokens, position, digest)
        positions = self._lost.positions[candidates]
        found = candidates[digests[positions - position - 1] == self._lost.digests[candidates]]
        return int(found[self._lost.positions[found].argmax()]) if len(found) else None

    def _refresh(self, now: float) -> None:
        remembered = np.flatnonzero(~np.isnan(self._lost.since))
        entries = list(self._entries.values())
        classes = np.concatenate([self._lost.classes[remembered], np.array([e.reuse_class for e in entries], np.int64)])
        since = np.concatenate([self._lost.since[remembered], np.array([e.since for e in entries], np.float64)])
        self.statistics.refresh(count_ages(classes, np.maximum(now - since, 0.0)))
