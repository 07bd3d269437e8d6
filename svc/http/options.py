"""What a client asks about an answer, checked: from the fields of a request body to `GenerationOptions`.

Every refusal names the field and the value. A field that is known but not supported yet is refused only where it would change
the answer; silently ignoring it would be worse than an error.
"""

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from svc.compute.sampling.params import SamplingParams
from svc.errors import RequestError
from svc.http.schema import ChatIn, CompletionIn, GenerationIn

MAX_CHOICES = 16
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1000
MAX_LOGPROBS = 20
MAX_TEMPERATURE = 100.0
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions; chat has none


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """Everything about the answers of one HTTP request except their prompts."""

    params: SamplingParams
    max_tokens: int | None  # None: as many as the context has room for
    num_choices: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    use_cache: bool = True
    stream: bool = False
    include_usage: bool = False  # in a stream; a whole answer always has it
    return_token_ids: bool = False
    cache_report: bool = False

    @property
    def logprobs(self) -> bool:
        return self.params.num_logprobs is not None


def chat_options(body: ChatIn) -> GenerationOptions:
    """The options of a chat request; RequestError names the field."""
    _refuse_unsupported(body, _UNSUPPORTED | _UNSUPPORTED_CHAT)
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs to be true.", param="top_logprobs")
    num_logprobs = _integer("top_logprobs", body.top_logprobs, 0, 0, MAX_LOGPROBS) if body.logprobs else None
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    return _options(body, num_logprobs, _max_tokens(name, getattr(body, name), None))


def completion_options(body: CompletionIn) -> GenerationOptions:
    """The options of a completion request; RequestError names the field."""
    _refuse_unsupported(body, _UNSUPPORTED | _UNSUPPORTED_COMPLETION)
    num_logprobs = None if body.logprobs is None else _integer("logprobs", body.logprobs, 0, 0, MAX_LOGPROBS)
    if body.echo and num_logprobs is not None:
        raise RequestError("echo together with logprobs is not supported yet.", param="echo", code="unsupported_parameter")
    options = _options(body, num_logprobs, _max_tokens("max_tokens", body.max_tokens, DEFAULT_COMPLETION_TOKENS))
    if body.best_of is not None and body.best_of != options.num_choices:
        raise _unsupported("best_of", body.best_of)
    return options


def token_id(value: object, param: str, vocab_size: int) -> int:
    """A token id that the vocabulary has; RequestError naming `param`."""
    if not isinstance(value, int):
        raise RequestError(f"{param} must be a token id, not {_shown(value)}.", param=param)
    if not 0 <= value < vocab_size:
        raise RequestError(f"{param} is {_shown(value)}, not a token of the vocabulary (0 to {vocab_size - 1}).", param=param)
    return value


def with_known_stop_ids(options: GenerationOptions, vocab_size: int) -> GenerationOptions:
    """Checks `stop_token_ids` against the model, and gives the options back."""
    ids = [token_id(value, "stop_token_ids", vocab_size) for value in sorted(options.stop_token_ids)]
    return replace(options, stop_token_ids=frozenset(ids))


