"""What each step does: `plan()` decides, `commit()` accounts. Plain functions; time is an argument.

Life of a sequence: waiting -> seated (a `Slot`: prefill, then decode) -> ended, or back to waiting when preempted. An ended slot
whose state is worth keeping becomes a `Closing` until the next step has saved it.

Planning ahead: while a step runs, the next may be planned, with the tokens being sampled not known yet (PENDING), where every
answer is sure to go on or ends by a token id that the device knows (`_foreseen`). What the plans under way name is not given away
before their commit, but for slots of answers that a stop id ended: the step under way does nothing there.

Owner of all sequences, slots and closings; the engine calls it from the event loop only.
"""

from svc.compute.backend import Sampled, StepResult
from svc.memory.placement import next_generated_capture
from svc.memory.sequence_cache import COLD, ResumePoint, SequenceCache
from svc.memory.snapshot_ring import SnapshotRef
from svc.slots.accounts import answer_tokens, finished, note_admission
from svc.slots.admission import Joins, WaitingQueue, any_helps, find_join, fits
from svc.slots.batch import PlannedChunk, StepPlan, build_batch
from svc.slots.budget import ChunkBudget, share_prefill
from svc.slots.events import Event, Finished, FinishReason, TokenEvent
from svc.slots.request import Request, Sequence
from svc.slots.slot import Closing, Slot
from svc.slots.stats import Counters

Emitted = list[tuple[Sequence, Event]]


