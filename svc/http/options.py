"""The options of an answer, checked: from a request body to `GenerationOptions`.

Every refusal names the field and the value (`fields.py` has the single checks).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from svc.compute.sampling.params import SamplingParams
from svc.errors import RequestError
from svc.http.cache_salt import cache_salt
from svc.http.fields import (
    bad_words,
    integer,
    last_n,
    logit_bias,
    number,
    seed,
    shown,
    stop_strings,
    stop_token_ids,
    token_count,
    top_k,
    unsupported,
)
from svc.http.samplers import NO_FIELDS, SamplerFields, sampler_fields, set_dynamic_temperature, with_steps
from svc.http.schema import ChatIn, CompletionIn, GenerationIn, NativeIn
from svc.http.text.tokenizer import Tokenizer
from svc.slots.speculation import DraftLimits

MAX_CHOICES = 16
MAX_LOGPROBS = 20
MAX_TEMPERATURE = 100.0
MAX_PENALTY = 100.0
MAX_INDENT = 2**16
LIMIT_NAMES = ("max_tokens", "n_predict", "num_predict", "max_new_tokens")  # of the answer's length: the first given counts
OTHER_NAMES = {
    "max_tokens": ("max_completion_tokens", *LIMIT_NAMES),
    "repeat_penalty": ("repeat_penalty", "repetition_penalty"),
    "typical_p": ("typical_p", "typ_p", "typical"),
}  # of fields that may have a default of the operator's
MAX_SLOT = 2**20  # more than any server has
MAX_DRAFTS = 2**20  # the same
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions; chat has none


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """Everything about the answers of one HTTP request except their prompts."""

    params: SamplingParams
    max_tokens: int | None  # None: until the context is full
    min_tokens: int = 0
    num_choices: int = 1
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()  # with the model's own end tokens, unless `ignore_eos`
    ignore_eos: bool = False
    banned: tuple[int, ...] = ()
    samplers: SamplerFields = NO_FIELDS  # as asked for; `params` has what comes of them
    max_predict_s: float = 0.0  # end at a time limit once a line is complete; 0: none
    min_indent: int = 0  # end at a line that is indented less
    use_cache: bool = True
    drafts: DraftLimits | None = None
    slot: int | None = None  # the number under which the sequence can be saved
    stream: bool = False
    include_usage: bool = False  # in a stream; a whole answer always has it
    return_token_ids: bool = False
    cache_report: bool = False
    cache_salt: str = ""  # only requests with the same one share what is known
    return_progress: bool = False  # in a stream: of the prompt
    timings_per_token: bool = False  # in a stream: with every event
    verbose: bool = False  # llama-server's whole form beside OpenAI's
    ping_s: float | None = None  # silence in a stream before a comment; None: as the operator wants it, 0: never

    def ending_with(self, tokens: frozenset[int]) -> "GenerationOptions":
        """The same with more tokens that end an answer, unless the request wants none of the model's own ones."""
        return self if self.ignore_eos else replace(self, stop_ids=self.stop_ids | tokens)

    @property
    def logprobs(self) -> bool:
        return self.params.num_logprobs is not None


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What fields that name tokens are checked against."""

    tokenizer: Tokenizer
    size: int  # of the model's output


@dataclass(frozen=True, slots=True)
class Defaults:
    """The values of fields that are not sent; each API has its own."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    penalize_prompt: bool = False


OPENAI = Defaults()
LLAMA = Defaults(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, penalize_prompt=True)
LLAMA_REPEAT_LAST_N = 64


def chat_options(body: ChatIn, vocabulary: Vocabulary, unsaid: Mapping[str, float]) -> GenerationOptions:
    """The options of a chat request; RequestError names the field. `unsaid`: the operator's values of fields that are not sent."""
    _fill_in(body, unsaid)
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs to be true.", param="top_logprobs")
    num_logprobs = integer("top_logprobs", body.top_logprobs, 0, 0, MAX_LOGPROBS) if body.logprobs else None
    num_logprobs = _at_least(num_logprobs, body)
    max_tokens = _limit(body, ("max_completion_tokens", *LIMIT_NAMES), None)
    return _options(body, vocabulary, OPENAI, num_logprobs, max_tokens)