def _options(body: GenerationIn, num_logprobs: int | None, max_tokens: int | None) -> GenerationOptions:
    include_usage = body.stream_options.include_usage if body.stream_options else None
    return GenerationOptions(
        params=SamplingParams(
            temperature=_number("temperature", body.temperature, 1.0, 0.0, MAX_TEMPERATURE),
            top_k=_top_k(body.top_k),
            top_p=_number("top_p", body.top_p, 1.0, 0.0, 1.0),
            min_p=_number("min_p", body.min_p, 0.0, 0.0, 1.0),
            seed=_seed(body.seed),
            num_logprobs=num_logprobs,
        ),
        max_tokens=max_tokens,
        num_choices=_integer("n", body.n, 1, 1, MAX_CHOICES),
        stop=_stop(body.stop),
        stop_token_ids=frozenset(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        use_cache=body.cache_prompt is not False,
        stream=bool(body.stream),
        include_usage=bool(include_usage),
        return_token_ids=bool(body.return_token_ids),
        cache_report=bool(body.cache_report),
    )


# -- single fields ------------------------------------------------------------------------------------------------------------


def _number(name: str, value: float | None, default: float, low: float, high: float) -> float:
    if value is None:
        return default
    if not low <= value <= high or not math.isfinite(value):
        raise RequestError(f"{name} must be from {low:g} to {high:g}, not {_shown(value)}.", param=name)
    return float(value)


def _integer(name: str, value: int | None, default: int, low: int, high: int) -> int:
    if value is None:
        return default
    if not low <= value <= high:
        raise RequestError(f"{name} must be from {low} to {high}, not {_shown(value)}.", param=name)
    return value


def _max_tokens(name: str, value: int | None, default: int | None) -> int | None:
    """A count beyond the context is cut to the context later; 0 evaluates the prompt only."""
    if value is None:
        return default
    if value < 0:
        raise RequestError(f"{name} must not be negative, but is {_shown(value)}.", param=name)
    return min(value, 2**31 - 1)


def _top_k(value: int | None) -> int:
    """0 and -1 (vLLM's word) are off."""
    if value == -1:
        return 0
    return min(_integer("top_k", value, 0, 0, 2**63 - 1), 2**31 - 1)


def _seed(value: int | None) -> int:
    """Without a seed every request draws its own."""
    if value is None:
        return secrets.randbits(63)
    return _integer("seed", value, 0, -(2**63), 2**63 - 1)


def _stop(value: str | list[str] | None) -> tuple[str, ...]:
    strings = [value] if isinstance(value, str) else value or []
    if len(strings) > MAX_STOP_STRINGS:
        raise RequestError(f"stop has {len(strings)} strings; at most {MAX_STOP_STRINGS} are allowed.", param="stop")
    for index, string in enumerate(strings):
        param = "stop" if isinstance(value, str) else f"stop[{index}]"
        if not string:
            raise RequestError(f"{param} must not be empty.", param=param)
        if len(string) > MAX_STOP_CHARS:
            raise RequestError(f"{param} is longer than {MAX_STOP_CHARS} characters.", param=param)
    return tuple(dict.fromkeys(strings))


# -- known, but not supported yet ---------------------------------------------------------------------------------------------


def _is(*neutral: object) -> Callable[[Any], bool]:
    return lambda value: any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in neutral)


def _is_text_format(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "text"


def _is_text_only(value: Any) -> bool:
    return isinstance(value, list) and all(item == "text" for item in value)


# Field -> whether a value (None never asked) asks for nothing.
_UNSUPPORTED: dict[str, Callable[[Any], bool]] = {
    "logit_bias": _is({}, []),
    "presence_penalty": _is(0),
    "frequency_penalty": _is(0),
    "repetition_penalty": _is(1),
    "repeat_penalty": _is(1),
    "response_format": _is_text_format,
    "grammar": _is(""),
    "json_schema": _is({}, ""),
    "structured_outputs": _is({}),
    "guided_json": _is({}, ""),
    "guided_regex": _is(""),
    "guided_choice": _is([]),
    "guided_grammar": _is(""),
    "min_tokens": _is(0),
}
_UNSUPPORTED_CHAT: dict[str, Callable[[Any], bool]] = {
    "audio": _is(),
    "modalities": _is_text_only,
    "web_search_options": _is(),
    "functions": _is([]),
    "function_call": _is("none", "auto"),
    "tool_choice": _is("none", "auto"),
}
_UNSUPPORTED_COMPLETION: dict[str, Callable[[Any], bool]] = {"suffix": _is("")}


def _refuse_unsupported(body: GenerationIn, table: Mapping[str, Callable[[Any], bool]]) -> None:
    for name, is_neutral in table.items():
        value = getattr(body, name)
        if value is not None and not is_neutral(value):
            raise _unsupported(name, value)


def _unsupported(name: str, value: object) -> RequestError:
    return RequestError(f"{name} is not supported yet (here {_shown(value)}).", param=name, code="unsupported_parameter")


def _shown(value: object) -> str:
    if isinstance(value, int) and abs(value) >= 10**30:  # Python refuses to print what is really long
        return "a number of more than 30 digits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
