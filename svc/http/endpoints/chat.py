"""POST /v1/chat/completions."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from msgspec import UNSET, Raw, UnsetType

from svc.errors import RequestError
from svc.http.body import with_body
from svc.http.fields import blaming
from svc.http.generation import Answer, Generation, Piece
from svc.http.logprobs import chat_logprobs
from svc.http.middleware import scope_of
from svc.http.options import GenerationOptions, chat_options
from svc.http.reply import json_response, reply
from svc.http.schema import (
    ApplyTemplateIn,
    ApplyTemplateOut,
    ChatChoiceOut,
    ChatChunkChoiceOut,
    ChatChunkOut,
    ChatIn,
    ChatLogprobsOut,
    ChatOut,
    DeltaOut,
    MessageOut,
    decode,
)
from svc.http.service import DOOR, Service
from svc.http.template_variables import template_variables
from svc.http.text.chat_template import ChatTemplate, PromptTokens
from svc.http.text.prompt_limit import PromptLimit
from svc.slots.events import TokenEvent


async def create(request: web.Request) -> web.StreamResponse:
    service = request.app[DOOR].service
    options, prompt = await with_body(request, _prepare, service)
    generation = Generation(service, f"chatcmpl-{uuid.uuid4().hex}", [prompt], options, scope_of(request).arrival_s)
    return await reply(request, service, generation, ChatDialect(service, generation))


def _prepare(raw: bytearray, service: Service) -> tuple[GenerationOptions, PromptTokens]:
    body = decode(ChatIn, raw)
    service.check_model(body.model)
    options = chat_options(body, service.vocabulary)
    limit = PromptLimit(service.engine.context_tokens, "messages")
    with blaming("messages"):
        return options, _template(service).encode_chat(body.messages, limit=limit, **_rendering(body))


async def apply_template(request: web.Request) -> web.Response:
    """POST /apply-template: the prompt that the conversation makes, as text, to be looked at or sent to /completion."""
    service = request.app[DOOR].service
    return await with_body(request, _apply_template, service)


def _apply_template(raw: bytearray, service: Service) -> web.Response:
    body = decode(ApplyTemplateIn, raw)
    PromptLimit(service.engine.context_tokens, "messages").check(len(body.messages))
    return json_response(ApplyTemplateOut(_template(service).render(body.messages, **_rendering(body))))


def _template(service: Service) -> ChatTemplate:
    if service.template is None:
        raise RequestError("This model has no chat template; use /v1/completions.", param="messages", code="no_chat_template")
    return service.template


def _rendering(body: ChatIn | ApplyTemplateIn) -> dict[str, Any]:
    """How the template is to be applied; a template that refuses the conversation is the client's error."""
    continued = bool(body.continue_final_message)
    return {
        "tools": None if body.tool_choice == "none" else body.tools,
        "add_generation_prompt": not continued if body.add_generation_prompt is None else body.add_generation_prompt,
        "continue_final_message": continued,
        "kwargs": template_variables(body),
    }


class ChatDialect:
    """Chat answers: whole messages, or chunks of deltas that begin with the role."""

    ends_with_done = True

    def __init__(self, service: Service, generation: Generation) -> None:
        self._service = service
        self._generation = generation
        self._options: GenerationOptions = generation.options
        self._kept: dict[int, _Kept] = {}
        self._unsent: dict[int, list[TokenEvent]] = {}  # tokens whose text is held back, for the next chunk's logprobs

    # -- whole ------------------------------------------------------------------------------------------------------------------
    def add(self, piece: Piece) -> None:
        kept = self._kept.setdefault(piece.answer.index, _Kept())
        kept.texts.append(piece.text)
        kept.finish_reason = piece.finish_reason or kept.finish_reason
        if self._options.return_token_ids:
            kept.token_ids += [event.token for event in piece.tokens]
        if self._options.logprobs:
            kept.logprobs += chat_logprobs(piece.tokens, self._service.tokenizer)

    def whole(self) -> ChatOut:
        return ChatOut(
            id=self._generation.id,
            created=self._generation.created,
            model=self._service.model.name,
            system_fingerprint=self._service.fingerprint,
            choices=[self._choice(answer) for answer in self._generation.answers],
            usage=self._generation.usage(),
            timings=self._generation.timings(),
            prompt_token_ids=self._prompt_ids(self._generation.answers[0]),
            headrace=self._generation.report() or UNSET,
        )

    def _choice(self, answer: Answer) -> ChatChoiceOut:
        kept = self._kept[answer.index]
        return ChatChoiceOut(
            index=answer.index,
            message=MessageOut("".join(kept.texts)),
            finish_reason=kept.finish_reason,
            logprobs=ChatLogprobsOut(kept.logprobs) if self._options.logprobs else None,
            token_ids=kept.token_ids if self._options.return_token_ids else UNSET,
        )

    # -- stream -----------------------------------------------------------------------------------------------------------------
    def chunks(self, piece: Piece) -> Iterator[ChatChunkOut]:
        index = piece.answer.index
        if index not in self._unsent:
            self._unsent[index] = []
            yield self._opening(piece.answer)
        tokens = self._unsent[index]
        tokens += piece.tokens
        if piece.text or (piece.finish_reason and tokens and (self._options.logprobs or self._options.return_token_ids)):
            self._unsent[index] = []
            yield self._chunk(
                ChatChunkChoiceOut(
                    index, DeltaOut(content=piece.text), logprobs=self._logprobs(tokens), token_ids=self._token_ids(tokens)
                )
            )
        if piece.finish_reason:
            end = self._chunk(ChatChunkChoiceOut(index, DeltaOut(), finish_reason=piece.finish_reason))
            end.timings = piece.answer.timings()
            yield end

    def _opening(self, answer: Answer) -> ChatChunkOut:
        chunk = self._chunk(ChatChunkChoiceOut(answer.index, DeltaOut(role="assistant", content="")))
        chunk.prompt_token_ids = self._prompt_ids(answer)
        return chunk

    def last_chunk(self) -> ChatChunkOut | None:
        if not (self._options.include_usage or self._options.cache_report):
            return None
        chunk = self._chunk()
        chunk.usage = self._generation.usage() if self._options.include_usage else UNSET
        chunk.timings = self._generation.timings()
        chunk.headrace = self._generation.report() or UNSET
        return chunk

    def _chunk(self, *choices: ChatChunkChoiceOut) -> ChatChunkOut:
        return ChatChunkOut(
            id=self._generation.id,
            created=self._generation.created,
            model=self._service.model.name,
            system_fingerprint=self._service.fingerprint,
            choices=list(choices),
            usage=None if self._options.include_usage else UNSET,
        )

    # -- both -------------------------------------------------------------------------------------------------------------------
    def _logprobs(self, tokens: list[TokenEvent]) -> ChatLogprobsOut | None:
        return ChatLogprobsOut(chat_logprobs(tokens, self._service.tokenizer)) if self._options.logprobs else None

    def _token_ids(self, tokens: list[TokenEvent]) -> list[int] | UnsetType:
        return [event.token for event in tokens] if self._options.return_token_ids else UNSET

    def _prompt_ids(self, answer: Answer) -> list[int] | UnsetType:
        return list(answer.prompt.ids) if self._options.return_token_ids else UNSET


@dataclass(slots=True)
class _Kept:
    """One answer so far."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Raw] = field(default_factory=list)
    finish_reason: str = ""
