"""What was asked (`Request`, frozen) and what has been produced so far (`Sequence`, survives preemption)."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from svc.compute.sampling.params import SamplingParams
from svc.memory.placement import Boundary, BoundaryKind
from svc.memory.snapshot_ring import SnapshotRef

__all__ = ["Boundary", "BoundaryKind", "JoinWait", "Request", "SamplingParams", "Sequence"]


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One answer wanted: token ids in, token ids out. `n > 1` is n requests that differ in `choice`.

    `on_token` is the text side's look at every sampled token, called synchronously in `commit` before the next step is
    planned; it returns True when the answer must end there (a stop string). It must not raise or block.
    """

    id: str
    prompt: tuple[int, ...]  # at least one token
    max_tokens: int  # 0: evaluate the prompt only (warm the cache)
    params: SamplingParams
    choice: int = 0
    boundaries: tuple[Boundary, ...] = ()
    stop_ids: frozenset[int] = frozenset()  # end the answer; the stop token itself is not part of it
    banned: tuple[int, ...] = ()  # never sampled (ignore_eos)
    use_cache: bool = True  # False: match nothing and join nobody; what is evaluated may still be kept
    priority: int = 0  # higher goes first
    on_token: Callable[[int], bool] | None = None


@dataclass(slots=True, eq=False)
class JoinWait:
    """A waiting sequence that will resume from a capture which another one, ahead on the same prefix, is about to make."""

    leader: "Sequence"
    position: int
    pinned: SnapshotRef | None = None  # the capture, once published: held until the waiter has resumed


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens so far and the counts an answer reports. Owner: the scheduler; one per request, until its Finished event."""

    request: Request
    order: int  # arrival number
    arrival_s: float
    tokens: list[int]  # prompt, then generated
    array: NDArray[np.int32]  # the prompt, for fast comparison
    generated: int = 0
    cached_tokens: int | None = None  # prompt tokens never evaluated for this request; None before it is seated
    matched_tokens: int = 0
    resumed_at: int = 0
    reason: str = ""
    join: JoinWait | None = None
    prefix_with: dict[int, int] = field(default_factory=dict)  # other sequence's order -> common prefix, compared once
    joined: bool = False
    finished: bool = False
    seated_s: float | None = None
    first_token_s: float | None = None

    @classmethod
    def of(cls, request: Request, order: int, now: float) -> "Sequence":
        return cls(request, order, now, list(request.prompt), np.array(request.prompt, np.int32))

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt)

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key: who goes first."""
        return (-self.request.priority, self.order)

    def common_prefix(self, other: "Sequence") -> int:
        """Tokens both prompts begin with; compared once per pair."""
        known = self.prefix_with.get(other.order)
        if known is None:
            length = min(len(self.array), len(other.array))
            differ = np.flatnonzero(self.array[:length] != other.array[:length])
            known = self.prefix_with[other.order] = int(differ[0]) if len(differ) else length
        return known

    def __repr__(self) -> str:
        return f"<Sequence {self.request.id}/{self.request.choice}: {self.num_prompt} + {self.generated} tokens>"
