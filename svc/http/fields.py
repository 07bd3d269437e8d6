"""Single fields of a request body: each checked, or refused by name."""

import math
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from svc.errors import RequestError
from svc.http.text.tokenizer import Tokenizer

MAX_STOP_STRINGS = 64
MAX_STOP_CHARS = 1000
MAX_STOP_TOKENS = 1024
RANDOM_SEEDS = (-1, 2**32 - 1)
DRAWN_SEED_BITS = 53  # answers name the seed, and clients that read every number as a float must be able to send it back
MAX_BIASES = 1024
MAX_BIAS = 100.0
MAX_BIAS_CHARS = 1000
MAX_BIAS_CHARS_IN_ALL = 2**14  # of all texts of a request: each is tokenized
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARS = 100
MAX_RESPONSE_FIELDS = 256
MAX_RESPONSE_FIELD_CHARS = 256
MAX_SHOWN_CHARS = 60
# Possessive: tried in one way only, or a text that almost is a number takes time that grows with the square of its length.
_NUMBER = re.compile(r"\s*+[-+]?(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][-+]?[0-9]++)?\s*+")


@contextmanager
def blaming(param: str) -> Iterator[None]:
    """Gives a RequestError that names no field this one."""
    try:
        yield
    except RequestError as error:
        error.param = error.param or param
        raise


@contextmanager
def naming(param: str) -> Iterator[None]:
    """Puts the field in front of a RequestError that names none."""
    try:
        yield
    except RequestError as error:
        if error.param is None:
            raise error.reworded(f"{param}: {error}", param) from None
        raise


@contextmanager
def translating(names: Mapping[str, str]) -> Iterator[None]:
    """Gives the fields that a RequestError names the names that they have in the client's own form of the request."""
    try:
        yield
    except RequestError as error:
        for name, original in names.items():
            if error.param is not None and re.match(re.escape(name) + r"(?!\w)", error.param):
                text = re.sub(r"\b" + re.escape(name) + r"(?!\w)", original, str(error), count=1)
                raise error.reworded(text, original + error.param[len(name) :]) from None
        raise


def number(name: str, value: float | None, default: float, low: float, high: float) -> float:
    if value is None:
        return default
    if not low <= value <= high or not math.isfinite(value):
        raise RequestError(f"{name} must be from {low:g} to {high:g}, not {shown(value)}.", param=name)
    return float(value)


def same(body: object, *names: str) -> float | None:
    """The value of a field that has several names: the first given; RequestError if another differs."""
    given = [(name, value) for name in names if (value := getattr(body, name)) is not None]
    for name, value in given[1:]:
        if value != given[0][1]:
            message = f"{name} ({shown(value)}) is another name of {given[0][0]}, which has another value."
            raise RequestError(message, param=name)
    return given[0][1] if given else None


def whole(name: str, value: float | None) -> int | None:
    """A number without a fraction, however it is written."""
    if isinstance(value, float):
        if not value.is_integer():
            raise RequestError(f"{name} must be an integer, not {shown(value)}.", param=name)
        return int(value)
    return value


def integer(name: str, value: float | None, default: int, low: int, high: int) -> int:
    value = whole(name, value)
    if value is None:
        return default
    if not low <= value <= high:
        raise RequestError(f"{name} must be from {low} to {high}, not {shown(value)}.", param=name)
    return value


def token_id(value: object, param: str, vocab_size: int) -> int:
    """A token id that the vocabulary has; RequestError naming `param`."""
    if not isinstance(value, int):
        raise RequestError(f"{param} must be a token id, not {shown(value)}.", param=param)
    if not 0 <= value < vocab_size:
        raise RequestError(f"{param} is {shown(value)}, not a token of the vocabulary (0 to {vocab_size - 1}).", param=param)
    return value


def token_ids(values: list[int], param: str, vocab_size: int) -> list[int]:
    """`token_id` for a whole list, which may be long."""
    if values and min(values) >= 0 and max(values) < vocab_size:
        return values
    return [token_id(value, f"{param}[{index}]", vocab_size) for index, value in enumerate(values)]


def token_count(name: str, value: float | None, default: int | None) -> int | None:
    """A count beyond the context is cut to the context later; 0 evaluates the prompt only, -1 is no limit of its own."""
    value = whole(name, value)
    if value is None:
        return default
    if value == -1:
        return None
    if value < 0:
        raise RequestError(f"{name} must not be negative, but is {shown(value)}.", param=name)
    return min(value, 2**31 - 1)