def completion_options(body: CompletionIn, vocabulary: Vocabulary, unsaid: Mapping[str, float]) -> GenerationOptions:
    """The options of a completion request, as `chat_options`."""
    _fill_in(body, unsaid)
    num_logprobs = None if body.logprobs is None else integer("logprobs", body.logprobs, 0, 0, MAX_LOGPROBS)
    num_logprobs = _at_least(num_logprobs, body)
    if body.echo and num_logprobs is not None:
        raise RequestError("echo together with logprobs is not supported yet.", param="echo", code="unsupported_parameter")
    max_tokens = _limit(body, LIMIT_NAMES, DEFAULT_COMPLETION_TOKENS)
    options = _options(body, vocabulary, OPENAI, num_logprobs, max_tokens)
    if body.best_of is not None and body.best_of != options.num_choices:
        raise unsupported("best_of", json.dumps(body.best_of))
    return options


def native_options(body: NativeIn, vocabulary: Vocabulary, unsaid: Mapping[str, float]) -> GenerationOptions:
    """The options of llama-server's /completion, with its defaults, as `chat_options`.

    Where llama-server has more words for "off" than the others (any negative n_predict or temperature), so do we.
    """
    _fill_in(body, unsaid)
    body.temperature = max(0.0, body.temperature) if body.temperature is not None else None
    max_tokens = _limit(body, ("n_predict", *LIMIT_NAMES), None, negative_is_none=True)
    num_logprobs = _at_least(None, body)
    max_predict_ms = number("t_max_predict_ms", body.t_max_predict_ms, 0, -1, 1e9)
    min_indent = integer("n_indent", body.n_indent, 0, 0, MAX_INDENT)
    options = _options(body, vocabulary, LLAMA, num_logprobs, max_tokens, max_predict_ms)
    return replace(options, min_indent=min_indent)


def _fill_in(body: GenerationIn, unsaid: Mapping[str, float]) -> None:
    """Gives the body these values, as if the client had sent them, where it has the field under none of its names."""
    for name, value in unsaid.items():
        if all(getattr(body, other, None) is None for other in OTHER_NAMES.get(name, (name,))):
            setattr(body, name, value)


def _at_least(num_logprobs: int | None, body: GenerationIn) -> int | None:
    """`n_probs` is llama-server's way to ask for log probabilities, on every route; the larger number counts."""
    n_probs = integer("n_probs", body.n_probs, 0, 0, MAX_LOGPROBS)
    return max(n_probs, num_logprobs or 0) if n_probs else num_logprobs


def _limit(body: GenerationIn, names: tuple[str, ...], default: int | None, *, negative_is_none: bool = False) -> int | None:
    """The limit of tokens under the first of its names that is given."""
    for name in names:
        if (value := getattr(body, name)) is not None:
            return None if negative_is_none and value < 0 else token_count(name, value, default)
    return default


def _options(
    body: GenerationIn,
    vocabulary: Vocabulary,
    defaults: Defaults,
    num_logprobs: int | None,
    max_tokens: int | None,
    max_predict_ms: float = 0.0,
) -> GenerationOptions:
    biases, never = logit_bias(body.logit_bias, vocabulary.tokenizer, vocabulary.size)
    stop_ids = stop_token_ids(body.stop_token_ids or [], vocabulary.size)
    own_ends = vocabulary.tokenizer.eos_ids
    words = bad_words(body.bad_words, vocabulary.tokenizer)
    never |= {word[0] for word in words if len(word) == 1}
    banned = never | (own_ends - stop_ids) if body.ignore_eos else never
    set_dynamic_temperature(body)
    samplers = sampler_fields(body, post_sampling_probs=bool(body.post_sampling_probs))
    params = replace(_params(body, defaults, num_logprobs, biases), bad_words=tuple(word for word in words if len(word) > 1))
    options = GenerationOptions(
        params=with_steps(params, samplers, vocabulary.tokenizer),
        max_tokens=max_tokens,
        min_tokens=_min_tokens(body.min_tokens, max_tokens),
        num_choices=integer("n", body.n, 1, 1, MAX_CHOICES),
        stop=stop_strings(body.stop),
        stop_ids=stop_ids if body.ignore_eos else stop_ids | own_ends,
        ignore_eos=bool(body.ignore_eos),
        banned=tuple(sorted(banned)),
        samplers=samplers,
        max_predict_s=max(0.0, max_predict_ms / 1000),
        use_cache=body.cache_prompt is not False,
        slot=None if (slot := integer("id_slot", body.id_slot, -1, -1, MAX_SLOT)) < 0 else slot,
        drafts=_drafts(body),
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        return_token_ids=bool(body.return_token_ids),
        cache_report=bool(body.cache_report),
        cache_salt=cache_salt(body.cache_salt),
        return_progress=bool(body.return_progress),
        timings_per_token=bool(body.timings_per_token),
        verbose=bool(body.verbose),
        ping_s=_ping_s(body.sse_ping_interval),
    )
    ends = {word[-1] for word in options.params.bad_words}
    if len(banned | ends | (options.stop_ids if options.min_tokens else frozenset())) >= vocabulary.size:
        param = "bad_words" if words else "logit_bias"
        raise RequestError(f"{param} leaves no token that could be sampled.", param=param)
    return options


