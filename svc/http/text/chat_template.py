"""A conversation to prompt token ids, by the chat template of the model file.

What the template writes becomes control tokens; what people write never does. Every string of the request is rendered with a
marker character inside whatever could spell a control token; the rendered text is cut at the control tokens that are left
(the template's own), and the marker is taken out of the text between them.
"""

import json
import re
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

from svc.errors import ModelFileError, RequestError
from svc.http.text.control_guard import ControlGuard, Marker, absent_character, mapped, strings
from svc.http.text.message_starts import Piece, boundaries, probe_headers
from svc.http.text.messages import normalise_messages, normalise_tools, plain_json
from svc.http.text.prompt_limit import PromptLimit
from svc.http.text.template_env import TemplateRefusal, names_read, template_environment
from svc.http.text.template_habits import REASONING_KEYS, Message, Tools, probe_habits
from svc.http.text.template_markers import template_markers
from svc.http.text.tokenizer import Tokenizer
from svc.memory.placement import Boundary

_UNLIMITED = PromptLimit(sys.maxsize, "messages")
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message", "bos_token", "eos_token"})


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """`boundaries` are ordered by position, a SYSTEM_END before the MESSAGE_START at the same place."""

    ids: "array[int]"  # int32. In a list, the garbage collector would look at each of 100,000 tokens again and again
    boundaries: tuple[Boundary, ...]