class Scheduler:
    """Continuous batching over one `SequenceCache`."""

    def __init__(
        self,
        cache: SequenceCache,
        *,
        context_tokens: int,
        budget: ChunkBudget,
        max_queue: int = 256,
        capture_every_tokens: int = 0,
        plan_ahead: bool = True,
    ) -> None:
        """`context_tokens`: most positions a sequence may evaluate. `capture_every_tokens`: 0 = no captures while generating.

        `plan_ahead`: whether `plan` may give a step while another is under way. No answer depends on it.
        """
        layout = cache.plan.layout
        # One page of slack: a copied partial page stands beside its source for a moment.
        self.context_tokens = min(context_tokens, cache.plan.kv_tokens - layout.page_tokens)
        self.counters = Counters()
        self._cache = cache
        self._budget = budget
        self._capture_every = capture_every_tokens
        self._captures_per_prompt = max(4, cache.plan.num_snapshots // 2)
        self._waiting = WaitingQueue(max_queue)
        self._joins = Joins(cache)
        self._slots: list[Slot] = []  # by rank
        self._closing: list[Closing] = []
        self._plan_ahead = plan_ahead
        self._under_way: list[StepPlan] = []  # in the order of planning
        self._short = False  # the step under way lacks somebody for whom there was no page
        self._squeezed = False  # somebody was preempted and nobody has ended since
        self._arrivals = 0

    # -- asked from outside -----------------------------------------------------------------------------------------------------
    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Slots of answers that have not ended."""
        return tuple(slot for slot in self._slots if not slot.leaving)

    @property
    def idle(self) -> bool:
        """Nothing seated, nothing waiting, nothing to save."""
        return not (self._slots or self._closing or len(self._waiting))

    def answer_tokens(self, prompt_tokens: int, max_tokens: int | None) -> int:
        """Tokens an answer to a prompt of that length may have, at most `max_tokens`. RequestError when the prompt does not fit."""
        return answer_tokens(prompt_tokens, max_tokens, self.context_tokens)

    @property
    def max_requests(self) -> int:
        """As many as there can be at once, seated or waiting."""
        return self._cache.plan.num_rows + self._waiting.bound

    def check_room(self, newcomers: int) -> None:
        """Raises QueueFullError unless as many requests could be submitted now."""
        self._waiting.check_room(self._cache.plan.num_rows - len(self.slots), newcomers)  # a closing slot is free soon

    def submit(self, request: Request, now: float) -> Sequence:
        """Queues a request. Raises QueueFullError, or RequestError when it can never fit."""
        self.answer_tokens(len(request.prompt), request.max_tokens)
        self.check_room(1)
        self._arrivals += 1
        sequence = Sequence.of(request, self._arrivals, now)
        self._waiting.add(sequence)
        return sequence

    def cancel(self, sequence: Sequence, now: float) -> Finished | None:
        """Gives a request up, at any moment; None when it had ended. No further step is planned for it, its state is saved."""
        if sequence.finished:
            return None
        finished = self._finished(sequence, FinishReason.CANCELLED, now)
        slot = next((slot for slot in self._slots if slot.sequence is sequence), None)
        if slot is None:
            self._waiting.remove(sequence)
            self._joins.forget(sequence)
        else:
            self._leave(slot, now)
        return finished

    # -- plan -------------------------------------------------------------------------------------------------------------------
    def plan(self, now: float) -> StepPlan | None:
        """The next step, or None when there is nothing to do, or nothing yet while a step is under way."""
        ahead = bool(self._under_way)
        if ahead and not self._foreseen():
            return None
        self._short = False
        saving = [closing for step in self._under_way for closing in step.saves]
        plan = StepPlan(saves=[closing for closing in self._closing if closing not in saving])
        self._plan_decodes(plan, now)
        self._admit(now)
        self._plan_prefills(plan, now)
        plan.arriving = [] if ahead else [slot for slot in self._slots if not self._cache.ready(slot.lease)]
        if plan.empty:
            return None
        plan.batch = build_batch(plan, self._cache, ahead=ahead)
        self._under_way.append(plan)
        return plan

    def _foreseen(self) -> bool:
        """Whether the next step can be planned although the one under way has not ended.

        Only a step that decodes: it is short, so that whoever comes meanwhile does not wait long, and there is something to gain.
        """
        if not self._plan_ahead or self._short or len(self._under_way) > 1:
            return False
        decoding = [slot for slot in self._slots if self._decodes(slot)]
        sampling = [slot for slot in decoding if slot.sampling]  # for a capture all tokens before it must be known
        return bool(decoding) and not any(s.sequence.request.ends_unforeseen or self._captures_next(s) for s in sampling)

    def _decodes(self, slot: Slot) -> bool:
        return slot.decoding and not slot.leaving and not (slot.sampling and self._is_full(slot.sequence, slot.sampling))

    def _is_full(self, sequence: Sequence, coming: int = 0) -> bool:
        """Whether its answer has all the tokens it may have, once `coming` more are there."""
        too_long = len(sequence.tokens) + coming > self.context_tokens
        return too_long or sequence.generated + coming >= sequence.request.max_tokens

    def _captures_next(self, slot: Slot) -> bool:
        return next_generated_capture(slot.sequence.num_prompt, slot.planned, self._capture_every) == slot.planned + 1

    def _plan_decodes(self, plan: StepPlan, now: float) -> None:
        for slot in [s for s in self._slots if self._decodes(s)]:
            if slot in self._slots and self._make_room(slot, slot.planned + 1, plan, now):
                self._add_chunk(plan, slot, 1, now)
                plan.num_decodes += 1

    def _plan_prefills(self, plan: StepPlan, now: float) -> None:
        staying = [s for s in self._slots if not s.leaving and self._cache.ready(s.lease)]
        for slot in [s for s in staying if s.remaining == 0 and not self._is_under_way(s)]:
            self._add_slot(plan, slot)  # the whole prompt was known: it only samples
        prefills = [s for s in staying if s.remaining and not s.decoding]
        shares = share_prefill([s.remaining for s in prefills], self._budget.tokens(plan.num_decodes))
        for slot, share in zip(prefills, shares, strict=True):
            if share and slot in self._slots and self._make_room(slot, slot.planned + share, plan, now):
                self._add_chunk(plan, slot, share, now)
                plan.num_prefill += share

    def _add_chunk(self, plan: StepPlan, slot: Slot, num_tokens: int, now: float) -> None:
        start, end = slot.planned, slot.planned + num_tokens
        positions = [wanted.position for wanted in slot.wanted if start < wanted.position <= end]
        if slot.decoding and self._captures_next(slot):
            positions.append(end)
        refs = [(position, self._cache.reserve(slot.lease, slot.sequence.tokens, position, now)) for position in positions]
        slot.wanted = [wanted for wanted in slot.wanted if wanted.position > end]
        captures = [(position, ref) for position, ref in refs if ref is not None]
        plan.chunks.append(PlannedChunk(slot, start, end, bool(slot.sampling), captures))
        slot.planned = end
        self._add_slot(plan, slot)

    def _add_slot(self, plan: StepPlan, slot: Slot) -> None:
        plan.seated.append(slot)
        if not slot.started:
            slot.started = True
            plan.starting.append(slot)
        if slot.remaining == 0 and slot.sequence.request.max_tokens > 0:
            slot.sampling += 1
            plan.sampling.append(slot)

    def _is_under_way(self, slot: Slot) -> bool:
        return any(step.holds(slot) for step in self._under_way)

    def _make_room(self, slot: Slot, end: int, plan: StepPlan, now: float) -> bool:
        """Pages for positions < end, preempting those of lower rank if need be. False: the slot itself was preempted, or could not
        be given pages while a step is under way."""
        while not self._cache.extend(slot.lease, end, now):
            if self._under_way:  # nobody in it can be preempted: the next step is planned after it
                self._short = True
                return False
            victims = [s for s in self._slots if not plan.holds(s) and s.rank >= slot.rank]
            victim = max(victims, key=lambda s: s.rank)
            if victim is not slot:
                self._preempt(victim, now)
            elif self._joins.release_pins(self._waiting):
                continue
            else:
                # Alone, with nothing being saved, every other page can be evicted, and context_tokens is less than all pages.
                assert len(self._slots) > 1 or not plan.empty, f"no page for {slot!r}, alone on the device"
                self._preempt(slot, now)
                return False
        return True

    def _preempt(self, slot: Slot, now: float) -> None:
        self._requeue(slot, now)
        self._squeezed = True
        self.counters.preemptions += 1

    def _requeue(self, slot: Slot, now: float) -> None:
        """Takes the slot away; the sequence comes back from its deepest resume point."""
        self._slots.remove(slot)
        slot.closed = True
        self._joins.left(slot.sequence)
        self._cache.close(slot.lease, slot.sequence.tokens, slot.position if slot.started else 0, now)
        self._waiting.add(slot.sequence)

    # -- admission --------------------------------------------------------------------------------------------------------------
    def _admit(self, now: float) -> None:
        """Slots waiting sequences in order of rank while rows and pages last. Those that wait for a state to be published hold
        nobody up."""
        hybrid = self._cache.plan.layout.hybrid
        coming = [state for step in self._under_way for state in step.states()]
        coming += [(slot.sequence, slot.planned) for slot in self._slots if slot.leaving]
        closing = [(each.sequence, each.position) for each in self._closing]
        for sequence in self._waiting:
            if len(self._slots) + len(self._closing) >= self._cache.plan.num_rows:
                return
            if self._joins.waiting(sequence):
                continue
            resume = self._resume_point(sequence, now)
            if any_helps(coming, sequence, resume, hybrid=hybrid):
                continue
            join = find_join(sequence, resume, self._slots)
            if join is not None:
                self._joins.wait(sequence, *join)
            elif any_helps(closing, sequence, resume, hybrid=hybrid):
                continue
            elif not (fits(sequence, resume, self._slots, self._cache, self._squeezed) and self._admit_one(sequence, resume, now)):
                return

    def _resume_point(self, sequence: Sequence, now: float) -> ResumePoint:
        if not sequence.request.use_cache and not sequence.generated:
            return COLD
        return self._cache.match(sequence.tokens, now)

    def _admit_one(self, sequence: Sequence, resume: ResumePoint, now: float) -> bool:
        lease = self._cache.open(sequence.tokens, resume, now)
        if lease is None and not (self._slots or self._closing):
            lease, resume = self._joins.open_alone(sequence, resume, self._waiting, now)
        if lease is None:
            return False
        self._waiting.remove(sequence)
        self._joins.forget(sequence)
        slot = Slot.of(sequence, lease, resume, self._captures_per_prompt, hybrid=self._cache.plan.layout.hybrid)
        self._slots.append(slot)
        self._slots.sort(key=lambda s: s.rank)
        note_admission(sequence, resume, lease.start, now)
        return True

    # -- commit -----------------------------------------------------------------------------------------------------------------
    def commit(self, plan: StepPlan, result: StepResult, now: float) -> Emitted:
        """Takes a finished step in: publishes what it captured, hands out its tokens, ends what has ended. Oldest plan first."""
        assert plan is self._under_way[0], "commit() of another step than the oldest under way"
        del self._under_way[0]
        for slot in plan.seated:
            self._cache.started(slot.lease)
        self._cache.moves_over(result.moves_over)
        skipped = sum(chunk.slot.closed for chunk in plan.chunks)  # the token before turned out to be a stop id, or not finite
        self._count(plan, result, skipped)
        for closing in plan.saves:
            self._finish_save(closing, now)
        sampled = dict(zip(plan.sampling, result.samples, strict=True))
        for slot in sampled:
            slot.sampling -= 1
        poisoned = {slot for slot, sample in sampled.items() if sample.token < 0}
        open_slots = [slot for slot in plan.seated if not slot.closed]
        for chunk in plan.chunks:
            if not chunk.slot.closed:
                self._commit_chunk(chunk, now, publish=chunk.slot not in poisoned)
        return [event for slot in open_slots for event in self._commit_slot(slot, sampled.get(slot), now)]

    def abort(self, plan: StepPlan, error: str, now: float) -> Emitted:
        """The step failed on the device: everyone in it fails, and nothing that it was to write is kept.

        A step planned ahead of its end goes with it, and must have ended or been refused. Who is in that one only starts again.
        """
        assert plan is self._under_way[0], "abort() of another step than the oldest under way"
        plans, self._under_way = self._under_way, []
        for each in plans:
            self._drop(each, now)
        emitted: Emitted = []
        for slot in [s for s in plan.seated if not s.closed]:
            if not slot.leaving:
                emitted.append((slot.sequence, self._finished(slot.sequence, FinishReason.ERROR, now, error)))
            self._close(slot, now, keep_state=False)
        for slot in [s for each in plans for s in each.seated if not s.closed]:
            if slot.leaving:
                self._close(slot, now, keep_state=False)
            else:
                self._requeue(slot, now)
        for slot in [s for s in self._slots if not self._cache.ready(s.lease)]:
            self._requeue(slot, now)  # what it waits for may be lost
        self._cache.moves_failed()
        return emitted

    def _drop(self, plan: StepPlan, now: float) -> None:
        """Gives back what a plan was to write."""
        for slot in plan.starting:
            slot.started = False
        for closing in plan.saves:
            self._closing.remove(closing)
            self._cache.abandon(closing.ref)
            self._cache.close(closing.lease, closing.sequence.tokens, 0, now)
        for _, ref in [capture for chunk in plan.chunks for capture in chunk.captures]:
            self._cache.abandon(ref)

    def fail_all(self, error: str, now: float) -> Emitted:
        """The device is suspected: everyone seated fails, nothing known is kept. Who waits goes on waiting, for a cold start."""
        assert not self._under_way, "fail_all() while a step is under way"
        for closing in self._closing:
            self._cache.abandon(closing.ref)
            self._cache.close(closing.lease, closing.sequence.tokens, 0, now)
        self._closing.clear()
        emitted: Emitted = []
        for slot in list(self._slots):
            emitted.append((slot.sequence, self._finished(slot.sequence, FinishReason.ERROR, now, error)))
            self._close(slot, now, keep_state=False)
        self._joins.release_pins(self._waiting)
        self._cache.moves_failed()
        self._cache.clear()
        return emitted

    def _count(self, plan: StepPlan, result: StepResult, skipped: int) -> None:
        num_decodes = plan.num_decodes - skipped
        self._budget.observe(plan.num_prefill, num_decodes, result.duration_s)
        self.counters.steps += 1
        self.counters.prefill_tokens += plan.num_prefill
        self.counters.decode_tokens += num_decodes
        self.counters.step_s += result.duration_s
        self.counters.restores += len(plan.batch.restores)
        self.counters.most_step_tokens = max(self.counters.most_step_tokens, plan.num_prefill + num_decodes)

    def _finish_save(self, closing: Closing, now: float) -> None:
        self._closing.remove(closing)
        self._cache.publish(closing.ref, closing.sequence.tokens, closing.lease, now)
        self._cache.close(closing.lease, closing.sequence.tokens, closing.position, now)

    def _commit_chunk(self, chunk: PlannedChunk, now: float, *, publish: bool) -> None:
        slot = chunk.slot
        for _, ref in chunk.captures:
            if publish:
                self._cache.publish(ref, slot.sequence.tokens, slot.lease, now)
            else:
                self._cache.abandon(ref)
        slot.position = chunk.end
        self._joins.advanced(slot.sequence, slot.position)

    def _commit_slot(self, slot: Slot, sampled: Sampled | None, now: float) -> Emitted:
        sequence = slot.sequence
        if sampled is not None and sampled.token < 0:
            self._cache.distrust(slot.lease)
            self._close(slot, now, keep_state=False)
            if slot.leaving:
                return []
            return [
                (sequence, self._finished(sequence, FinishReason.ERROR, now, "the model's output was not finite (NaN or infinity)"))
            ]
        if slot.leaving:
            self._commit_leaving(slot, sampled, now)
            return []
        if sampled is not None:
            return self._take_token(slot, sampled, now)
        if sequence.request.max_tokens == 0 and slot.position == len(sequence.tokens):
            return self._end(slot, FinishReason.LENGTH, now)
        return []

    def _commit_leaving(self, slot: Slot, sampled: Sampled | None, now: float) -> None:
        """Closes the slot, unless another step under way advances its state; then the token that it evaluates is noted."""
        goes_on = self._is_under_way(slot) and not (sampled is not None and sampled.token in slot.sequence.request.stop_ids)
        if not goes_on:
            self._close(slot, now, keep_state=True)
        elif sampled is not None:
            slot.sequence.buffer.append(sampled.token)

    def _take_token(self, slot: Slot, sampled: Sampled, now: float) -> Emitted:
        sequence = slot.sequence
        request = sequence.request
        if sequence.first_token_s is None:
            sequence.first_token_s = now
        if sampled.token in request.stop_ids:
            emitted: Emitted = [(sequence, self._finished(sequence, FinishReason.STOP, now))]
            self._close(slot, now, keep_state=True)  # also when a step under way has it: there its chunk is skipped
            return emitted
        sequence.buffer.append(sampled.token)
        sequence.generated += 1
        self.counters.generated_tokens += 1
        text, ends = request.on_token(sampled.token) if request.on_token is not None else (None, False)
        emitted = [(sequence, TokenEvent(sampled.token, sampled.logprob, sampled.top, text))]
        if ends:
            emitted += self._end(slot, FinishReason.STOP, now)
        elif self._is_full(sequence):
            emitted += self._end(slot, FinishReason.LENGTH, now)
        return emitted

    # -- ends -------------------------------------------------------------------------------------------------------------------
    def _end(self, slot: Slot, reason: FinishReason, now: float) -> Emitted:
        finished = self._finished(slot.sequence, reason, now)
        self._leave(slot, now)
        return [(slot.sequence, finished)]

    def _leave(self, slot: Slot, now: float) -> None:
        """Its answer has ended. While the device advances its state, the slot stays taken."""
        if self._is_under_way(slot):
            slot.leaving = True
        else:
            self._close(slot, now, keep_state=True)

    def _close(self, slot: Slot, now: float, *, keep_state: bool) -> None:
        """Frees the slot: at once, or after the next step if its state goes into a snapshot."""
        self._slots.remove(slot)
        slot.closed = True
        self._squeezed = False
        ref: SnapshotRef | None = None
        if keep_state and slot.started and slot.position > slot.lease.start:
            ref = self._cache.reserve(slot.lease, slot.sequence.tokens, slot.position, now)
        self._joins.left(slot.sequence)
        if ref is None:
            valid = slot.position if slot.started and keep_state else 0
            self._cache.close(slot.lease, slot.sequence.tokens, valid, now)
        else:
            self._closing.append(Closing(slot.sequence, slot.lease, slot.position, ref))

    def _finished(self, sequence: Sequence, reason: FinishReason, now: float, error: str | None = None) -> Finished:
        assert not sequence.finished
        sequence.finished = True
        self.counters.ended(reason, sequence.num_prompt, sequence.cached_tokens or 0)
        return finished(sequence, reason, now, error)
