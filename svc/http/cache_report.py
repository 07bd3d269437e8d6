"""Why prompt tokens were evaluated, as clients are told: counts, and the text around the first difference."""

from collections.abc import Sequence

from msgspec import UNSET

from svc.http.schema import CacheReportOut, DifferenceOut
from svc.http.text.tokenizer import Tokenizer
from svc.slots.events import CacheReport

BEFORE, BEHIND = 8, 12  # tokens shown of the prompt, around the first that differs

EVERYBODY = "*"
"""The owner of texts where the operator lets everybody see everything (`slots_prompt_text`). No key has that name."""


def owner_of(key_name: str, *, all_shown: bool) -> str:
    """Who may be shown what is kept of a request's text: the holder of its key, if it is named. Keys without a name, and requests
    without a key, may be anybody's."""
    return key_name or (EVERYBODY if all_shown else "")


def report_out(cache: CacheReport, prompt: Sequence[int], cached_tokens: int, tokenizer: Tokenizer) -> CacheReportOut:
    """With text: only for whom the prompt belongs to."""
    told = counts_out(cache, len(prompt), cached_tokens)
    difference = cache.difference
    if difference is not None:
        at = difference.position
        told.difference = DifferenceOut(
            at,
            before=tokenizer.decode_known(prompt[max(at - BEFORE, 0) : at]),
            prompt=tokenizer.decode_known(prompt[at : at + BEHIND]),
            cached=tokenizer.decode_known(difference.cached) if difference.cached else None,
        )
    return told


def counts_out(cache: CacheReport, num_prompt: int, cached_tokens: int) -> CacheReportOut:
    """The same without text."""
    difference = None if cache.difference is None else DifferenceOut(cache.difference.position)
    evaluated = num_prompt - cached_tokens
    where = (cache.matched_tokens, cache.resumed_at, evaluated)
    return CacheReportOut(*where, cache.reason, cache.tier or None, difference, cache.lossy or UNSET)
