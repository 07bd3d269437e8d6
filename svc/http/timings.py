"""How long answers took, in llama-server's words."""

from svc.http.schema import TimingsOut
from svc.slots.events import Finished


def timings_of(finished: Finished) -> TimingsOut:
    """Of one answer."""
    usage, timing = finished.usage, finished.timing
    evaluated = usage.prompt_tokens - usage.cached_tokens
    return timings(usage.cached_tokens, evaluated, timing.prefill_s, usage.completion_tokens, timing.decode_s)


def timings(cached: int, evaluated: int, prefill_s: float, generated: int, decode_s: float) -> TimingsOut:
    return TimingsOut(
        cache_n=cached,
        prompt_n=evaluated,
        prompt_ms=_ms(prefill_s),
        prompt_per_token_ms=_ms(prefill_s / evaluated) if evaluated else 0.0,
        prompt_per_second=round(evaluated / prefill_s, 3) if prefill_s else 0.0,
        predicted_n=generated,
        predicted_ms=_ms(decode_s),
        predicted_per_token_ms=_ms(decode_s / generated) if generated else 0.0,
        predicted_per_second=round(generated / decode_s, 3) if decode_s else 0.0,
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
