"""A conversation to prompt token ids, by the chat template of the model file.

What the template writes becomes control tokens; what people write never does. Every string of the request is rendered with a
marker character inside whatever could spell a control token; the rendered text is cut at the control tokens that are left
(the template's own), and the marker is taken out of the text between them.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from svc.errors import ModelFileError, RequestError
from svc.http.text.control_guard import ControlGuard, Marker, absent_character, mapped, strings
from svc.http.text.messages import Message, normalise_messages, normalise_tools, plain_json
from svc.http.text.prompt_limit import PromptLimit
from svc.http.text.template_env import TemplateRefusal, template_environment
from svc.http.text.tokenizer import CONTROL_SHAPE, Tokenizer
from svc.memory.placement import Boundary, BoundaryKind

_BAR_MARKER = re.compile(r"<[|｜][^<>\s]+[|｜]>")
_UNLIMITED = PromptLimit(sys.maxsize, "messages")
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message", "bos_token", "eos_token"})


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """`boundaries` are ordered by position, a SYSTEM_END before the MESSAGE_START at the same place."""

    ids: list[int]
    boundaries: tuple[Boundary, ...]


class ChatTemplate:
    """Immutable. ModelFileError from the constructor when `source` is no valid Jinja.

    `now` is the clock of templates that write today's date.
    """

    def __init__(self, source: str, tokenizer: Tokenizer, *, now: Callable[[], datetime] = datetime.now) -> None:
        self.source = source
        self._tokenizer = tokenizer
        try:
            self._template = template_environment(now).from_string(source)
        except Exception as error:  # the compiler raises more than TemplateSyntaxError (RecursionError, SyntaxError)
            raise ModelFileError(f"the chat template does not compile: {error}") from error
        self._guard = ControlGuard(tokenizer.control_tokens)
        self._specials = {
            name: tokenizer.token_text(token_id)
            for name, token_id in (("bos_token", tokenizer.bos_id), ("eos_token", tokenizer.eos_id))
            if token_id is not None
        }
        self._headers = _probe_headers(self, tokenizer)

    def __repr__(self) -> str:
        return f"ChatTemplate({len(self.source)} characters, headers={self._headers})"

    def markers(self) -> frozenset[str]:
        """Spellings in the template's own text that only a control token can have: `<|...|>` anywhere, and anything in angle or
        square brackets between an assistant's message and the next one (not `<think>`, which models write themselves)."""
        return frozenset(_BAR_MARKER.findall(self.source)) | _probe_markers(self)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text. Messages are normalised first (`normalise_messages`).

        `kwargs` are the request's `chat_template_kwargs`. RequestError when the template refuses or fails, when a message
        cannot be used, or when the final message cannot be continued.
        """
        conversation = _Conversation.of(messages, tools, kwargs)
        text, _ = self._render(conversation, add_generation_prompt, continue_final_message, guard=False)
        return text

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
        limit: PromptLimit | None = None,
    ) -> PromptTokens:
        """Token ids of the conversation and where its messages begin. Errors as in `render`, and those of `limit`."""
        if limit:
            limit.check(len(messages))
        pieces = self._pieces(messages, tools, add_generation_prompt, continue_final_message, kwargs)
        return self._encode(pieces, limit or _UNLIMITED)

    def _pieces(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        kwargs: Mapping[str, Any] | None,
    ) -> list[int | str]:
        """The prompt as control token ids (the template's own) and the texts between them."""
        conversation = _Conversation.of(messages, tools, kwargs)
        text, marker = self._render(conversation, add_generation_prompt, continue_final_message, guard=True)
        pieces = self._tokenizer.split_control(text)
        if marker:
            pieces = [piece if isinstance(piece, int) else marker.taken_out_of(piece) for piece in pieces]
        if not pieces:
            raise RequestError("the chat template made an empty prompt of these messages", param="messages")
        return pieces

    def _render(
        self, conversation: "_Conversation", add_generation_prompt: bool, continue_final_message: bool, *, guard: bool
    ) -> tuple[str, Marker | None]:
        """The rendered text, and the marker in it (None when no string needed one)."""
        if add_generation_prompt and continue_final_message:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
            )
        marker = None
        if guard and any(map(self._guard.needed, conversation.strings())):
            marker = Marker(absent_character([*conversation.strings(), self.source]))
            conversation = conversation.mapped(partial(self._guard.broken, marker=marker))
        if continue_final_message:
            return self._render_open(conversation, marker), marker
        return self._call(conversation, add_generation_prompt, marker), marker

    def _render_open(self, conversation: "_Conversation", marker: Marker | None) -> str:
        """Rendered up to the end of the final message's content: a character put behind it says where that is."""
        final = conversation.messages[-1]
        if final["role"] != "assistant" or "tool_calls" in final:
            raise RequestError(
                "continue_final_message needs a final message from the assistant, without tool calls",
                param="continue_final_message",
            )
        key = "reasoning_content" if not final["content"] and final.get("reasoning_content") else "content"
        end = absent_character([*conversation.strings(), self.source, marker.char if marker else ""])
        opened = {**final, key: final[key] + end + " "}  # the space tells whether the template trims
        text = self._call(conversation.with_final(opened), False, marker)
        cut = text.rfind(end)
        if cut < 0:
            raise RequestError(
                "the chat template does not write the final message's content, so it cannot be continued",
                param="continue_final_message",
            )
        before = text[:cut].replace(end, "")
        if not text.startswith(" ", cut + 1) and final[key].strip():  # it trims: the space before `end` would go as well
            return before.removesuffix(final[key][len(final[key].rstrip()) :])
        return before

    def _call(self, conversation: "_Conversation", add_generation_prompt: bool, marker: Marker | None) -> str:
        variables = {
            "documents": None,
            **conversation.kwargs,
            **self._specials,
            "messages": conversation.messages,
            "tools": conversation.tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(variables)
        except TemplateRefusal as error:
            message = f"the chat template refused the messages: {error}"
        except Exception as error:  # data that the template did not expect: the request ends, never the server
            message = f"the chat template failed on these messages: {type(error).__name__}: {error}"
        raise RequestError(marker.taken_out_of(message) if marker else message, param="messages")

    def _encode(self, pieces: list[int | str], limit: PromptLimit) -> PromptTokens:
        tokenizer = self._tokenizer
        limit.check(sum(1 if isinstance(piece, int) else tokenizer.min_tokens(piece) for piece in pieces))
        ids: list[int] = []
        if tokenizer.add_bos and tokenizer.bos_id is not None and pieces[0] != tokenizer.bos_id:
            ids.append(tokenizer.bos_id)
        starts: list[int] = []
        opens_system: list[bool] = []
        for n, piece in enumerate(pieces):
            if self._headers and piece == self._headers.token:
                starts.append(len(ids))
                opens_system.append(self._headers.opens_system(pieces[n + 1] if n + 1 < len(pieces) else ""))
            limit.extend(ids, [[piece]] if isinstance(piece, int) else tokenizer.encode_parts(piece, parse_special=False))
        return PromptTokens(ids, tuple(_boundaries(starts, opens_system)))


@dataclass(frozen=True, slots=True)
class _Headers:
    """How the template opens a message: the control token, and the text right behind it in a system message (None: unknown)."""

    token: int
    system: str | None

    def opens_system(self, following: int | str) -> bool:
        return self.system is not None and isinstance(following, str) and following.startswith(self.system)


@dataclass(frozen=True, slots=True)
class _Conversation:
    """What the request brings into the template, in plain JSON types."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    kwargs: dict[str, Any]

    @classmethod
    def of(
        cls,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, Any] | None,
    ) -> "_Conversation":
        if kwargs is not None and not isinstance(kwargs, Mapping):
            raise RequestError("chat_template_kwargs must be an object", param="chat_template_kwargs")
        for name in kwargs or {}:
            if name in _RESERVED:
                param = f"chat_template_kwargs.{name}"
                raise RequestError(f"{param} cannot be set: the server sets {name}", param=param)
        plain_kwargs = plain_json(kwargs or {}, "chat_template_kwargs")
        return cls(normalise_messages(messages), normalise_tools(tools), plain_kwargs)

    def strings(self) -> Iterator[str]:
        return strings([self.messages, self.tools, self.kwargs])

    def mapped(self, change: Callable[[str], str]) -> "_Conversation":
        values = (self.messages, self.tools, self.kwargs)
        return _Conversation(*(mapped(value, change) for value in values))

    def with_final(self, message: Message) -> "_Conversation":
        return _Conversation([*self.messages[:-1], message], self.tools, self.kwargs)


def _boundaries(starts: list[int], opens_system: list[bool]) -> Iterator[Boundary]:
    """SYSTEM_END before the first message that is not a system one, if a system one comes first."""
    first = opens_system.index(False) if False in opens_system else 0
    for n, start in enumerate(starts):
        if n == first > 0:
            yield Boundary(start, BoundaryKind.SYSTEM_END)
        yield Boundary(start, BoundaryKind.MESSAGE_START)


_PROBE = [
    {"role": "system", "content": "probesystem"},
    {"role": "user", "content": "probeuser"},
    {"role": "assistant", "content": "probeassistant"},
    {"role": "user", "content": "probeagain"},
]


def _probe_markers(template: ChatTemplate) -> frozenset[str]:
    """Of a small conversation: with a system message, else without."""
    for probe in (_PROBE, _PROBE[1:]):
        with suppress(RequestError):
            text = template.render(probe, add_generation_prompt=True)
            _, _, behind = text.partition(probe[-2]["content"])
            between, _, _ = behind.partition(probe[-1]["content"])
            return frozenset([*_BAR_MARKER.findall(text), *CONTROL_SHAPE.findall(between)])
    return frozenset()


def _probe_headers(template: ChatTemplate, tokenizer: Tokenizer) -> _Headers | None:
    """Learn from a small conversation which control token opens every message: with a system message, else without."""
    for probe in (_PROBE, _PROBE[1:]):
        try:
            text = template.render(probe, add_generation_prompt=True)
        except RequestError:
            continue
        headers = _headers_in(text, [message["content"] for message in probe], tokenizer)
        if headers:
            return headers
    return None


def _headers_in(text: str, contents: list[str], tokenizer: Tokenizer) -> _Headers | None:
    """The first control token that stands before each of `contents` and is not one that only ends the message before it.

    What only ends messages does not stand before the first one.
    """
    before: list[list[int | str]] = []
    start = 0
    for content in contents:
        at = text.find(content, start)
        if at < 0:
            return None
        before.append(tokenizer.split_control(text[start:at]))
        start = at + len(content)
    common = set.intersection(*({piece for piece in pieces if isinstance(piece, int)} for pieces in before))
    token = next((piece for piece in before[-1] if isinstance(piece, int) and piece in common), None)
    if token is None:
        return None
    first, second = (_behind(token, pieces) for pieces in before[:2])
    has_system = contents[0] == _PROBE[0]["content"] and first and not second.startswith(first)
    return _Headers(token, first if has_system else None)


def _behind(token: int, pieces: list[int | str]) -> str:
    """The text right behind the last `token` in `pieces`, to the end of its line."""
    last = len(pieces) - 1 - pieces[::-1].index(token)
    following = pieces[last + 1] if last + 1 < len(pieces) else ""
    return following.splitlines(keepends=True)[0] if isinstance(following, str) and following else ""
