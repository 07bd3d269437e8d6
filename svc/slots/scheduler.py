"""What each step does: `plan()` decides, `commit()` accounts. Plain functions; time is an argument.

Life of a sequence: waiting -> in a slot (prefill, then decode) -> ended, or back to waiting when preempted. A slot whose state is
worth keeping becomes a `Closing` until the next step has saved it.

Planning ahead: while a step runs, the next may be planned, with the tokens being sampled not known yet (PENDING), where every
answer is sure to go on or ends by a token id that the device knows (`_can_plan_ahead`). What the plans under way name is not freed
before their commit, except slots of answers that a stop id ended: the step under way does nothing there.

Owner of all sequences, slots and closings; the engine calls it from the event loop only.
"""

from svc.compute.backend import NOT_FINITE, Sampled, Settle, StepResult
from svc.memory.placement import Wanted, WantedKind, next_generated_capture
from svc.memory.sequence_cache import Lease, Reservation, SequenceCache
from svc.slots.admission import Admission, PageForecast
from svc.slots.batch import PlannedChunk, StepPlan, build_batch
from svc.slots.budget import ChunkBudget, share_prefill
from svc.slots.events import Event, Finished, FinishReason, TokenEvent, Top
from svc.slots.joins import Joins
from svc.slots.operator_pins import OperatorPins
from svc.slots.request import Request, Sequence
from svc.slots.slot import Slot, victim_for
from svc.slots.slot_table import SlotTable
from svc.slots.speculation import NO_DRAFTS, accepted
from svc.slots.speculator import Speculator
from svc.slots.stats import SchedulerCounters
from svc.slots.usage_report import SAMPLING_FAILURES, answer_tokens, finished, first_token, progress_of_step
from svc.slots.waiting_queue import WaitingQueue

