"""Prompts with a gap: what comes before it, what comes after it, and other files, between tokens that mean that."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from svc.errors import RequestError
from svc.http.text.chat_template import PromptTokens
from svc.http.text.prompt_limit import PromptLimit
from svc.http.text.tokenizer import Tokenizer
from svc.memory.placement import Boundary, BoundaryKind

WINDOW_TOKENS = 2048  # around the gap, three quarters of them before it: llama-server's default, and clients leave cutting to it
MAX_WINDOW_CHARS = 2**18  # of each; the rest is farther away than any window reaches
MAX_NAME_CHARS = 4096
PROJECT, FILE = "myproject\n", "filename\n"  # llama-server's names where clients give none
SNIPPET = "\n\n--- snippet ---\n\n"  # between files, for models that have no token there

# The first of them that is in the vocabulary. The metadata of the file, if it names one, goes first.
_SPELLINGS = {
    "pre": ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "<|code_prefix|>", "<|prefix|>"),
    "suf": ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "<|code_suffix|>", "<|suffix|>"),
    "mid": ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "<|code_middle|>", "<|middle|>"),
    "rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "sep": ("<|file_sep|>",),
    "pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>"),
}
_NAMES = {"pre": "prefix", "suf": "suffix", "mid": "middle"}


class OtherFile(NamedTuple):
    """Something for the model to know."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class FillInTokens:
    """The tokens around the parts. Those after `middle` may be missing."""

    prefix: int
    suffix: int
    middle: int
    repository: int | None
    separator: int | None
    ends: frozenset[int]  # end what is filled in

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "FillInTokens":
        """RequestError for a model that was not trained to fill gaps."""
        ids = {kind: _find(kind, tokenizer) for kind in _SPELLINGS}
        missing = [name for kind, name in _NAMES.items() if ids[kind] is None]
        if missing:
            message = f"Infill is not supported by this model: its vocabulary has no {' or '.join(missing)} token."
            raise RequestError(message, code="unsupported_parameter")
        ends = frozenset(i for kind in ("pad", "rep", "sep") if (i := ids[kind]) is not None)
        prefix, suffix, middle = (ids[kind] or 0 for kind in _NAMES)
        return cls(prefix, suffix, middle, ids["rep"], ids["sep"], ends)


def _find(kind: str, tokenizer: Tokenizer) -> int | None:
    spelled = (i for text in _SPELLINGS[kind] if (i := tokenizer.token_id(text)) is not None)
    return tokenizer.fill_in_ids.get(kind, next(spelled, None))


class FillIn:
    """Makes prompts with a gap for one request, each at most `context_tokens` long with room for the answer where it can be."""

    def __init__(self, tokenizer: Tokenizer, context_tokens: int, answer_tokens: int | None) -> None:
        """`answer_tokens`: the most that the answer may have; None: no limit. RequestError where the model cannot do it."""
        self.tokens = FillInTokens.of(tokenizer)
        self._tokenizer = tokenizer
        self._context = context_tokens
        self._answer = answer_tokens or 0

    def whole(self, prefix: str, suffix: str, param: str) -> PromptTokens:
        """All of both; RequestError naming `param` where they do not fit."""
        limit = PromptLimit(self._context, param)
        ids = [*self._start(), self.tokens.prefix]
        limit.extend(ids, self._tokenizer.encode_parts(prefix, parse_special=False))
        ids.append(self.tokens.suffix)
        limit.extend(ids, self._tokenizer.encode_parts(suffix, parse_special=False))
        ids.append(self.tokens.middle)
        limit.check(len(ids))
        return PromptTokens(array("i", ids), ())

    def window(self, prefix: str, line: str, suffix: str, others: Sequence[OtherFile]) -> PromptTokens:
        """As llama-server: what is near the gap, after as much of the end of `others` as fits. `line`, the beginning of the line
        with the gap, is never cut."""
        tokens, limit, start = self.tokens, PromptLimit(self._context, "prompt"), self._start()
        last: list[int] = []
        limit.extend(last, self._tokenizer.encode_parts(line, parse_special=True))
        window = min(WINDOW_TOKENS, max(0, self._context - self._answer))
        before = _last(self._encode(prefix[-MAX_WINDOW_CHARS:]), 3 * (window // 4))
        after = self._encode(suffix[:MAX_WINDOW_CHARS])[: max(0, window // 4 - len(start) - 3 - len(last))]
        near = [tokens.prefix, *before, *last, tokens.suffix, *after, tokens.middle]
        limit.check(len(start) + len(near))
        far = self._others(others, self._context - len(start) - len(near) - 2 * self._answer)
        ends = (Boundary(len(start) + len(far), BoundaryKind.SYSTEM_END),) if far else ()
        return PromptTokens(array("i", [*start, *far, *near]), ends)

    def _start(self) -> list[int]:
        tokenizer = self._tokenizer
        return [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []

    def _others(self, others: Sequence[OtherFile], room: int) -> list[int]:
        """The end of them, at most `room` tokens; none is looked at that is farther away."""
        tail: list[list[int]] = [self._head(FILE)] if self.tokens.separator is not None else []
        for other in reversed(others):
            if sum(map(len, tail)) >= room:
                break
            tail.append(self._encode(other.text[-MAX_WINDOW_CHARS:]))
            tail.append(self._head(other.name + "\n"))
        else:
            if self.tokens.repository is not None:
                tail.append([self.tokens.repository, *self._encode(PROJECT)])
        return _last([token for part in reversed(tail) for token in part], room)

    def _head(self, name: str) -> list[int]:
        separator = self.tokens.separator
        return self._encode(SNIPPET) if separator is None else [separator, *self._encode(name)]

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, parse_special=False)


def _last(ids: list[int], number: int) -> list[int]:
    return ids[len(ids) - number :] if 0 < number < len(ids) else ids if number > 0 else []


def other_files(chunks: Iterable[object], max_number: int) -> list[OtherFile]:
    """`input_extra` checked; RequestError names the field at fault."""
    files: list[OtherFile] = []
    for index, chunk in enumerate(chunks):
        param = f"input_extra[{index}]"
        text, name = (chunk.get("text"), chunk.get("filename", "tmp")) if isinstance(chunk, dict) else (None, "")
        if not isinstance(text, str):
            raise RequestError(f"{param}.text must be a text.", param=f"{param}.text")
        if not isinstance(name, str) or len(name) > MAX_NAME_CHARS:
            message = f"{param}.filename must be a text of at most {MAX_NAME_CHARS} characters."
            raise RequestError(message, param=f"{param}.filename")
        files.append(OtherFile(name, text))
    if len(files) > max_number:
        raise RequestError(f"input_extra has {len(files)} parts; at most {max_number} are allowed.", param="input_extra")
    return files
