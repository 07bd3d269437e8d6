"""What was asked (`Request`, frozen) and what has been produced so far (`Sequence`, survives preemption)."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from svc.compute.sampling.params import SamplingParams
from svc.memory.lease import ResumePoint
from svc.memory.placement import Boundary, BoundaryKind
from svc.memory.snapshot_ring import SnapshotRef
from svc.memory.tokens import TokenIds, common_prefix
from svc.slots.events import NOT_ADMITTED, CacheReport, TokenText
from svc.slots.speculation import DraftLimits, Speculation

__all__ = ["Boundary", "BoundaryKind", "JoinWait", "Request", "SamplingParams", "Sequence"]


MAX_ROOM = 4_096  # tokens of an answer for which there is memory from the beginning
MAX_THIRDS = 8  # other sequences looked up before two long prompts are compared


class Constraint(Protocol):
    """What the tokens of one answer must obey: a grammar. Each answer has its own, which lives as long, preemption included."""

    def accept(self, token: int) -> None:
        """The answer's next token. Called in `commit`: it must not raise or take long."""

    def forced_after(self, token: int) -> "list[int]":
        """Tokens that must follow `token`, if that is the answer's next, as far as they are certain. Called on the compute thread,
        before `accept` of it."""

    def mask(self) -> NDArray[np.uint32] | None:
        """The tokens that may come next, as in `Sample.mask`; None: all. Called on the compute thread, never while `accept` is."""

    def fork(self) -> "Constraint":
        """A copy that goes its own way: behind drafts, which may be wrong. Called as `mask` is."""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One answer wanted: token ids in, token ids out. `n > 1` is n requests that differ in `choice`.

    `on_token` makes text of every sampled token, synchronously in `commit`, and says whether the answer ends there (a stop string).
    It must not raise or block. No step with a token is planned before `on_token` has seen it, unless `text_ends` is False: then it
    is expected not to end the answer.
    """

    id: str
    prompt: TokenIds  # at least one token; long ones not as a tuple: the garbage collector would look at every token
    max_tokens: int  # 0: evaluate the prompt only (warm the cache)
    params: SamplingParams
    choice: int = 0
    boundaries: tuple[Boundary, ...] = ()
    stop_ids: frozenset[int] = frozenset()  # end the answer; the stop token itself is not part of it
    banned: tuple[int, ...] = ()  # never sampled (ignore_eos)
    min_tokens: int = 0  # no stop id is sampled before the answer has that many tokens
    use_cache: bool = True  # False: match nothing and join nobody; what is evaluated may still be kept
    priority: int = 0  # higher goes first
    tenant: str = ""  # whose request it is: tenants take turns in the queue
    queue_share: float = 1.0  # of the places in the queue, that its tenant may have
    owner: str = ""  # who may be shown what is kept of its text; empty: nobody
    space: str = ""  # only requests of one space share what is known; all but the common one, "", are in memory only
    on_token: Callable[[int], TokenText] | None = None
    text_ends: bool = True
    slot: int | None = None  # the number under which it can be saved afterwards; None: that of the slot it gets
    progress: bool = False  # whether its stream has Progress events
    constraint: Constraint | None = None
    drafts: DraftLimits | None = None  # None: as the server does it

    @property
    def needs_known_tokens(self) -> bool:
        """Whether a token must be known before the next is planned: `on_token` may end the answer there, or a constraint or the
        sampling decides by it what may come."""
        return (self.on_token is not None and self.text_ends) or self.constraint is not None or self.params.learns


@dataclass(slots=True, eq=False)
class JoinWait:
    """A waiting sequence will resume from a capture that another one, ahead on the same prefix, is about to make, or from a state
    that has come from the disk."""

    leader: "Sequence | None"  # None: the disk
    position: int
    pinned: SnapshotRef | None = None  # the capture, once published: held until the waiter has resumed


class TokenBuffer:
    """Token ids that grow at the end, seen as one int32 array without converting: prompts are long and looked at often."""

    def __init__(self, tokens: TokenIds, room: int = 0) -> None:
        """`room`: for how many more there is memory at once, so that no step copies the whole for them."""
        self._buffer = np.empty(len(tokens) + min(room, MAX_ROOM), np.int32)
        self._buffer[: len(tokens)] = tokens
        self.length = len(tokens)

    @property
    def array(self) -> NDArray[np.int32]:
        """All tokens so far; a view: do not keep it across an append."""
        return self._buffer[: self.length]

    def append(self, token: int) -> None:
        length = self.length
        if length == len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.empty(max(64, length // 8), np.int32)])
        self._buffer[length] = token
        self.length = length + 1


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens so far and the counts an answer reports. Owner: the scheduler; one per request, until its Finished event."""

    request: Request
    order: int  # arrival number
    arrival_s: float
    buffer: TokenBuffer  # prompt, then generated
    full_at: int  # tokens in all, prompt included, with which the answer has all that it may have
    generated: int = 0
    cached_tokens: int | None = None  # prompt tokens never evaluated for this request; None before it is admitted
    cache: CacheReport = NOT_ADMITTED  # of its first admission
    lossy: bool = False  # see CacheReport; after any admission
    join: JoinWait | None = None
    fetching: bool = False  # whether a state of its prompt is on its way from the disk
    penalized: bool = False  # whether the choice of a token depends on earlier ones
    learned: tuple[float, ...] = ()  # `Sampled.learned` of its last token
    banned_at_first: tuple[int, ...] = ()  # before min_tokens: the stop ids too
    prefix_with: dict[int, int] = field(default_factory=dict)  # other sequence's order -> common prefix, compared once
    missed_join: int = 0  # a join point whose capture was skipped: not waited for again
    overtaken: int = 0  # sequences that were admitted past it while it did not fit
    preempted_at: int = 0  # the furthest position at which it was preempted
    num_preemptions: int = 0
    resume: ResumePoint | None = None  # as last matched; valid while the cache's version is the same
    speculation: Speculation | None = None  # None: it has no drafts
    row: int = -1  # of its slot, the last one if it had several
    finished: bool = False
    told_tokens: int = -1  # of the prompt, in the last Progress event
    admitted_s: float | None = None
    first_token_s: float | None = None

    @classmethod
    def of(cls, request: Request, order: int, now: float, context_tokens: int) -> "Sequence":
        """`context_tokens`: most that may be evaluated; the last token of an answer never is."""
        full_at = min(len(request.prompt) + request.max_tokens, context_tokens + 1)
        early = request.banned + tuple(request.stop_ids) if request.min_tokens else request.banned
        buffer, penalized = TokenBuffer(request.prompt, request.max_tokens), request.params.needs_history
        return cls(request, order, now, buffer, full_at, penalized=penalized, banned_at_first=early)

    def banned_after(self, generated: int) -> tuple[int, ...]:
        """Tokens banned next, given the number generated so far."""
        return self.banned_at_first if generated < self.request.min_tokens else self.request.banned

    @property
    def tokens(self) -> NDArray[np.int32]:
        """Prompt and generated tokens, int32 `[n]`; a view that is good until the next token."""
        return self.buffer.array

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt)

    @property
    def had_slot(self) -> bool:
        """Whether it was admitted before."""
        return self.admitted_s is not None

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key of slots: who goes first."""
        return (-self.request.priority, self.order)

    def common_prefix(self, other: "Sequence") -> int:
        """Tokens both prompts begin with, none in different spaces; compared once per pair, and only where a third sequence does
        not tell."""
        if self.request.space != other.request.space:
            return 0
        known = self.prefix_with.get(other.order)
        if known is None:
            known = self._compare(other)
            self.prefix_with[other.order] = other.prefix_with[self.order] = known
        return known

    def _compare(self, other: "Sequence") -> int:
        start = 0
        for order in itertools.islice(reversed(self.prefix_with), MAX_THIRDS):
            mine, theirs = self.prefix_with[order], other.prefix_with.get(order)
            if theirs is not None and mine != theirs:
                return min(mine, theirs)
            start = max(start, theirs or 0)
        return start + common_prefix(self.tokens[start : self.num_prompt], other.tokens[start : other.num_prompt])

    def common_tokens(self, other: "Sequence", limit: int) -> int:
        """Tokens both begin with, answers included; exact up to `limit`, more means at least that."""
        common = self.common_prefix(other)
        if common >= limit or common < min(self.num_prompt, other.num_prompt):
            return common
        length = min(limit, len(self.tokens), len(other.tokens))
        return common + common_prefix(self.tokens[common:length], other.tokens[common:length])

    def __repr__(self) -> str:
        return f"<Sequence {self.request.id}/{self.request.choice}: {self.num_prompt} + {self.generated} tokens>"
