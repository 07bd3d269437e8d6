"""How far a prompt is, and how long an answer took: a part of `schema.py`."""

from msgspec import UNSET, Struct, UnsetType


class TimingsOut(Struct):
    """llama-server's word for how long it took: prompt tokens evaluated (cache_n were not), then tokens generated."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int | UnsetType = UNSET  # tokens proposed and evaluated, where there were some
    draft_n_accepted: int | UnsetType = UNSET


class ProgressOut(Struct):
    """llama-server's word for how far a prompt is."""

    total: int
    cache: int
    processed: int
    time_ms: int
