"""Scores of what memory keeps: the lower one is evicted first. Eviction asks a `Scorer`, and tells it what becomes of snapshots."""

from dataclasses import dataclass
from typing import Protocol

from svc.memory.placement import WantedKind
from svc.memory.prefix_tree import Node
from svc.memory.tokens import TokenArray


class Scorer(Protocol):
    """Scores for one cache. Those of snapshots compare with those of captures; those of pages with those of snapshots, per page.

    `shallower`: the position that a resume would fall back to. `now`: seconds.
    """

    def capture(self, tokens: TokenArray, position: int, shallower: int, kind: WantedKind, now: float) -> float | None:
        """Of a state still to be captured, after tokens[:position]; None: not wanted, even where a snapshot is free."""

    def snapshot(self, node: Node, shallower: int, now: float) -> float:
        """Of the snapshot at the end of `node`."""

    def pages(self, node: Node, num_freed: int, shallower: int, now: float) -> float:
        """Of the pages of `node`, whose loss frees `num_freed` pages and takes what ends there."""

    def opened(self, node: Node | None, tokens: TokenArray, position: int, now: float) -> None:
        """A request with these tokens resumes at `position`: at the snapshot of `node`, if there is one."""

    def published(self, node: Node, tokens: TokenArray, kind: WantedKind, now: float) -> None:
        """The snapshot of `node`, after `tokens`, can be matched from now on."""

    def lost(self, snapshot_id: int, heir: int | None, now: float | None) -> None:
        """A published snapshot is gone. Its text resumes at the snapshot `heir` from now on, where there is one. `now`: None where
        it does not go for lack of memory, but because it is wrong or was replaced."""


@dataclass(frozen=True, slots=True)
class Work:
    """What it costs to evaluate positions [0, n), in units of one token's work besides attention over those before it.

    That attention grows with the position, and costs as much as all the rest at `even_tokens` (model/model_config.py).
    """

    even_tokens: float

    def between(self, start: int, end: int) -> float:
        """Of positions [start, end)."""
        return (end - start) * (1 + (start + end) / (2 * self.even_tokens))
