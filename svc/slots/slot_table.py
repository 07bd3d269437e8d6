"""The taken slots, the closings and the steps under way, and how a slot is freed.

Owner: the scheduler, which alone decides; nothing here chooses.
"""

from svc.memory.placement import WantedKind
from svc.memory.sequence_cache import Reservation, SequenceCache
from svc.slots.batch import StepPlan
from svc.slots.joins import Joins
from svc.slots.slot import Closing, Slot, SlotState
from svc.slots.waiting_queue import WaitingQueue


class SlotTable:
    def __init__(self, cache: SequenceCache, joins: Joins, waiting: WaitingQueue) -> None:
        self.slots: list[Slot] = []  # by rank
        self.closing: list[Closing] = []
        self.under_way: list[StepPlan] = []  # in the order of planning
        self._cache = cache
        self._joins = joins
        self._waiting = waiting

    def is_under_way(self, slot: Slot) -> bool:
        return any(slot in step.slots for step in self.under_way)

    def leave(self, slot: Slot, now: float, kind: WantedKind) -> None:
        """Its answer has ended. While the device advances its state, the slot remains taken."""
        if self.is_under_way(slot):
            slot.go(SlotState.LEAVING)
        else:
            self.close_and_save(slot, now, kind)

    def close_and_save(self, slot: Slot, now: float, kind: WantedKind = WantedKind.ANSWER_END) -> None:
        """Frees the slot: after the next step if its state goes into a snapshot, else at once."""
        save = self.reserve_save(slot, kind, now)
        if save is None:
            self.close(slot, now, slot.position if slot.lease.started else 0)
        else:
            self.save(slot, save)

    def close(self, slot: Slot, now: float, valid: int = 0) -> None:
        """Frees the slot at once; its first `valid` tokens are truly written and can be trusted."""
        self._remove(slot)
        self._cache.close(slot.lease, valid, now)

    def requeue(self, slot: Slot, now: float) -> None:
        """Its sequence waits again."""
        self.close(slot, now, slot.position if slot.lease.started else 0)
        self._waiting.add(slot.sequence)

    def reserve_save(self, slot: Slot, kind: WantedKind, now: float) -> Reservation | None:
        """A snapshot for the state of a slot that goes; None where there is nothing new to save, or no snapshot to be had."""
        if not slot.lease.started or slot.position <= slot.lease.start:
            return None
        return self._cache.reserve(slot.lease, slot.position, now, kind)

    def save(self, slot: Slot, save: Reservation, *, requeue: bool = False) -> None:
        """Frees the slot after the next step, which saves its state. `requeue`: its sequence waits again then."""
        self._remove(slot)
        self.closing.append(Closing(slot.sequence, save, slot.settled, requeue))

    def forget_closing(self, closing: Closing) -> None:
        """It has been saved, or will not be."""
        self.closing.remove(closing)
        if closing.requeue:
            self._waiting.add(closing.sequence)

    def _remove(self, slot: Slot) -> None:
        self.slots.remove(slot)
        slot.go(SlotState.CLOSED)
        self._joins.left(slot.sequence)
