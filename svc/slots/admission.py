"""Admission: which waiting sequences get slots, and whether they find pages without preempting others."""

from collections.abc import Collection, Iterator
from collections.abc import Sequence as Items

from svc.memory.sequence_cache import COLD, ResumePoint, SequenceCache
from svc.slots.batch import StepPlan
from svc.slots.joins import Joins, any_helps, find_join
from svc.slots.request import Sequence
from svc.slots.slot import Closing, Slot
from svc.slots.usage_report import note_admission
from svc.slots.waiting_queue import WaitingQueue

FIRST_ANSWER_TOKENS = 64.0  # expected before any answer has ended
LEARNING_RATE = 0.25  # weight of the newest answer in the moving average
MAX_LOOK_AHEAD = 32  # waiting sequences tried behind one that does not fit
MAX_OVERTAKEN = 16  # sequences that may pass one that does not fit: then nobody passes until it is in


class PageForecast:
    """How many pages slots will still take: what they are sure to need, and how far their answers are expected to grow.

    Owner: the scheduler. Answers are unknown in length: one that is shorter than the recent average is expected to reach it, one
    that is longer to double.
    """

    def __init__(self, cache: SequenceCache, context_tokens: int) -> None:
        self._cache = cache
        self._context_tokens = context_tokens
        self._answer_tokens = FIRST_ANSWER_TOKENS
        # Of all slots together, while one step is planned.
        self._most_promised: int | None = None  # one page more each at most
        self._expected: int | None = None  # what `fits` keeps for them

    def learn(self, generated: int) -> None:
        """An answer has ended by itself."""
        self._answer_tokens += LEARNING_RATE * (generated - self._answer_tokens)

    def promised(self, slot: Slot) -> int:
        """Pages that a slot still takes until all its known tokens are evaluated, at most."""
        return self._cache.num_wanted_pages(slot.lease, slot.sequence.buffer.length + slot.sampling)

    def growth(self, sequence: Sequence) -> int:
        """Pages that its answer is expected to take beyond its known tokens."""
        known, generated = sequence.buffer.length, sequence.generated
        expected = max(int(self._answer_tokens) - generated, generated, 1)
        limit = min(sequence.request.max_tokens - generated, self._context_tokens - known)
        return self._pages_for(known + max(min(expected, limit), 0)) - self._pages_for(known)

    def fits(self, sequence: Sequence, resume: ResumePoint, slots: Collection[Slot]) -> bool:
        """Whether its tokens find pages beside what all slots need and are expected to need."""
        if not slots:
            return True
        needed = self._pages_for(len(sequence.tokens) + 1) - resume.position // self._cache.plan.layout.page_tokens
        needed += self.growth(sequence)
        if self._expected is None:
            self._expected = sum(self.promised(slot) + self.growth(slot.sequence) for slot in slots)
        spare = self._cache.num_available_pages() - needed - self._expected
        return spare >= self._pages_for(resume.position) or spare >= self._cache.num_pages_to_pin(sequence.buffer, resume)

    def may_take(self, slot: Slot, wanted: int, slots: Collection[Slot]) -> bool:
        """Whether it may take that many pages: they are available, and no others are sure to need them."""
        available = self._cache.num_available_pages()
        if self._most_promised is None:
            self._most_promised = sum(map(self.promised, slots)) + len(slots)
        return wanted <= available - self._most_promised or wanted <= available - self._kept_from(slot, slots)

    def forget_total(self) -> None:
        """To be called when a step is planned, and when slots were added: what is known of all slots is counted anew."""
        self._most_promised = self._expected = None

    def _kept_from(self, slot: Slot, slots: Collection[Slot]) -> int:
        """Pages that `slot` may not take although they are available: others are sure to need them.

        A protected slot (one that has not yet come further than before its last preemption) keeps its promise against all, the
        others against slots of lower rank. So each protected slot finds its pages, and no sequence is preempted twice at one
        position.
        """
        others = [other for other in slots if other is not slot]
        if slot.protected:
            return sum(self.promised(other) for other in others if other.protected)
        return sum(self.promised(other) for other in others if other.protected or other.rank < slot.rank)

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self._cache.plan.layout.page_tokens)


