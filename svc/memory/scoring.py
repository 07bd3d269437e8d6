"""Scores of what memory keeps: the lower one is evicted first. Eviction asks a `Scorer`, and tells it what becomes of snapshots.

The score of a snapshot is the work it would save, spread over its age:

    score = (work(position) - work(shallower)) / (RECENT_S + age_s)         all snapshots have the same size in bytes
    work(n) = n + n^2 / (2 * EVEN_TOKENS)                                    in units of one token's matrix work

`shallower` is the next shallower snapshot on its path (0 without one): what a resume would fall back to. The quadratic term is
attention, whose cost per token grows with the position and equals the rest of the model at about EVEN_TOKENS. Dividing by the
age estimates how soon it is used again: a snapshot used a minute ago is a minute from its next use. A leaf's pages are scored the
same way, per page.
"""

from typing import Protocol

from svc.memory.placement import WantedKind
from svc.memory.prefix_tree import Node
from svc.memory.tokens import TokenArray

EVEN_TOKENS = 32_768  # hybrids with one attention layer in four; only the order of candidates depends on it
RECENT_S = 10.0  # below this age all are equally fresh, so that a burst of requests is judged by work alone


class Scorer(Protocol):
    """Scores for one cache. Those of snapshots compare with those of captures; those of pages only with each other.

    `shallower`: the position that a resume would fall back to. `now`: seconds.
    """

    def capture(self, tokens: TokenArray, position: int, shallower: int, kind: WantedKind, now: float) -> float | None:
        """Of a state still to be captured, after tokens[:position]; None: not wanted, even where a snapshot is free."""

    def snapshot(self, node: Node, shallower: int, now: float) -> float:
        """Of the snapshot at the end of `node`."""

    def pages(self, node: Node, shallower: int, now: float) -> float:
        """Of the pages of `node`, whose loss takes what ends there."""

    def published(self, node: Node, tokens: TokenArray, kind: WantedKind, now: float) -> None:
        """The snapshot of `node`, after `tokens`, can be matched from now on."""

    def used(self, node: Node, now: float) -> None:
        """A request resumes at the snapshot of `node`."""

    def lost(self, snapshot_id: int) -> None:
        """A published snapshot is gone."""


def work(tokens: int) -> float:
    """Cost of evaluating positions [0, tokens)."""
    return tokens + tokens * tokens / (2 * EVEN_TOKENS)


def score(position: int, shallower: int, age_s: float) -> float:
    """Score of a resume point at `position` when the next best one is `shallower`."""
    return (work(position) - work(shallower)) / (RECENT_S + max(age_s, 0.0))


class WorkOverAge:
    """The score above."""

    def capture(self, tokens: TokenArray, position: int, shallower: int, kind: WantedKind, now: float) -> float | None:
        return score(position, shallower, 0.0)

    def snapshot(self, node: Node, shallower: int, now: float) -> float:
        return score(node.end, shallower, now - node.last_use)

    def pages(self, node: Node, shallower: int, now: float) -> float:
        return score(node.end, shallower, now - node.last_use) / max(len(node.pages), 1)

    def published(self, node: Node, tokens: TokenArray, kind: WantedKind, now: float) -> None: ...

    def used(self, node: Node, now: float) -> None: ...

    def lost(self, snapshot_id: int) -> None: ...
