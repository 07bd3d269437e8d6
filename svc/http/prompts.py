"""Prompts that are not conversations: text, token ids, or both, made into token ids."""

from collections.abc import Sequence
from typing import NamedTuple

from svc.errors import RequestError
from svc.http.fields import shown, token_id
from svc.http.options import Vocabulary
from svc.http.text.chat_template import PromptTokens
from svc.http.text.tokenizer import Tokenizer

MAX_PROMPTS = 128


class NamedPrompt(NamedTuple):
    """`param` is what an error calls it."""

    param: str
    raw: str | Sequence[object]  # text, or a list of token ids and texts


def check_number(prompts: Sequence[object]) -> None:
    if len(prompts) > MAX_PROMPTS:
        raise RequestError(f"prompt has {len(prompts)} prompts; at most {MAX_PROMPTS} are allowed.", param="prompt")


async def encode_prompts(prompts: Sequence[NamedPrompt], vocabulary: Vocabulary) -> list[PromptTokens]:
    """The prompts as token ids. Control tokens spelled in a text are control tokens: a raw prompt is its author's business."""
    encoded = []
    for prompt in prompts:
        ids = await _encode(prompt, vocabulary)
        if not ids:
            raise RequestError(f"{prompt.param} is empty.", param=prompt.param)
        encoded.append(PromptTokens(ids, ()))
    return encoded


async def _encode(prompt: NamedPrompt, vocabulary: Vocabulary) -> list[int]:
    """A text at the beginning gets the token that begins texts, if the model has one; token ids are taken as they are."""
    tokenizer = vocabulary.tokenizer
    if isinstance(prompt.raw, str):
        return _begun(await tokenizer.encode_async(prompt.raw, parse_special=True), tokenizer)
    ids: list[int] = []
    for index, part in enumerate(prompt.raw):
        param = f"{prompt.param}[{index}]"
        if isinstance(part, str):
            encoded = await tokenizer.encode_async(part, parse_special=True)
            ids += encoded if index else _begun(encoded, tokenizer)
        elif isinstance(part, bool) or not isinstance(part, int):
            raise RequestError(f"{param} must be a token id or a text, not {shown(part)}.", param=param)
        else:
            ids.append(token_id(part, param, vocabulary.size))
    return ids


def _begun(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
        return [tokenizer.bos_id, *ids]
    return ids