def top_k(value: float | None, default: int) -> int:
    """0 and -1 (vLLM's word) are off."""
    if value == -1:
        return 0
    return min(integer("top_k", value, default, 0, 2**63 - 1), 2**31 - 1)


def last_n(value: float | None, default: int) -> int:
    """-1 is all."""
    return min(integer("repeat_last_n", value, default, -1, 2**63 - 1), 2**31 - 1)


def seed(value: float | None) -> int:
    """Without a seed every request draws its own, and so it does with one of llama-server's words for "any"."""
    if value is None or value in RANDOM_SEEDS:
        return secrets.randbits(DRAWN_SEED_BITS)
    return integer("seed", value, 0, -(2**63), 2**63 - 1)


def stop_strings(value: str | list[str] | None) -> tuple[str, ...]:
    """Empty ones, which clients send for "none", do not count."""
    strings = [value] if isinstance(value, str) else value or []
    if len(strings) > MAX_STOP_STRINGS:
        raise RequestError(f"stop has {len(strings)} strings; at most {MAX_STOP_STRINGS} are allowed.", param="stop")
    for index, string in enumerate(strings):
        param = "stop" if isinstance(value, str) else f"stop[{index}]"
        if len(string) > MAX_STOP_CHARS:
            raise RequestError(f"{param} is longer than {MAX_STOP_CHARS} characters.", param=param)
    return tuple(dict.fromkeys(filter(None, strings)))


def response_fields(values: list[str] | None) -> list[str]:
    """Each once: every answer is searched for all of them."""
    fields = list(dict.fromkeys(values or ()))
    if len(fields) > MAX_RESPONSE_FIELDS:
        message = f"response_fields has {len(fields)} fields; at most {MAX_RESPONSE_FIELDS} are allowed."
        raise RequestError(message, param="response_fields")
    for field in fields:
        if len(field) > MAX_RESPONSE_FIELD_CHARS:
            message = f"response_fields has a name of more than {MAX_RESPONSE_FIELD_CHARS} characters."
            raise RequestError(message, param="response_fields")
    return fields


def stop_token_ids(values: Sequence[float], vocab_size: int) -> frozenset[int]:
    """Each costs in every step in which it must not be sampled (`min_tokens`), so they are not to be many."""
    if len(values) > MAX_STOP_TOKENS:
        message = f"stop_token_ids has {len(values)} tokens; at most {MAX_STOP_TOKENS} are allowed."
        raise RequestError(message, param="stop_token_ids")
    return frozenset(token_id(whole("stop_token_ids", value), "stop_token_ids", vocab_size) for value in values)


def logit_bias(value: Any, tokenizer: Tokenizer, vocab_size: int) -> tuple[tuple[tuple[int, float], ...], frozenset[int]]:
    """(biases, tokens never to be sampled) of OpenAI's object {"id": bias} or llama-server's list [[id or text, bias or false]].

    A text biases each of its tokens. Biases of one token add up.
    """
    biases: dict[int, float] = {}
    never: set[int] = set()
    for param, key, amount in _bounded(_bias_entries(value)):
        for token in _biased_tokens(key, param, tokenizer, vocab_size):
            if amount is False:
                never.add(token)
            elif isinstance(amount, bool) or not isinstance(amount, int | float):
                raise RequestError(f"{param} must have a number or false as its bias, not {shown(amount)}.", param=param)
            else:
                biases[token] = biases.get(token, 0.0) + number(param, amount, 0.0, -MAX_BIAS, MAX_BIAS)
    return tuple(sorted(biases.items())), frozenset(never)


