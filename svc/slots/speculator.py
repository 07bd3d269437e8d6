"""Which drafts go into a step, for the slots that decode in it."""

from collections.abc import Callable, Iterable

from svc.memory.placement import next_generated_capture
from svc.slots.ngram_drafter import NgramDrafter, Odds
from svc.slots.request import Request
from svc.slots.slot import Slot
from svc.slots.speculation import Drafter, DraftLimits, Speculation, StepTimes, Tokens, choose_lengths


class Speculator:
    """Owner of the measured step times and of the shared odds of its drafters."""

    def __init__(
        self,
        most: int,
        *,
        capture_every: int = 0,
        times: StepTimes | None = None,
        make_drafter: Callable[[Request], Drafter] | None = None,
    ) -> None:
        """`most`: drafts of a slot in a step; a row can be rolled back that far and one token more. `capture_every`: as the
        scheduler has it: only states that are certain are captured."""
        self.times = times or StepTimes()
        self._most = most
        self._capture_every = capture_every
        odds = Odds()
        self._make_drafter = make_drafter or (lambda request: NgramDrafter(odds))

    def speculation(self, request: Request) -> Speculation | None:
        """None for a request without drafts: it asks for none, or a draw depends on how each one before went."""
        limits = request.drafts or DraftLimits(self._most)
        if not min(limits.most, self._most) or request.params.learns:
            return None
        return Speculation(self._make_drafter(request), limits)

    def pays(self, slot: Slot) -> bool:
        """Whether drafts are to be expected once the token under way is known: then its next step waits for it."""
        speculation = slot.sequence.speculation
        if speculation is None:
            return False
        most = self._most_of(slot)
        _, chances = speculation.propose(slot.sequence.tokens, most)
        return bool(chances) and choose_lengths([chances], 1, self.times, most)[0] >= max(speculation.limits.least, 1)

    def choose(self, slots: Iterable[Slot], num_tokens: int, room: int) -> dict[Slot, Tokens]:
        """The drafts of slots that decode, of those that have some. `num_tokens`: of the step without drafts; `room`: for all
        drafts."""
        proposals: list[list[float]] = []
        drafts: list[tuple[Slot, Speculation, Tokens]] = []
        num_slots = 0
        for slot in slots:
            num_slots += 1
            speculation = slot.sequence.speculation
            if speculation is None:
                continue
            proposed, chances = speculation.propose(slot.sequence.tokens, self._most_of(slot))
            if chances:
                proposals.append(chances)
                drafts.append((slot, speculation, proposed))
        if not proposals:
            return {}
        others: list[list[float]] = [[]] * (num_slots - len(proposals))
        lengths = choose_lengths([*proposals, *others], num_tokens, self.times, room)
        return {
            slot: proposed[:length]
            for (slot, speculation, proposed), length in zip(drafts, lengths, strict=False)
            if length >= max(speculation.limits.least, 1)
        }

    def _most_of(self, slot: Slot) -> int:
        """Drafts that the end of the answer and the next capture allow; one token more comes anyway."""
        sequence = slot.sequence
        most = min(self._most, sequence.full_at - sequence.buffer.length - 1)
        if self._capture_every:
            known = sequence.buffer.length
            capture = next_generated_capture(sequence.num_prompt, known, self._capture_every)
            most = most if capture is None else min(most, capture - 1 - known)
        return max(most, 0)