class ChatTemplate:
    """Immutable. ModelFileError from the constructor when `source` or `tool_use` is no valid Jinja.

    `tool_use` is the template for conversations with tools, where the model file has one of its own for them. `now` is the clock of
    templates that write today's date.
    """

    def __init__(
        self, source: str, tokenizer: Tokenizer, *, tool_use: str | None = None, now: Callable[[], datetime] = datetime.now
    ) -> None:
        self.source = source
        self.tool_use = ChatTemplate(tool_use, tokenizer, now=now) if tool_use else None
        self._tokenizer = tokenizer
        self._now = now
        try:
            self._template = template_environment(now).from_string(source)
        except Exception as error:  # the compiler raises more than TemplateSyntaxError (RecursionError, SyntaxError)
            raise ModelFileError(f"the chat template does not compile: {error}") from error
        self._guard = ControlGuard(tokenizer.control_tokens)
        self._specials = {
            name: "" if token_id is None else tokenizer.token_text(token_id)
            for name, token_id in (("bos_token", tokenizer.bos_id), ("eos_token", tokenizer.eos_id))
            if token_id is not None or not self._asks_for(name)
        }
        self._names = names_read(source)
        self._habits = probe_habits(lambda messages, tools: self._call(_Conversation(messages, tools), None), self._names)
        self._headers = probe_headers(lambda messages: self.render(messages, add_generation_prompt=False), tokenizer)

    def __repr__(self) -> str:
        return f"ChatTemplate({len(self.source)} characters, {self._habits}, {self._headers})"

    def markers(self) -> frozenset[str]:
        """The control tokens that the template writes, by their spelling."""
        markers = template_markers(lambda messages: self.render(messages, add_generation_prompt=True), self.source)
        return markers | self.tool_use.markers() if self.tool_use else markers

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

        `kwargs` are the request's variables of the template. RequestError when the template refuses or fails, when a message
        cannot be used, or when the final message cannot be continued.
        """
        template = self._for(tools)
        conversation = template._conversation(messages, tools, kwargs, add_generation_prompt, continue_final_message)
        return template._render(conversation, None)

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
        template = self._for(tools)
        conversation = template._conversation(messages, tools, kwargs, add_generation_prompt, continue_final_message)
        return template._encode(template._pieces(conversation), limit or _UNLIMITED)

    def _for(self, tools: Sequence[Mapping[str, Any]] | None) -> "ChatTemplate":
        return self.tool_use if tools and self.tool_use else self

    def _conversation(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, Any] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
    ) -> "_Conversation":
        """The request in plain JSON types, as the template takes it."""
        if add_generation_prompt and continue_final_message:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
            )
        return _Conversation(
            normalise_messages(messages, self._habits),
            normalise_tools(tools),
            _plain_kwargs(kwargs),
            add_generation_prompt,
            continue_final_message,
        )

    def _pieces(self, conversation: "_Conversation") -> list[Piece]:
        """The prompt as control token ids (the template's own) and the texts between them."""
        marker = None
        if any(map(self._guard.needed, conversation.strings())):
            marker = Marker(absent_character([*conversation.strings(), self.source]))
            conversation = conversation.mapped(partial(self._guard.broken, marker=marker))
        pieces = self._tokenizer.split_control(self._render(conversation, marker))
        if marker:
            pieces = [piece if isinstance(piece, int) else marker.taken_out_of(piece) for piece in pieces]
        if not pieces:
            raise RequestError("the chat template made an empty prompt of these messages", param="messages")
        return pieces

    def _render(self, conversation: "_Conversation", marker: Marker | None) -> str:
        """The text of `conversation`, whose strings have the marker in them (None: none of them needs one)."""
        if conversation.continue_final_message:
            return self._render_open(conversation, marker)
        return self._call(conversation, marker)

    def _render_open(self, conversation: "_Conversation", marker: Marker | None) -> str:
        """Rendered up to the end of the final message's content: a character put behind it says where that is."""
        final = conversation.messages[-1]
        if final["role"] != "assistant" or "tool_calls" in final:
            raise RequestError(
                "continue_final_message needs a final message from the assistant, without tool calls",
                param="continue_final_message",
            )
        end = absent_character([*conversation.strings(), self.source, marker.char if marker else ""])
        opened, last = _opened(final, end + " ")  # the space tells whether the template trims
        text = self._call(conversation.with_final(opened), marker)
        cut = text.rfind(end)
        if cut < 0:
            raise RequestError(
                "the chat template does not write the final message's content, so it cannot be continued",
                param="continue_final_message",
            )
        before = text[:cut].replace(end, "")
        if not text.startswith(" ", cut + 1) and last.strip():  # it trims: the space before `end` would go as well
            return before.removesuffix(last[len(last.rstrip()) :])
        return before

    def _asks_for(self, variable: str) -> bool:
        """Whether the template looks if there is one (`is defined`, `is not none`). One that does not may put it behind a text."""
        return re.search(rf"\b{variable}\s+is\b", self.source) is not None

    def _call(self, conversation: "_Conversation", marker: Marker | None) -> str:
        today = self._now()  # the names are those of Llama 3 and of Firefunction
        variables: dict[str, Any] = {"documents": None}
        variables |= {"date_string": today.strftime("%d %b %Y"), "datetime": today.strftime("%b %d %Y")}
        if "functions" in self._names:  # some templates want the tools as a text
            if conversation.tools:
                variables["functions"] = json.dumps(conversation.tools, ensure_ascii=False, indent=4)
            elif not self._asks_for("functions"):
                variables["functions"] = ""
        variables |= conversation.kwargs | self._specials
        variables |= {
            "messages": conversation.messages,
            "tools": conversation.tools,
            "add_generation_prompt": conversation.add_generation_prompt,
        }
        try:
            return self._template.render(variables)
        except TemplateRefusal as error:
            message = f"the chat template refused the messages: {error}"
        except Exception as error:  # data that the template did not expect: the request ends, never the server
            message = f"the chat template failed on these messages: {type(error).__name__}: {error}"
        raise RequestError(marker.taken_out_of(message) if marker else message, param="messages")

    def _encode(self, pieces: list[Piece], limit: PromptLimit) -> PromptTokens:
        tokenizer = self._tokenizer
        limit.check(sum(1 if isinstance(piece, int) else tokenizer.min_tokens(piece) for piece in pieces))
        ids: list[int] = []
        if tokenizer.add_bos and tokenizer.bos_id is not None and pieces[0] != tokenizer.bos_id:
            ids.append(tokenizer.bos_id)
        starts: list[int] = []
        dialog: list[bool] = []
        for n, piece in enumerate(pieces):
            if isinstance(piece, int) and piece in self._headers.openers:
                starts.append(len(ids))
                dialog.append(self._headers.opens_dialog(piece, pieces[n + 1] if n + 1 < len(pieces) else ""))
            limit.extend(ids, [[piece]] if isinstance(piece, int) else tokenizer.encode_parts(piece, parse_special=False))
        return PromptTokens(array("i", ids), tuple(boundaries(starts, dialog, num_opening=int(ids[:1] == [tokenizer.bos_id]))))


@dataclass(frozen=True, slots=True)
class _Conversation:
    """What the request brings into the template, in plain JSON types."""

    messages: list[Message]
    tools: Tools | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    def strings(self) -> Iterator[str]:
        return strings([self.messages, self.tools, self.kwargs])

    def mapped(self, change: Callable[[str], str]) -> "_Conversation":
        messages, tools, kwargs = (mapped(value, change) for value in (self.messages, self.tools, self.kwargs))
        return replace(self, messages=messages, tools=tools, kwargs=kwargs)

    def with_final(self, message: Message) -> "_Conversation":
        return replace(self, messages=[*self.messages[:-1], message])


def _plain_kwargs(kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise RequestError("chat_template_kwargs must be an object", param="chat_template_kwargs")
    for name in kwargs or {}:
        if name in _RESERVED:
            param = f"chat_template_kwargs.{name}"
            raise RequestError(f"{param} cannot be set: the server sets {name}", param=param)
    plain: dict[str, Any] = plain_json(kwargs or {}, "chat_template_kwargs")
    return plain


def _opened(message: Message, end: str) -> tuple[Message, str]:
    """`message` with `end` behind what it says last (its content, or else its reasoning), and that text."""
    content = message["content"]
    if not content:
        thoughts = {key: message[key] for key in REASONING_KEYS if message.get(key)}
        if thoughts:
            return message | {key: text + end for key, text in thoughts.items()}, next(iter(thoughts.values()))
    if isinstance(content, str):
        return message | {"content": content + end}, content
    last = content[-1] if content else {"type": "text", "text": ""}
    return message | {"content": [*content[:-1], last | {"text": last["text"] + end}]}, last["text"]
