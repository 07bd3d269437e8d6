"""`samplers`: which steps of sampling run, and in what order, as llama-server's clients say it.

The order here is fixed. Clients that always send llama-server's default order (SillyTavern does) ask for nothing by it.
"""

from dataclasses import replace
from typing import Any

from svc.compute.sampling.params import SamplingParams
from svc.errors import RequestError
from svc.http.fields import shown, unsupported

SAMPLERS = ("penalties", "temperature", "top_k", "top_p", "min_p")  # in the order in which they run
MAX_NAMES = 64
_DEFAULT_ORDER = ("penalties", "top_k", "top_p", "min_p", "temperature")  # llama-server's, of those that exist here
_OTHER_NAMES = {"temp": "temperature", "top-k": "top_k", "top-p": "top_p", "min-p": "min_p", "nucleus": "top_p"}
_LETTERS = {"e": "penalties", "t": "temperature", "k": "top_k", "p": "top_p", "m": "min_p", "i": "infill"}

_OFF: dict[str, dict[str, Any]] = {
    "penalties": {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "temperature": {"temperature": 1.0},
    "top_k": {"top_k": 0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
}


def enabled_samplers(value: str | list[str] | None) -> tuple[str, ...]:
    """The samplers to run, of SAMPLERS and in its order; None is all. RequestError for another order.

    `value` is a list of names, or a text with a letter for each. A name of a sampler that does not exist here counts for nothing:
    the fields that would use it are refused.
    """
    if value is None:
        return SAMPLERS
    if len(value) > MAX_NAMES:
        raise RequestError(f"samplers has {len(value)} names; at most {MAX_NAMES} are allowed.", param="samplers")
    if isinstance(value, str):
        names = [_LETTERS.get(letter, letter) for letter in value]
    else:
        names = [_OTHER_NAMES.get(name, name) for name in value]
    asked = [name for name in dict.fromkeys(names) if name in SAMPLERS]
    if "infill" in names or not any(asked == [name for name in order if name in asked] for order in (SAMPLERS, _DEFAULT_ORDER)):
        raise unsupported("samplers", shown(value))
    return tuple(name for name in SAMPLERS if name in asked)


def with_only(params: SamplingParams, samplers: tuple[str, ...]) -> SamplingParams:
    """`params` with the samplers that are not among `samplers` turned off."""
    for name in SAMPLERS:
        if name not in samplers:
            params = replace(params, **_OFF[name])
    return params