Emitted = list[tuple[Sequence, Event]]
NO_CAPTURES: tuple[Reservation, ...] = ()
NO_SAMPLES: list[Sampled] = []


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
        pins: OperatorPins | None = None,
        speculator: Speculator | None = None,
    ) -> None:
        """`context_tokens`: most positions a sequence may evaluate. `capture_every_tokens`: 0 = no captures while generating.
        `plan_ahead`: whether `plan` may give a step while another is under way. `speculator`: None: no drafts. No answer depends
        on either.
        """
        layout = cache.plan.layout
        # One page of slack: a copied partial page is beside its source for a moment.
        self.context_tokens = min(context_tokens, cache.plan.kv_tokens - layout.page_tokens)
        self.counters = SchedulerCounters()
        self._cache = cache
        self._budget = budget
        self._capture_every = capture_every_tokens
        self._waiting = WaitingQueue(max_queue)
        self.joins = Joins(cache, pins)
        self._forecast = PageForecast(cache, self.context_tokens)
        self._admission = Admission(cache, self._waiting, self.joins, self._forecast)
        self._table = SlotTable(cache, self.joins, self._waiting)
        self._plan_ahead = plan_ahead
        self._speculator = speculator
        self._short = False  # the step under way lacks a slot for which there was no page
        self._arrivals = 0

    # -- asked from outside -----------------------------------------------------------------------------------------------------
    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + sum(closing.requeue for closing in self._table.closing)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Slots of answers that have not ended."""
        return tuple(slot for slot in self._table.slots if slot.active)

    @property
    def closing(self) -> bool:
        """Whether states of ended answers are still to be saved, or an ended one's slot is still taken."""
        return bool(self._table.closing) or any(slot.leaving for slot in self._table.slots)

    @property
    def idle(self) -> bool:
        """No slot taken, nothing waiting, nothing to save."""
        return not (self._table.slots or self._table.closing or len(self._waiting))

    def answer_tokens(self, prompt_tokens: int, max_tokens: int | None) -> int:
        """Tokens an answer to a prompt of that length may have, at most `max_tokens`. RequestError when the prompt does not fit."""
        return answer_tokens(prompt_tokens, max_tokens, self.context_tokens)

    def max_requests(self, queue_share: float = 1.0) -> int:
        """The most requests there can be at once of a tenant with that share, in slots or waiting."""
        return self._cache.plan.num_rows + self._waiting.places(queue_share)

    def check_capacity(self, newcomers: int, tenant: str = "", queue_share: float = 1.0) -> None:
        """Raises QueueFullError unless a tenant could submit that many requests now."""
        free_slots = self._cache.plan.num_rows - len(self.slots)  # a closing slot is free soon
        self._waiting.check_capacity(free_slots, newcomers, tenant, queue_share)

    def submit(self, request: Request, now: float) -> Sequence:
        """Queues a request. Raises QueueFullError, or RequestError when it can never fit."""
        self.answer_tokens(len(request.prompt), request.max_tokens)
        self.check_capacity(1, request.tenant, request.queue_share)
        self._arrivals += 1
        sequence = Sequence.of(request, self._arrivals, now, self.context_tokens)
        if self._speculator is not None:
            sequence.speculation = self._speculator.speculation(request)
        self._waiting.add(sequence)
        return sequence

    def cancel(self, sequence: Sequence, now: float) -> Finished | None:
        """Ends a request, at any moment; None when it had ended. No further step is planned for it, its state is saved."""
        if sequence.finished:
            return None
        finished = self._finished(sequence, FinishReason.CANCELLED, now)
        for slot in self._table.slots:
            if slot.sequence is sequence:
                self._table.leave(slot, now, WantedKind.CANCELLED)
                return finished
        for closing in self._table.closing:
            if closing.sequence is sequence:
                closing.requeue = False
                return finished
        self._waiting.remove(sequence)
        self.joins.forget(sequence)
        return finished

    # -- plan -------------------------------------------------------------------------------------------------------------------
    def plan(self, now: float) -> StepPlan | None:
        """The next step, or None when there is nothing to do, or nothing yet while a step is under way."""
        ahead = bool(self._table.under_way)
        decoding = [slot for slot in self._table.slots if slot.decodes]
        if ahead and not self._can_plan_ahead(decoding):
            return None
        self._short = False
        self._forecast.forget_total()
        saving = {closing for step in self._table.under_way for closing in step.saves}
        plan = StepPlan()
        self._plan_decodes(plan, decoding, now)
        if len(self._waiting):
            self._admission.admit(self._table.slots, self._table.closing, self._table.under_way, now)
            self._forecast.forget_total()
        if len(plan.slots) < len(self._table.slots):
            decoding = [slot for slot in self._table.slots if slot not in plan.slots and slot.decodes]
            self._plan_decodes(plan, decoding, now)  # of sequences that come back where they were
            self._plan_prefills(plan, now)
        if self._speculator is not None and not ahead:
            self._plan_drafts(plan, now)
        if len(plan.slots) < len(self._table.slots):
            plan.arriving = [] if ahead else [slot for slot in self._table.slots if not slot.lease.ready]
        plan.saves = [closing for closing in self._table.closing if closing not in saving]
        if plan.empty and not self._cache.transfers.wants_step:
            return None
        saves = [closing.save for closing in plan.saves]
        plan.memory = self._cache.begin([slot.lease for slot in plan.slots], plan.captures, saves)
        plan.batch = build_batch(plan, plan.memory, ahead=ahead)
        self._table.under_way.append(plan)
        return plan

    def _can_plan_ahead(self, decoding: list[Slot]) -> bool:
        """Whether the next step can be planned although the one under way has not ended: decode steps only, which are short."""
        if not self._plan_ahead or self._short or len(self._table.under_way) > 1 or self._table.under_way[0].drafts:
            return False
        for slot in decoding:
            if slot.sampling and (slot.sequence.request.needs_known_tokens or self._captures_next(slot)):
                return False
            if self._speculator is not None and self._speculator.pays(slot):
                return False
        return bool(decoding)

    def _captures_next(self, slot: Slot) -> bool:
        """Whether the next token's state is captured: all tokens before it must be known."""
        every = self._capture_every
        return every > 0 and next_generated_capture(slot.sequence.num_prompt, slot.planned, every) == slot.planned + 1

    def _plan_decodes(self, plan: StepPlan, decoding: list[Slot], now: float) -> None:
        for slot in decoding:
            end = slot.planned + 1
            if slot.active and (slot.lease.covers(end) or self._find_pages(slot, end, plan, now)):
                self._add_chunk(plan, slot, 1, now)
                plan.num_decodes += 1

    def _plan_prefills(self, plan: StepPlan, now: float) -> None:
        ready = [s for s in self._table.slots if s not in plan.slots and s.active and s.lease.ready]
        for slot in [s for s in ready if s.remaining == 0 and not self._table.is_under_way(s)]:
            self._add_slot(plan, slot)  # the whole prompt was known: it only samples
        prefills = [s for s in ready if s.remaining and not s.decoding]
        shares = share_prefill([s.remaining for s in prefills], self._budget.tokens(plan.num_decodes))
        for slot, share in zip(prefills, shares, strict=True):
            if share and slot.active and self._find_pages(slot, slot.planned + share, plan, now):
                self._add_chunk(plan, slot, share, now)
                plan.num_prefill += share

    def _add_chunk(self, plan: StepPlan, slot: Slot, num_tokens: int, now: float) -> None:
        start, end = slot.planned, slot.planned + num_tokens
        captures = self._reserve_captures(slot, end, now) if slot.wanted or self._capture_every else NO_CAPTURES
        plan.chunks.append(PlannedChunk(slot, start, end, slot.sampling > 0, captures))
        plan.captures += captures
        if slot.settled < start:
            plan.settles.append(Settle(slot.lease.row, slot.settled, start))
        slot.planned = slot.settled = end
        self._add_slot(plan, slot)

    def _plan_drafts(self, plan: StepPlan, now: float) -> None:
        """Adds drafts to the chunks that decode, as many as pay. No other slot is preempted for one."""
        assert self._speculator is not None
        decodes = {chunk.slot: chunk for chunk in plan.chunks[: plan.num_decodes]}
        room = self._budget.max_tokens - plan.num_decodes - plan.num_prefill
        chosen = self._speculator.choose(decodes, plan.num_decodes + plan.num_prefill, room)
        for slot, drafts in chosen.items():
            chunk = decodes[slot]
            if not self._extend(slot, chunk.end + len(drafts), now):
                drafts = drafts[: slot.lease.table.end - chunk.end]
            if len(drafts):
                chunk.drafts = plan.drafts[slot] = drafts
                plan.num_drafts += len(drafts)
                if slot.sequence.speculation is not None:
                    slot.sequence.speculation.drafted += len(drafts)
                slot.settled = chunk.start  # the live row stays until it is known which are right

    def _reserve_captures(self, slot: Slot, end: int, now: float) -> tuple[Reservation, ...]:
        """Snapshots for the states wanted behind `slot.planned` and up to `end`, as far as they are to be had."""
        wanted = [capture for capture in slot.wanted if slot.planned < capture.position <= end]
        if slot.decoding and self._captures_next(slot):
            wanted.append(Wanted(end, WantedKind.GENERATED))
        reservations = [self._cache.reserve(slot.lease, capture.position, now, capture.kind) for capture in wanted]
        slot.wanted = [capture for capture in slot.wanted if capture.position > end]
        return tuple(reservation for reservation in reservations if reservation is not None)

    def _add_slot(self, plan: StepPlan, slot: Slot) -> None:
        plan.slots[slot] = None
        if slot.remaining == 0 and slot.sequence.request.max_tokens > 0:
            slot.sampling += 1
            plan.sampling.append(slot)

    # -- pages ------------------------------------------------------------------------------------------------------------------
    def _find_pages(self, slot: Slot, end: int, plan: StepPlan, now: float) -> bool:
        """Pages for positions < end, preempting slots of lower rank if need be. False: the slot does not take part in this step,
        because it was preempted itself, or waits for pages that others free soon."""
        while not self._extend(slot, end, now):
            if self._table.under_way:  # nothing in it can be preempted: the next step is planned after it
                self._short = True
                return False
            victim = victim_for(slot, self._table.slots, plan.slots)
            if self._cache.transfers.release_all() or (victim is None and self.joins.give_up_pins(self._waiting)):
                continue
            if victim is None:
                # Others, protected, are sure of their pages and get on; or a state is being saved. Either frees pages soon.
                assert len(self._table.slots) > 1 or self._table.closing, f"no page for {slot!r}, alone on the device"
                self._short = True
                return False
            freed = self._preempt(victim, now)
            if victim is slot:
                return False
            if not freed:  # its pages are free once its state is saved
                self._short = True
                return False
        return True

    def _extend(self, slot: Slot, end: int, now: float) -> bool:
        wanted = self._cache.num_wanted_pages(slot.lease, end)
        if not wanted:
            return True
        if not self._forecast.may_take(slot, wanted, self._table.slots):
            return False
        return self._cache.extend(slot.lease, end, now)

    def _preempt(self, slot: Slot, now: float) -> bool:
        """Takes the slot away; the sequence comes back from its deepest resume point. Whether its pages are free at once.

        With a host tier its state is saved first: its pages move there instead of being lost.
        """
        sequence = slot.sequence
        sequence.preempted_at = max(sequence.preempted_at, slot.planned)
        sequence.num_preemptions += 1
        self.counters.preemptions += 1
        if self._cache.plan.num_host_pages:
            save = self._table.reserve_save(slot, WantedKind.PREEMPTED, now)
            if save is not None:
                self._table.save(slot, save, requeue=True)
                return False
        self._table.requeue(slot, now)
        return True

    # -- commit -----------------------------------------------------------------------------------------------------------------
    def commit(self, plan: StepPlan, result: StepResult, now: float) -> Emitted:
        """Takes a finished step in: publishes what it captured, hands out its tokens, ends what has ended. Oldest plan first."""
        assert plan is self._table.under_way[0], "commit() of another step than the oldest under way"
        assert plan.memory is not None
        del self._table.under_way[0]
        advanced = [chunk for chunk in plan.chunks if not chunk.slot.closed]
        skipped = len(plan.chunks) - len(advanced)  # the token before turned out to be a stop id, or not finite
        self._count(plan, result, skipped)
        drawn = iter(result.samples)
        sampled = {slot: accepted(drawn, plan.drafts.get(slot, NO_DRAFTS)) for slot in plan.sampling}
        poisoned: set[Lease] = set()
        for slot, samples in sampled.items():
            slot.sampling -= 1
            if samples[-1].token == NOT_FINITE:
                poisoned.add(slot.lease)
        open_slots = [slot for slot in plan.slots if not slot.closed]
        self._cache.finish(plan.memory, now, result.moves_over, poisoned)
        for closing in plan.saves:
            self._table.forget_closing(closing)
        for chunk in advanced:
            chunk.slot.position = chunk.end
        if len(self.joins):
            for chunk in advanced:
                self.joins.advanced(chunk.slot.sequence, chunk.end)
        emitted = progress_of_step(advanced, now) if plan.num_prefill else []
        for slot in open_slots:
            samples = sampled.get(slot, NO_SAMPLES)
            self._commit_slot(slot, samples[0] if samples else None, now, emitted)
            for sample in samples[1:]:
                if slot.active:
                    self._commit_draft(slot, sample, now, emitted)
        return emitted

    def abort(self, plan: StepPlan, error: str, now: float) -> Emitted:
        """The step failed on the device: all answers in it fail, and nothing that it was to write is kept.

        A step planned ahead of its end goes with it, and must have ended or been refused. Sequences in that one only start again.
        """
        assert plan is self._table.under_way[0], "abort() of another step than the oldest under way"
        plans, self._table.under_way = self._table.under_way, []
        for each in plans:
            assert each.memory is not None
            self._cache.abort(each.memory, now)
            for closing in each.saves:
                self._table.forget_closing(closing)
        emitted: Emitted = []
        for slot in [s for s in plan.slots if not s.closed]:
            if slot.active:
                emitted.append((slot.sequence, self._finished(slot.sequence, FinishReason.ERROR, now, error)))
            self._table.close(slot, now)
        for slot in [s for each in plans for s in each.slots if not s.closed]:
            if slot.leaving:
                self._table.close(slot, now)
            else:
                self._table.requeue(slot, now)
        for slot in [s for s in self._table.slots if not s.lease.ready]:
            self._table.requeue(slot, now)  # what it waits for may be lost
        self._cache.recover()
        return emitted

    def fail_all(self, error: str, now: float) -> Emitted:
        """The device is suspected: all answers in slots fail, nothing known is kept. Waiting requests go on, from a cold start."""
        assert not self._table.under_way, "fail_all() while a step is under way"
        for closing in list(self._table.closing):
            self._cache.close(closing.lease, 0, now)
            self._table.forget_closing(closing)
        emitted: Emitted = []
        for slot in list(self._table.slots):
            emitted.append((slot.sequence, self._finished(slot.sequence, FinishReason.ERROR, now, error)))
            self._table.close(slot, now)
        self.joins.forget_pins(self._waiting)
        self._cache.recover()
        self._cache.clear()
        return emitted

    def _count(self, plan: StepPlan, result: StepResult, skipped: int) -> None:
        num_decodes = plan.num_decodes - skipped
        self._budget.observe(plan.num_prefill, num_decodes, result.duration_s)
        if self._speculator is not None and num_decodes and not plan.num_prefill:
            self._speculator.times.observe(num_decodes + plan.num_drafts, result.duration_s)
        self.counters.drafts += plan.num_drafts
        self.counters.stepped(plan.num_prefill, num_decodes + plan.num_drafts, len(plan.batch.restores), result.duration_s)

    def _commit_slot(self, slot: Slot, sampled: Sampled | None, now: float, emitted: Emitted) -> None:
        sequence = slot.sequence
        if sampled is not None and sampled.token < 0:
            if sampled.token == NOT_FINITE:
                self._cache.distrust(slot.lease)
            if not slot.leaving:
                finished = self._finished(sequence, FinishReason.ERROR, now, SAMPLING_FAILURES[sampled.token])
                emitted.append((sequence, finished))
            self._table.close(slot, now)
        elif slot.leaving:
            self._commit_leaving(slot, sampled, now)
        elif sampled is not None:
            self._take_token(slot, sampled, now, emitted)
        elif sequence.request.max_tokens == 0 and slot.position == sequence.buffer.length:
            self._end(slot, FinishReason.LENGTH, now, emitted)

    def _commit_draft(self, slot: Slot, sampled: Sampled, now: float, emitted: Emitted) -> None:
        """The token that was handed out last had been drafted: the state behind it is known, and what was drawn there."""
        assert slot.sequence.speculation is not None
        slot.sequence.speculation.accepted += 1
        self.counters.accepted_drafts += 1
        slot.position = slot.planned = slot.position + 1
        self._commit_slot(slot, sampled, now, emitted)

    def _commit_leaving(self, slot: Slot, sampled: Sampled | None, now: float) -> None:
        """Closes the slot, unless another step under way advances its state; then the token that it evaluates is noted."""
        goes_on = self._table.is_under_way(slot) and not (sampled is not None and sampled.token in slot.sequence.request.stop_ids)
        if not goes_on:
            self._table.close_and_save(slot, now)
        elif sampled is not None:
            slot.sequence.buffer.append(sampled.token)

    def _take_token(self, slot: Slot, sampled: Sampled, now: float, emitted: Emitted) -> None:
        sequence, token = slot.sequence, sampled.token
        request = sequence.request
        if sequence.first_token_s is None:
            emitted += first_token(sequence, now)
        if token in request.stop_ids:
            self._forecast.learn(sequence.generated)
            emitted.append((sequence, self._finished(sequence, FinishReason.STOP, now)))
            self._table.close_and_save(slot, now)  # also when a step under way has it: there its chunk is skipped
            return
        sequence.learned = sampled.learned
        if self._add_token(slot, token, sampled.logprob, sampled.top, now, emitted):
            for forced in sampled.forced:
                if not self._add_token(slot, forced, 0.0, (), now, emitted):
                    return
                self.counters.forced_tokens += 1

    def _add_token(self, slot: Slot, token: int, logprob: float, top: Top, now: float, emitted: Emitted) -> bool:
        """The answer's next token. Whether the answer goes on."""
        sequence = slot.sequence
        request = sequence.request
        sequence.buffer.append(token)
        sequence.generated += 1
        self.counters.generated_tokens += 1
        if request.constraint is not None:
            request.constraint.accept(token)
        text, ends = request.on_token(token) if request.on_token is not None else (None, False)
        emitted.append((sequence, TokenEvent(token, logprob, top, text)))
        if not ends and sequence.buffer.length < sequence.full_at:
            return True
        self._end(slot, FinishReason.STOP if ends else FinishReason.LENGTH, now, emitted)
        return False

    # -- ends -------------------------------------------------------------------------------------------------------------------
    def _end(self, slot: Slot, reason: FinishReason, now: float, emitted: Emitted) -> None:
        self._forecast.learn(slot.sequence.generated)
        emitted.append((slot.sequence, self._finished(slot.sequence, reason, now)))
        self._table.leave(slot, now, WantedKind.ANSWER_END)

    def _finished(self, sequence: Sequence, reason: FinishReason, now: float, error: str | None = None) -> Finished:
        assert not sequence.finished
        sequence.finished = True
        self.counters.ended(reason, sequence.num_prompt, sequence.cached_tokens or 0)
        return finished(sequence, reason, now, error)
