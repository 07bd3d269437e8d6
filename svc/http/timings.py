"""How long answers took, in llama-server's words."""

from msgspec import UNSET

from svc.http.answer import Answer
from svc.http.timings_schema import ProgressOut, TimingsOut
from svc.slots.events import Progress


def timings_of(answer: Answer) -> TimingsOut:
    """Of one answer that has ended."""
    assert answer.finished is not None
    usage, timing = answer.finished.usage, answer.finished.timing
    evaluated = usage.prompt_tokens - usage.cached_tokens
    intervals = answer.num_intervals
    drafts = usage.draft_tokens, usage.accepted_draft_tokens
    return timings(usage.cached_tokens, evaluated, timing.prefill_s, usage.completion_tokens, intervals, timing.decode_s, drafts)


def timings_so_far(answer: Answer, at: Progress | None = None) -> TimingsOut:
    """Of one that is being made; `at`: as they were when its prompt was that far."""
    progress, generated = (at, 0) if at is not None else (answer.latest_progress, answer.num_tokens)
    if progress is None:
        return timings(0, 0, 0.0, generated, max(0, generated - 1), answer.decode_s)
    decode_s = answer.decode_s if generated else 0.0
    evaluated = progress.processed - progress.cached
    return timings(progress.cached, evaluated, progress.elapsed_s, generated, max(0, generated - 1), decode_s)


def progress_of(progress: Progress) -> ProgressOut:
    return ProgressOut(progress.total, progress.cached, progress.processed, round(progress.elapsed_s * 1000))


def timings(
    cached: int, evaluated: int, prefill_s: float, generated: int, intervals: int, decode_s: float, drafts: tuple[int, int] = (0, 0)
) -> TimingsOut:
    """`intervals` between tokens took `decode_s` together. One token alone has none, and its rates are 0. `drafts`: (evaluated,
    right)."""
    return TimingsOut(
        cache_n=cached,
        prompt_n=evaluated,
        prompt_ms=_ms(prefill_s),
        prompt_per_token_ms=_ms(prefill_s / evaluated) if evaluated else 0.0,
        prompt_per_second=evaluated / prefill_s if prefill_s else 0.0,
        predicted_n=generated,
        predicted_ms=_ms(decode_s),
        predicted_per_token_ms=_ms(decode_s / intervals) if intervals else 0.0,
        predicted_per_second=intervals / decode_s if decode_s else 0.0,
        draft_n=drafts[0] or UNSET,
        draft_n_accepted=drafts[1] if drafts[0] else UNSET,
    )


def _ms(seconds: float) -> float:
    return seconds * 1000