def bad_words(values: Sequence[str] | None, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The token sequences that write each of these texts, by itself and behind a space."""
    words = list(values or ())
    if len(words) > MAX_BAD_WORDS:
        raise RequestError(f"bad_words has {len(words)} texts; at most {MAX_BAD_WORDS} are allowed.", param="bad_words")
    sequences: dict[tuple[int, ...], None] = {}
    for index, word in enumerate(words):
        if len(word) > MAX_BAD_WORD_CHARS:
            param = f"bad_words[{index}]"
            raise RequestError(f"{param} is longer than {MAX_BAD_WORD_CHARS} characters.", param=param)
        for text in (word, f" {word.lstrip(' ')}"):
            if word:
                sequences[tuple(tokenizer.encode(text, parse_special=True))] = None
    return tuple(tokens for tokens in sequences if tokens)


BiasEntry = tuple[str, int | str, Any]  # its name, a token id or a text, the bias


def _bounded(entries: list[BiasEntry]) -> list[BiasEntry]:
    """RequestError when their texts are too long, each or together."""
    num_chars = 0
    for param, key, _ in entries:
        if isinstance(key, str):
            _check_bias_text(key, param)
            num_chars += len(key)
    if num_chars > MAX_BIAS_CHARS_IN_ALL:
        message = f"logit_bias has texts of {num_chars} characters; at most {MAX_BIAS_CHARS_IN_ALL} are allowed."
        raise RequestError(message, param="logit_bias")
    return entries


def _check_bias_text(text: str, param: str) -> None:
    if len(text) > MAX_BIAS_CHARS:
        raise RequestError(f"{param} is longer than {MAX_BIAS_CHARS} characters.", param=param)


def _bias_entries(value: Any) -> list[BiasEntry]:
    if value is None:
        return []
    if not isinstance(value, dict | list):
        raise RequestError(f"logit_bias must be an object or a list of pairs, not {shown(value)}.", param="logit_bias")
    if len(value) > MAX_BIASES:
        raise RequestError(f"logit_bias has {len(value)} entries; at most {MAX_BIASES} are allowed.", param="logit_bias")
    if isinstance(value, dict):
        named = ((f"logit_bias.{key[:40]}", key, amount) for key, amount in value.items())
        return [(param, _id_or_text(key, param), amount) for param, key, amount in named]
    entries: list[tuple[str, int | str, Any]] = []
    for index, pair in enumerate(value):
        param = f"logit_bias[{index}]"
        if not isinstance(pair, list) or len(pair) != 2 or isinstance(pair[0], bool) or not isinstance(pair[0], int | str):
            raise RequestError(f"{param} must be a pair of a token (id or text) and a bias, not {shown(pair)}.", param=param)
        entries.append((param, pair[0], pair[1]))
    return entries


def _id_or_text(key: str, param: str) -> int | str:
    """An integer is a token id, never the text of one. Another number is refused: OpenAI takes ids only, llama-server would take
    it for a text, and nobody can tell which was meant.
    """
    _check_bias_text(key, param)
    if re.fullmatch(r"-?[0-9]+", key):
        return int(key[:25])  # more digits are out of any vocabulary's range too
    if _NUMBER.fullmatch(key):
        message = (
            f'{param} is no token id: ids are integers. A text that reads as a number goes into a list, [["{key[:40]}", bias]].'
        )
        raise RequestError(message, param=param)
    return key


def _biased_tokens(key: int | str, param: str, tokenizer: Tokenizer, vocab_size: int) -> set[int]:
    if isinstance(key, int):
        return {token_id(key, param, vocab_size)}
    tokens = set(tokenizer.encode(key, parse_special=True))
    if not tokens:
        raise RequestError(f"{param} names no token.", param=param)
    return tokens


def unsupported(name: str, value: str) -> RequestError:
    """The refusal of a field that nothing here does; `value` is what was sent, as JSON."""
    return RequestError(f"{name} is not supported yet (here {_cut(value)}).", param=name, code="unsupported_parameter")


def shown(value: object) -> str:
    """A value as an error message quotes it."""
    if isinstance(value, int) and abs(value) >= 10**30:  # Python refuses to print what is really long
        return "a number of more than 30 digits"
    return _cut(_beginning(value, MAX_SHOWN_CHARS))


def _beginning(value: object, chars: int) -> str:
    """`repr(value)`, of which all but about the first `chars` may be missing: a value may be as large as a request."""
    if isinstance(value, str):
        return repr(value[: chars + 1])
    if not isinstance(value, list | dict):
        return repr(value)
    text = "[" if isinstance(value, list) else "{"
    for item in value:
        if len(text) > chars:
            break
        text += (", " if len(text) > 1 else "") + _beginning(item, chars - len(text))
        if isinstance(value, dict):
            text += ": " + _beginning(value[item], chars - len(text))
    return text + ("]" if isinstance(value, list) else "}")


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 3] + "..."