def _drafts(body: GenerationIn) -> DraftLimits | None:
    """None where the request says nothing. Which drafter is asked for makes no difference: there is one."""
    if all(
        value is None for value in (body.speculative_n_max, body.speculative_n_min, body.speculative_p_min, body.speculative_type)
    ):
        return None
    most = integer("speculative.n_max", body.speculative_n_max, MAX_DRAFTS, 0, MAX_DRAFTS)
    least = integer("speculative.n_min", body.speculative_n_min, 0, 0, MAX_DRAFTS)
    return DraftLimits(
        0 if body.speculative_type == "none" else most,
        least,
        number("speculative.p_min", body.speculative_p_min, 0.0, 0.0, 1.0),
    )


def _params(
    body: GenerationIn, defaults: Defaults, num_logprobs: int | None, biases: tuple[tuple[int, float], ...]
) -> SamplingParams:
    repetition, last = _repetition(body, defaults)
    return SamplingParams(
        temperature=number("temperature", body.temperature, defaults.temperature, 0.0, MAX_TEMPERATURE),
        top_k=top_k(body.top_k, defaults.top_k),
        top_p=number("top_p", body.top_p, defaults.top_p, 0.0, 1.0),
        min_p=number("min_p", body.min_p, defaults.min_p, 0.0, 1.0),
        seed=seed(body.seed),
        num_logprobs=num_logprobs,
        logit_bias=biases,
        repetition_penalty=repetition,
        repeat_last_n=last,
        presence_penalty=number("presence_penalty", body.presence_penalty, 0.0, -MAX_PENALTY, MAX_PENALTY),
        frequency_penalty=number("frequency_penalty", body.frequency_penalty, 0.0, -MAX_PENALTY, MAX_PENALTY),
        penalize_prompt=defaults.penalize_prompt,
    )


def _repetition(body: GenerationIn, defaults: Defaults) -> tuple[float, int]:
    """(penalty, window). vLLM's `repetition_penalty` looks at everything, llama.cpp's `repeat_penalty` at the last 64 tokens."""
    if body.repetition_penalty is not None and body.repeat_penalty is not None and body.repetition_penalty != body.repeat_penalty:
        message = f"repeat_penalty ({shown(body.repeat_penalty)}) is another name of repetition_penalty, which has another value."
        raise RequestError(message, param="repeat_penalty")
    name = "repeat_penalty" if body.repetition_penalty is None else "repetition_penalty"
    penalty = number(name, getattr(body, name), 1.0, 1 / MAX_PENALTY, MAX_PENALTY)
    llama = defaults is LLAMA or body.repetition_penalty is None
    return penalty, last_n(body.repeat_last_n, LLAMA_REPEAT_LAST_N if llama else -1)


def _ping_s(value: float | None) -> float | None:
    """-1 is never, as llama-server has it; 0 is too."""
    return None if value is None else max(0.0, number("sse_ping_interval", value, 0.0, -1.0, 3600.0))


def _min_tokens(value: float | None, max_tokens: int | None) -> int:
    min_tokens = integer("min_tokens", value, 0, 0, 2**31 - 1)
    if max_tokens is not None and min_tokens > max_tokens:
        message = f"min_tokens is {min_tokens}, more than the {max_tokens} tokens the answer may have."
        raise RequestError(message, param="min_tokens")
    return min_tokens