class Admission:
    """Gives slots to waiting sequences. Works on the scheduler's queue and joins."""

    def __init__(self, cache: SequenceCache, waiting: WaitingQueue, joins: Joins, forecast: PageForecast) -> None:
        self._cache = cache
        self._waiting = waiting
        self._joins = joins
        self._forecast = forecast
        self._hybrid = cache.plan.layout.hybrid
        self._captures_per_prompt = max(4, cache.plan.num_snapshots // 2)

    def admit(self, slots: list[Slot], closing: Items[Closing], under_way: Items[StepPlan], now: float) -> None:
        """Adds slots in the order of the queue while rows and pages last.

        Sequences that wait for a state to be published hold nobody up. One that does not fit is overtaken by those behind, within a
        bound.
        """
        blocked: list[Sequence] = []
        for sequence, resume in self._candidates(slots, closing, under_way):
            alone = not (slots or closing)
            fits = alone or self._forecast.fits(sequence, resume, slots)
            slot = self._open(sequence, resume, now, alone=alone) if fits else None
            if slot is None:
                blocked.append(sequence)
            else:
                slots.append(slot)
                slots.sort(key=lambda s: s.rank)
                self._forecast.forget_total()
                for other in blocked:
                    other.overtaken += 1
            if len(blocked) > MAX_LOOK_AHEAD or any(other.overtaken >= MAX_OVERTAKEN for other in blocked):
                return

    def _candidates(
        self, slots: list[Slot], closing: Items[Closing], under_way: Items[StepPlan]
    ) -> Iterator[tuple[Sequence, ResumePoint]]:
        """Waiting sequences in turn with their resume points, without those that a coming state will carry further."""
        if len(slots) + len(closing) >= self._cache.plan.num_rows:
            return
        coming = [state for step in under_way for state in step.states()]
        coming += [(slot.sequence, slot.planned) for slot in slots if slot.leaving]
        saved = [(each.sequence, each.position) for each in closing]
        for sequence in self._waiting.in_turn(self._joins.aside):
            if len(slots) + len(closing) >= self._cache.plan.num_rows:
                return
            resume = self._resume_point(sequence)
            if any_helps(coming, sequence, resume, hybrid=self._hybrid):
                continue
            join = find_join(sequence, resume, slots)
            if join is not None:
                self._joins.wait(sequence, *join)
            elif not any_helps(saved, sequence, resume, hybrid=self._hybrid):
                yield sequence, resume

    def _resume_point(self, sequence: Sequence) -> ResumePoint:
        """Matched again only where the tree has changed since."""
        if not sequence.request.use_cache and not sequence.generated:
            return COLD
        if sequence.resume is None or sequence.resume.version != self._cache.version:
            sequence.resume = self._cache.match(sequence.tokens, sequence.resume, sequence.request.space)
        return sequence.resume

    def _open(self, sequence: Sequence, resume: ResumePoint, now: float, *, alone: bool) -> Slot | None:
        lease = self._cache.open(sequence.buffer, resume, now, sequence.request.owner, sequence.request.space)
        if lease is None and alone:
            lease, resume = self._joins.open_alone(sequence, resume, self._waiting, now)
        if lease is None:
            return None
        join = sequence.join
        helped = join is not None and join.pinned is not None and lease.start >= join.position
        self._waiting.take(sequence, self._joins.aside)
        self._joins.forget(sequence)
        note_admission(sequence, resume, lease, now, join if helped else None)
        sequence.lossy |= lease.start > 0 and self._cache.plan.layout.lossy_snapshots
        sequence.resume, sequence.overtaken = None, 0
        return Slot.of(sequence, lease, resume, self._captures_per_prompt, hybrid=self._hybrid)
