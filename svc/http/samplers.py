"""The order of sampling steps, and those beyond the usual ones, as llama-server's clients ask for them.

The usual chain (`svc/compute/sampling/chain.py`) runs on every device. `with_steps` leaves a request to it where it does what is
asked for, and has the steps taken one by one where it does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from svc.compute.sampling.params import SamplingParams
from svc.compute.sampling.steps import USUAL_ORDER, AdaptiveP, Breakers, Dry, Mirostat, SamplingSteps, Step
from svc.errors import RequestError
from svc.http.fields import integer, number, same, shown
from svc.http.schema import AnswerIn
from svc.http.text.tokenizer import Tokenizer

ADAPTIVE_P = "adaptive_p"
SAMPLERS = (*(step.value for step in USUAL_ORDER), ADAPTIVE_P)  # in the order in which they run unless a request has another
MAX_NAMES = 64
MAX_BREAKERS = 32
MAX_BREAKER_CHARS = 256  # of all breakers of a request: the vocabulary is searched for each beginning of each
MAX_TEXT_CHARS = 4096  # of breakers that are sent as one text
DEFAULT_BREAKERS = ("\n", ":", '"', "*")
MAX_DECAY = 0.99
_OTHER_NAMES = {"temp": "temperature", "nucleus": "top_p", "typical": "typ_p", "typical_p": "typ_p", "typ": "typ_p"}
_LETTERS = {
    "e": "penalties", "d": "dry", "s": "top_n_sigma", "k": "top_k", "y": "typ_p", "p": "top_p", "m": "min_p", "x": "xtc",
    "t": "temperature", "a": ADAPTIVE_P, "i": "infill",
}  # fmt: skip

_OFF: dict[Step, dict[str, Any]] = {
    Step.PENALTIES: {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    Step.TEMPERATURE: {"temperature": 1.0},
    Step.TOP_K: {"top_k": 0},
    Step.TOP_P: {"top_p": 1.0},
    Step.MIN_P: {"min_p": 0.0},
}
# Of the usual chain; the temperature does not change which are the k best.
_RANK = {Step.PENALTIES: 0, Step.TEMPERATURE: 1, Step.TOP_K: 1, Step.TOP_P: 2, Step.MIN_P: 3}


@dataclass(frozen=True, slots=True)
class SamplerFields:
    """What a request says of its sampling steps, under llama-server's names. The defaults are llama-server's too."""

    samplers: tuple[str, ...] = SAMPLERS  # those that run, in this order
    typical_p: float = 1.0
    top_n_sigma: float = 0.0  # 0: off
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = DEFAULT_BREAKERS
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0  # below 0: off
    adaptive_decay: float = 0.9
    min_keep: int = 0
    post_sampling_probs: bool = False


NO_FIELDS = SamplerFields()


def sampler_fields(body: AnswerIn, post_sampling_probs: bool) -> SamplerFields:
    """RequestError names the field at fault."""
    none = NO_FIELDS
    multiplier = number("dry_multiplier", body.dry_multiplier, none.dry_multiplier, 0.0, 100.0)
    return SamplerFields(
        samplers=enabled_samplers(body.samplers),
        typical_p=number("typical_p", same(body, "typical_p", "typ_p", "typical"), none.typical_p, 0.0, 1.0),
        top_n_sigma=max(0.0, number("top_n_sigma", same(body, "top_n_sigma", "nsigma"), none.top_n_sigma, -1e9, 1e9)),
        xtc_probability=number("xtc_probability", body.xtc_probability, none.xtc_probability, 0.0, 1.0),
        xtc_threshold=number("xtc_threshold", body.xtc_threshold, none.xtc_threshold, 0.0, 1.0),
        dynatemp_range=number("dynatemp_range", body.dynatemp_range, none.dynatemp_range, 0.0, 100.0),
        dynatemp_exponent=number("dynatemp_exponent", body.dynatemp_exponent, none.dynatemp_exponent, 0.0, 100.0),
        dry_multiplier=multiplier,
        dry_base=number("dry_base", body.dry_base, none.dry_base, 1.0 if multiplier else 0.0, 100.0),
        dry_allowed_length=integer("dry_allowed_length", body.dry_allowed_length, none.dry_allowed_length, 0, 2**31 - 1),
        dry_penalty_last_n=integer(
            "dry_penalty_last_n", same(body, "dry_penalty_last_n", "dry_range"), none.dry_penalty_last_n, -1, 2**31 - 1
        ),
        dry_sequence_breakers=_breakers(body.dry_sequence_breakers),
        mirostat=integer("mirostat", same(body, "mirostat", "mirostat_mode"), none.mirostat, 0, 2),
        mirostat_tau=number("mirostat_tau", body.mirostat_tau, none.mirostat_tau, 0.0, 100.0),
        mirostat_eta=number("mirostat_eta", body.mirostat_eta, none.mirostat_eta, 0.0, 100.0),
        adaptive_target=number("adaptive_target", body.adaptive_target, none.adaptive_target, -1e9, 1.0),
        adaptive_decay=min(MAX_DECAY, number("adaptive_decay", body.adaptive_decay, none.adaptive_decay, 0.0, 1.0)),
        min_keep=integer("min_keep", body.min_keep, none.min_keep, 0, 2**31 - 1),
        post_sampling_probs=post_sampling_probs,
    )


def set_dynamic_temperature(body: AnswerIn) -> None:
    """Lowest and highest temperature, as text-generation-webui's clients say them, become a temperature and `dynatemp_range`.

    The range counts if both are sent. `dynamic_temperature` false turns all of them off.
    """
    low = number("dynatemp_low", same(body, "dynatemp_low", "dynatemp_min"), 0.0, 0.0, 100.0)
    high = number("dynatemp_high", same(body, "dynatemp_high", "dynatemp_max"), 0.0, 0.0, 100.0)
    if low > high:
        raise RequestError(f"dynatemp_low is {low:g}, more than dynatemp_high ({high:g}).", param="dynatemp_low")
    if body.dynamic_temperature is False:
        body.dynatemp_range = None
    elif body.dynatemp_range is None and high > 0:
        body.temperature, body.dynatemp_range = (low + high) / 2, (high - low) / 2


def enabled_samplers(value: str | list[str] | None) -> tuple[str, ...]:
    """The samplers to run, in order; None is all in the usual one.

    `value` is a list of names, or a text with a letter for each. A name of a sampler that does not exist counts for nothing, and so
    does "infill", which llama.vim always names: llama-server's merges tokens that begin alike, behind the other samplers.
    """
    if value is None:
        return SAMPLERS
    if len(value) > MAX_NAMES:
        raise RequestError(f"samplers has {len(value)} names; at most {MAX_NAMES} are allowed.", param="samplers")
    names = [_LETTERS.get(letter, "") for letter in value] if isinstance(value, str) else [_name(name) for name in value]
    return tuple(name for name in dict.fromkeys(names) if name in SAMPLERS)


def _name(name: str) -> str:
    name = name.replace("-", "_")
    return _OTHER_NAMES.get(name, name)


def _breakers(value: str | list[str] | None) -> tuple[str, ...]:
    """A list of texts, or such a list as JSON in a text, as some clients send it."""
    name = "dry_sequence_breakers"
    if value is None:
        return DEFAULT_BREAKERS
    if isinstance(value, str):
        if len(value) > MAX_TEXT_CHARS:
            raise RequestError(f"{name} is longer than {MAX_TEXT_CHARS} characters.", param=name)
        try:
            value = msgspec.json.decode(value.encode(), type=list[str])
        except (msgspec.MsgspecError, RecursionError):
            raise RequestError(f"{name} must be a list of texts, not {shown(value)}.", param=name) from None
    if len(value) > MAX_BREAKERS:
        raise RequestError(f"{name} has {len(value)} texts; at most {MAX_BREAKERS} are allowed.", param=name)
    if sum(map(len, value)) > MAX_BREAKER_CHARS:
        message = f"{name} has texts of {sum(map(len, value))} characters; at most {MAX_BREAKER_CHARS} are allowed."
        raise RequestError(message, param=name)
    return tuple(dict.fromkeys(filter(None, value)))


def with_steps(params: SamplingParams, fields: SamplerFields, tokenizer: Tokenizer) -> SamplingParams:
    """`params` without the samplers that do not run, and with the steps that the usual chain does not take as asked."""
    order = tuple(Step(name) for name in fields.samplers if name != ADAPTIVE_P)
    params = with_only(params, order)
    steps = SamplingSteps(
        order=order,
        top_n_sigma=fields.top_n_sigma if Step.TOP_N_SIGMA in order else 0.0,
        typical_p=fields.typical_p if Step.TYPICAL_P in order else 1.0,
        xtc_probability=fields.xtc_probability if Step.XTC in order else 0.0,
        xtc_threshold=fields.xtc_threshold,
        dynatemp_range=fields.dynatemp_range if Step.TEMPERATURE in order else 0.0,
        dynatemp_exponent=fields.dynatemp_exponent,
        dry=_dry(fields, tokenizer) if Step.DRY in order else None,
        mirostat=Mirostat(fields.mirostat, fields.mirostat_tau, fields.mirostat_eta) if fields.mirostat else None,
        adaptive=_adaptive(fields),
        min_keep=max(1, fields.min_keep),
        post_sampling_probs=fields.post_sampling_probs and params.num_logprobs is not None,
    )
    is_needed = not _is_usual(order, params) or _without_details(steps) != SamplingSteps()
    return replace(params, steps=steps) if is_needed else params


def _without_details(steps: SamplingSteps) -> SamplingSteps:
    """With the defaults where a value means nothing by itself."""
    return replace(steps, order=USUAL_ORDER, xtc_threshold=NO_FIELDS.xtc_threshold, dynatemp_exponent=NO_FIELDS.dynatemp_exponent)


def with_only(params: SamplingParams, order: Sequence[Step]) -> SamplingParams:
    """`params` with the usual steps that are not in `order` turned off."""
    for step, off in _OFF.items():
        if step not in order:
            params = replace(params, **off)
    return params


def _is_usual(order: Sequence[Step], params: SamplingParams) -> bool:
    """Whether the usual chain does the same as the usual steps in that order."""
    greedy = params.temperature == 0  # the filters leave the best, which is all that counts
    runs = {
        Step.PENALTIES: params.penalizes,
        Step.TEMPERATURE: params.temperature != 1,
        Step.TOP_K: params.top_k > 0 and not greedy,
        Step.TOP_P: params.top_p < 1 and not greedy,
        Step.MIN_P: params.min_p > 0 and not greedy,
    }
    ranks = [_RANK[step] for step in order if runs.get(step)]
    return ranks == sorted(ranks)


def _dry(fields: SamplerFields, tokenizer: Tokenizer) -> Dry | None:
    if not fields.dry_multiplier or not fields.dry_penalty_last_n:
        return None
    texts = fields.dry_sequence_breakers
    breakers = tokenizer.breakers.find(texts) if texts else Breakers.none()
    return Dry(fields.dry_multiplier, fields.dry_base, fields.dry_allowed_length, fields.dry_penalty_last_n, breakers)


def _adaptive(fields: SamplerFields) -> AdaptiveP | None:
    if fields.adaptive_target < 0 or ADAPTIVE_P not in fields.samplers:
        return None
    return AdaptiveP(fields.adaptive_target, fields.adaptive_decay)
