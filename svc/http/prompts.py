"""Prompts that are not conversations: text, token ids, or both, made into token ids."""

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from svc.errors import RequestError
from svc.http.fields import blaming, shown, token_id, token_ids
from svc.http.options import Vocabulary
from svc.http.text.chat_template import PromptTokens
from svc.http.text.prompt_limit import PromptLimit
from svc.http.text.tokenizer import Tokenizer

MAX_PROMPTS = 128
MAX_TOKENS_IN_ALL = 2**20  # of the prompts of a request that has several: seconds of work for a text thread


class NamedPrompt(NamedTuple):
    """`param` is what an error calls it."""

    param: str
    raw: str | Sequence[object]  # text, or a list of token ids and texts


def check_number(prompts: Sequence[object]) -> None:
    if len(prompts) > MAX_PROMPTS:
        raise RequestError(f"prompt has {len(prompts)} prompts; at most {MAX_PROMPTS} are allowed.", param="prompt")


def encode_prompts(prompts: Sequence[NamedPrompt], vocabulary: Vocabulary, context_tokens: int) -> list[PromptTokens]:
    """The prompts as token ids, each at least one and at most `context_tokens`; RequestError names the one at fault.

    Control tokens spelled in a text are control tokens: a raw prompt is its author's business.
    """
    encoded: list[PromptTokens] = []
    for prompt in prompts:
        with blaming(prompt.param):
            ids = _encode(prompt, vocabulary, PromptLimit(context_tokens, prompt.param))
        if not ids:
            raise RequestError(f"{prompt.param} is empty.", param=prompt.param)
        encoded.append(PromptTokens(array("i", ids), ()))
        check_total((len(prompt.ids) for prompt in encoded), context_tokens)
    return encoded


def check_total(lengths: Iterable[int], context_tokens: int) -> None:
    if sum(lengths) > max(MAX_TOKENS_IN_ALL, context_tokens):
        message = f"prompt has more than {MAX_TOKENS_IN_ALL} tokens in all its prompts; send them in several requests."
        raise RequestError(message, param="prompt", code="too_many_tokens")


def _encode(prompt: NamedPrompt, vocabulary: Vocabulary, limit: PromptLimit) -> list[int]:
    """A text at the beginning gets the token that begins texts, if the model has one; token ids are taken as they are."""
    tokenizer = vocabulary.tokenizer
    parts = [prompt.raw] if isinstance(prompt.raw, str) else prompt.raw
    limit.check(len(parts))
    limit.check(sum(tokenizer.min_tokens(part) if isinstance(part, str) else 1 for part in parts))
    if set(map(type, parts)) == {int}:
        return token_ids([part for part in parts if isinstance(part, int)], prompt.param, vocabulary.size)
    ids: list[int] = []
    for index, part in enumerate(parts):
        param = f"{prompt.param}[{index}]"
        if isinstance(part, str):
            limit.extend(ids, tokenizer.encode_parts(part, parse_special=True))
            if index == 0:
                _begin(ids, tokenizer)
        elif isinstance(part, bool) or not isinstance(part, int):
            raise RequestError(f"{param} must be a token id or a text, not {shown(part)}.", param=param)
        else:
            ids.append(token_id(part, param, vocabulary.size))
    limit.check(len(ids))
    return ids


def _begin(ids: list[int], tokenizer: Tokenizer) -> None:
    if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
        ids.insert(0, tokenizer.bos_id)
