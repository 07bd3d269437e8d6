"""Prefixes that the operator keeps from eviction, within a budget.

A pin is a published snapshot with the pages that a resume there reads. Requests come first: where one finds no page although all
that can be evicted is gone, pins are given up, the latest first, and the log says so. So no pin can make a request fail, however
long it is. A snapshot that leaves the tree for another reason (the device failed, its numbers are not finite) takes its pin along.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from svc.errors import RequestError
from svc.memory.sequence_cache import SequenceCache, SnapshotRef
from svc.memory.tokens import TokenArray
from svc.sizes import format_size

DEFAULT_SHARE = 4  # the budget is one such part of all pages and snapshots, unless it is set
MOST_SHARE = 2  # whatever the budget is: of the pages, and of the snapshots


@dataclass(frozen=True, slots=True, eq=False)
class Pin:
    """One prefix."""

    id: int
    name: str  # the operator's word for it
    tokens: TokenArray
    num_bytes: int  # of its snapshot and of all its pages, also those that other pins share
    created: int  # Unix seconds
    ref: SnapshotRef
    pages: frozenset[int]


@dataclass(frozen=True, slots=True)
class PinStats:
    """At one moment; pages that several pins share count once."""

    num_pins: int
    used_bytes: int
    budget_bytes: int
    given_up: int  # since start


class OperatorPins:
    """Owner of the pins. Used on the event loop only."""

    def __init__(
        self, cache: SequenceCache, budget_bytes: int | None = None, report: Callable[[str, str], None] = lambda event, reason: None
    ) -> None:
        """`budget_bytes` None: a share of the memory. `report`: an event's name and the reason, for the log."""
        plan = cache.plan
        self.budget_bytes = (plan.kv_bytes + plan.snapshot_bytes) // DEFAULT_SHARE if budget_bytes is None else budget_bytes
        self.num_given_up = 0
        self._most_pages = plan.num_pages // MOST_SHARE
        self._most_pins = plan.num_snapshots // MOST_SHARE
        self._layout = plan.layout
        self._cache = cache
        self._report = report
        self._pins: dict[int, Pin] = {}
        self._ids = itertools.count(1)

    def __len__(self) -> int:
        return len(self._pins)

    def listed(self) -> list[Pin]:
        """In the order in which they were made."""
        self._drop_lost()
        return list(self._pins.values())

    def stats(self) -> PinStats:
        self._drop_lost()
        return PinStats(len(self._pins), self._bytes(self._pages(), len(self._pins)), self.budget_bytes, self.num_given_up)

    def check_length(self, num_tokens: int) -> None:
        """RequestError where a prefix of that length cannot be kept even if it were alone. So it is not evaluated in vain."""
        self._check(-(-num_tokens // self._layout.page_tokens), 1)

    def add(self, tokens: TokenArray, name: str, created: int) -> Pin | None:
        """Pins the snapshot after exactly these tokens; None where there is none. RequestError beyond the budget. A prefix that is
        pinned already keeps its pin."""
        for pin in self.listed():
            if len(pin.tokens) == len(tokens) and bool((pin.tokens == tokens).all()):
                return pin
        ref = self._cache.pin_at(tokens, len(tokens))
        path = None if ref is None else self._cache.transfers.path(ref)
        if ref is None or path is None:
            return None
        pages = frozenset(path.pages.tolist())
        try:
            self._check(len(self._pages() | pages), len(self._pins) + 1)
        except RequestError:
            self._cache.unpin(ref)
            raise
        pin = Pin(next(self._ids), name, tokens, self._bytes(pages, 1), created, ref, pages)
        self._pins[pin.id] = pin
        return pin

    def remove(self, pin_id: int) -> bool:
        """Whether there was such a pin. What it kept stays until memory is short."""
        pin = self._pins.pop(pin_id, None)
        if pin is not None:
            self._cache.unpin(pin.ref)
        return pin is not None

    def release_all(self) -> int:
        """Their number."""
        pins = list(self._pins)
        return sum(self.remove(pin_id) for pin_id in pins)

    def give_up(self) -> bool:
        """A request needs memory: what is of no use goes, or else the latest pin. Whether there was one."""
        if self._drop_lost():
            return True
        if not self._pins:
            return False
        pin = self._pins[max(self._pins)]
        self.remove(pin.id)
        self.num_given_up += 1
        self._report("pin_given_up", f"a request needed the memory of pin {pin.id} ({len(pin.tokens)} tokens)")
        return True

    def _drop_lost(self) -> int:
        """Ends pins whose snapshot cannot be matched any more; their number."""
        lost = [pin.id for pin in self._pins.values() if not self._cache.transfers.ring.is_published(pin.ref)]
        return sum(self.remove(pin_id) for pin_id in lost)

    def _pages(self) -> frozenset[int]:
        return frozenset().union(*(pin.pages for pin in self._pins.values()))

    def _bytes(self, pages: frozenset[int], num_states: int) -> int:
        return len(pages) * self._layout.page_bytes + num_states * self._layout.state_bytes

    def _check(self, num_pages: int, num_pins: int) -> None:
        size = num_pages * self._layout.page_bytes + num_pins * self._layout.state_bytes
        if size > self.budget_bytes:
            message = f"pins would hold {format_size(size)}; pin_bytes allows {format_size(self.budget_bytes)}"
        elif num_pages > self._most_pages or num_pins > self._most_pins:
            message = (
                f"pins would hold {num_pages} pages and {num_pins} snapshots; at most {self._most_pages} and {self._most_pins} may"
            )
        else:
            return
        raise RequestError(f"{message}. Remove a pin with DELETE /cache/pin/{{id}} first, or pin less.", code="pin_budget")
