"""What an answer reports: how much was reused and why, how long things took, how it ended."""

from dataclasses import replace

from svc.compute.backend import NO_TOKEN, NOT_FINITE
from svc.errors import RequestError, context_exceeded
from svc.memory.other_text import other_text
from svc.memory.sequence_cache import Lease, ResumePoint
from svc.slots.batch import PlannedChunk
from svc.slots.events import CacheReport, Difference, Event, Finished, FinishReason, Progress, Timing, Usage
from svc.slots.request import JoinWait, Sequence

REASONS = {
    "full": "every prompt token was known",
    "joined": "resumed from what another request was evaluating",
    "new_text": "everything known was reused; the rest was new",
    "no_snapshot": "known text behind the deepest snapshot had to be evaluated again",
    "no_match": "nothing of the prompt was known",
    "cache_off": "the request asked not to use the cache",
}
"""Why prompt tokens had to be evaluated."""

TIERS = ("device", "host", "disk")
"""Where what a request resumes from was when it came: the slowest of them that it had to wait for."""

MAX_SHOWN_TOKENS = 12  # of the other text at a difference

SAMPLING_FAILURES = {
    NOT_FINITE: "the model's output was not finite (NaN or infinity)",
    NO_TOKEN: "the grammar of the answer left no token to go on with",
}
"""Why an answer has no next token."""


def progress(sequence: Sequence, position: int, now: float) -> list[tuple[Sequence, Event]]:
    """The events that tell how far a prompt is, once `position` tokens are there. Nothing is told twice, as
    when it comes back from a preemption."""
    if not sequence.request.progress:
        return []
    total, cached = sequence.num_prompt, sequence.cached_tokens or 0
    elapsed_s = now - (now if sequence.admitted_s is None else sequence.admitted_s)
    events: list[tuple[Sequence, Event]] = []
    if sequence.told_tokens < 0:
        sequence.told_tokens = cached
        events.append((sequence, Progress(total, cached, cached, 0.0)))
    if (processed := min(position, total)) > sequence.told_tokens:
        sequence.told_tokens = processed
        events.append((sequence, Progress(total, cached, processed, elapsed_s)))
    return events


def progress_of_step(advanced: list[PlannedChunk], now: float) -> list[tuple[Sequence, Event]]:
    """`progress` of the prompts that a step has advanced."""
    return [told for chunk in advanced if chunk.slot.active for told in progress(chunk.slot.sequence, chunk.end, now)]


def first_token(sequence: Sequence, now: float) -> list[tuple[Sequence, Event]]:
    """Notes when it came, and tells of a prompt that no step had to evaluate."""
    sequence.first_token_s = now
    return progress(sequence, sequence.num_prompt, now)


def answer_tokens(prompt_tokens: int, max_tokens: int | None, context_tokens: int) -> int:
    """Tokens an answer to a prompt of that length may have, at most `max_tokens`. RequestError when the prompt does not fit.

    The last token of an answer is never evaluated, so a prompt as long as the context still gets one.
    """
    if prompt_tokens == 0:
        raise RequestError("the prompt is empty", param="prompt", code="invalid_prompt")
    if prompt_tokens > context_tokens:
        raise context_exceeded(context_tokens, "the prompt", prompt_tokens, param="prompt")
    room = context_tokens - prompt_tokens + 1
    return room if max_tokens is None else min(max_tokens, room)


def note_admission(sequence: Sequence, resume: ResumePoint, lease: Lease, now: float, source: JoinWait | None) -> None:
    """It has a slot. `source`: what it waited for and resumes from."""
    start = lease.start
    known_prompt = min(start, sequence.num_prompt)
    if sequence.cached_tokens is None:
        sequence.admitted_s = now
        sequence.cached_tokens = known_prompt
        joined = source is not None and source.leader is not None
        sequence.cache = CacheReport(
            min(resume.matched_tokens, sequence.num_prompt),
            start,
            _reason(sequence, resume, joined=joined),
            _tier(lease, source),
            _difference(sequence, resume),
        )
    else:  # back after preemption: only tokens that were never evaluated for it count as cached
        sequence.cached_tokens = min(sequence.cached_tokens, known_prompt)


def finished(sequence: Sequence, reason: FinishReason, now: float, error: str | None) -> Finished:
    """The end of its answer."""
    admitted = now if sequence.admitted_s is None else sequence.admitted_s
    first = now if sequence.first_token_s is None else sequence.first_token_s
    speculation = sequence.speculation
    drafts = (0, 0) if speculation is None else (speculation.drafted, speculation.accepted)
    return Finished(
        reason=reason,
        usage=Usage(sequence.num_prompt, sequence.cached_tokens or 0, sequence.generated, *drafts),
        timing=Timing(queue_s=admitted - sequence.arrival_s, prefill_s=first - admitted, decode_s=now - first),
        cache=replace(sequence.cache, lossy=sequence.lossy),
        error=error,
    )


def _tier(lease: Lease, source: JoinWait | None) -> str:
    """One of TIERS, or nothing."""
    if not lease.start:
        return ""
    if source is not None and source.leader is None:
        return "disk"
    return "device" if lease.ready else "host"


def _difference(sequence: Sequence, resume: ResumePoint) -> Difference | None:
    if resume.walk is None or resume.matched_tokens >= sequence.num_prompt:
        return None
    other = other_text(resume.walk, sequence.request.owner, MAX_SHOWN_TOKENS)
    return None if other is None else Difference(resume.matched_tokens, other)


def _reason(sequence: Sequence, resume: ResumePoint, *, joined: bool) -> str:
    """A key of REASONS."""
    if not sequence.request.use_cache:
        return "cache_off"
    if resume.position >= sequence.num_prompt:
        return "full"
    if joined:
        return "joined"
    if resume.matched_tokens == 0:
        return "no_match"
    if resume.position < resume.matched_tokens:
        return "no_snapshot"
    return "new_text"
