"""What a request's stream carries: progress of its prompt if it asks, token events, then exactly one end."""

import enum
from dataclasses import dataclass
from typing import NamedTuple


class FinishReason(enum.Enum):
    """Why an answer ended."""

    STOP = "stop"  # a stop token id, or on_token said so (a stop string)
    LENGTH = "length"  # max_tokens, or the context is full
    CANCELLED = "cancelled"  # the client left
    ERROR = "error"  # see Finished.error


class TokenText(NamedTuple):
    """What `Request.on_token` makes of a token."""

    text: object  # for `TokenEvent.text`
    ends: bool  # the answer ends with this token


Top = tuple[tuple[int, float], ...]


class TokenEvent(NamedTuple):
    """One token of the answer, in order. A stop token id is not sent; a token that completes a stop string is."""

    token: int
    logprob: float  # 0 of one that had to come: nothing was drawn
    top: Top
    text: object = None  # what `Request.on_token` made of it; never looked at here


class Progress(NamedTuple):
    """How far the prompt is, for a request that asks. Comes after each of its steps; the first is where it began."""

    total: int  # tokens of the prompt
    cached: int  # of them, never evaluated for this request
    processed: int  # evaluated or cached
    elapsed_s: float  # since it was admitted; 0 in the first


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request, exact: prompt_tokens - cached_tokens prompt tokens were truly evaluated for it."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    draft_tokens: int = 0  # proposed and evaluated
    accepted_draft_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds on the engine's clock: queued until admitted, admitted until the first token, first token until the end."""

    queue_s: float
    prefill_s: float
    decode_s: float


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token of a prompt at which known text goes on with another one."""

    position: int
    cached: tuple[int, ...] = ()  # the first of the other tokens there; none unless they are known to be the asker's own


@dataclass(frozen=True, slots=True)
class CacheReport:
    """Why tokens were evaluated: what matched, where it resumed, and the reason for the rest."""

    matched_tokens: int  # longest prefix known to the tree when the request was first admitted
    resumed_at: int
    reason: str  # one of usage_report.REASONS; empty when it was never admitted
    tier: str = ""  # what it resumed from: one of usage_report.TIERS; empty where nothing was reused
    difference: Difference | None = None  # None where nothing known goes on otherwise
    lossy: bool = False  # it has gone on from a state that a compact snapshot had rounded


NOT_ADMITTED = CacheReport(0, 0, "")


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of every stream."""

    reason: FinishReason
    usage: Usage
    timing: Timing
    cache: CacheReport
    error: str | None = None


Event = TokenEvent | Progress | Finished
