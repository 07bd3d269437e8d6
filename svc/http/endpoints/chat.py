"""POST /v1/chat/completions."""

import uuid
from typing import Any

from aiohttp import web
from msgspec import UNSET, UnsetType

from svc.errors import RequestError
from svc.http.answer import Answer, AnswerBuffer, TextDelta
from svc.http.body import with_body
from svc.http.fields import blaming
from svc.http.generation import Generation
from svc.http.logprobs import ChatLogprobs
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
    ChatOut,
    DeltaOut,
    JsonObject,
    MessageOut,
    decode,
)
from svc.http.service import DOOR, Service
from svc.http.sse import DONE, HOLE, EventTemplate, event
from svc.http.template_variables import template_variables
from svc.http.text.chat_template import ChatTemplate, PromptTokens
from svc.http.text.prompt_limit import PromptLimit
from svc.http.timings import timings_of


async def create(request: web.Request) -> web.StreamResponse:
    service = request.app[DOOR].service
    options, prompt = await with_body(request, _prepare, service)
    generation = Generation(
        service, f"chatcmpl-{uuid.uuid4().hex}", [prompt], options, scope_of(request).arrival_s, lambda: _buffer(service, options)
    )
    return await reply(request, service, generation, ChatDialect(service, generation))


def _buffer(service: Service, options: GenerationOptions) -> AnswerBuffer:
    return AnswerBuffer(ChatLogprobs(service.tokenizer) if options.logprobs else None, options.return_token_ids)


def _prepare(raw: bytearray, service: Service) -> tuple[GenerationOptions, PromptTokens]:
    body = decode(ChatIn, raw)
    service.check_model(body.model)
    options = chat_options(body, service.vocabulary)
    limit = PromptLimit(service.engine.context_tokens, "messages")
    with blaming("messages"):
        return options, _template(service).encode_chat(body.messages, limit=limit, **_rendering(body, service))


async def apply_template(request: web.Request) -> web.Response:
    """POST /apply-template: the prompt that the conversation makes, as text, to be looked at or sent to /completion."""
    service = request.app[DOOR].service
    return await with_body(request, _apply_template, service)


def _apply_template(raw: bytearray, service: Service) -> web.Response:
    body = decode(ApplyTemplateIn, raw)
    PromptLimit(service.engine.context_tokens, "messages").check(len(body.messages))
    return json_response(ApplyTemplateOut(_template(service).render(body.messages, **_rendering(body, service))))


def _template(service: Service) -> ChatTemplate:
    if service.template is None:
        raise RequestError("This model has no chat template; use /v1/completions.", param="messages", code="no_chat_template")
    return service.template


def _rendering(body: ChatIn | ApplyTemplateIn, service: Service) -> dict[str, Any]:
    """How to apply the template; a template that refuses the conversation is the client's error."""
    continued = body.continue_final_message
    if continued is None:
        implied = service.prefill_assistant and body.add_generation_prompt is None
        continued = implied and _ends_with_an_answer(body.messages)
    return {
        "tools": None if body.tool_choice == "none" else body.tools,
        "add_generation_prompt": not continued if body.add_generation_prompt is None else body.add_generation_prompt,
        "continue_final_message": continued,
        "kwargs": template_variables(body),
    }


def _ends_with_an_answer(messages: list[JsonObject]) -> bool:
    final = messages[-1] if messages else {}
    return final.get("role") == "assistant" and not final.get("tool_calls") and not final.get("function_call")


class ChatDialect:
    """Chat answers: whole messages, or chunks of deltas that begin with the role."""

    def __init__(self, service: Service, generation: Generation) -> None:
        self._service = service
        self._generation = generation
        self._options: GenerationOptions = generation.options
        self._plain = not (self._options.logprobs or self._options.return_token_ids)  # chunks have text and nothing else
        self._texts: dict[int, EventTemplate] = {}  # by the answer's index, from its beginning on

    # -- whole ------------------------------------------------------------------------------------------------------------------
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
        delta = answer.buffer.take()
        return ChatChoiceOut(
            index=answer.index,
            message=MessageOut(delta.content),
            finish_reason=answer.finish_reason,
            logprobs=delta.logprobs,
            token_ids=self._token_ids(delta),
        )

    # -- stream -----------------------------------------------------------------------------------------------------------------
    def news(self, answer: Answer) -> bytes:
        index, reason = answer.index, answer.finish_reason
        events = b""
        if index not in self._texts:
            events = event(self._opening(answer))
            self._texts[index] = EventTemplate(self._chunk(ChatChunkChoiceOut(index, DeltaOut(content=HOLE))))
        if answer.buffer.parts or (reason and not self._plain):
            events += self._text(index, answer.buffer.take())
        return events + event(self._end(answer)) if reason else events

    def _opening(self, answer: Answer) -> ChatChunkOut:
        chunk = self._chunk(ChatChunkChoiceOut(answer.index, DeltaOut(role="assistant", content="")))
        chunk.prompt_token_ids = self._prompt_ids(answer)
        return chunk

    def _text(self, index: int, delta: TextDelta) -> bytes:
        if self._plain:
            return self._texts[index].fill(delta.content)
        choice = ChatChunkChoiceOut(
            index, DeltaOut(content=delta.content), logprobs=delta.logprobs, token_ids=self._token_ids(delta)
        )
        return event(self._chunk(choice))

    def _end(self, answer: Answer) -> ChatChunkOut:
        chunk = self._chunk(ChatChunkChoiceOut(answer.index, DeltaOut(), finish_reason=answer.finish_reason))
        chunk.timings = timings_of(answer)
        return chunk

    def last_events(self) -> bytes:
        if not (self._options.include_usage or self._options.cache_report):
            return DONE
        chunk = self._chunk()
        chunk.usage = self._generation.usage() if self._options.include_usage else UNSET
        chunk.timings = self._generation.timings()
        chunk.headrace = self._generation.report() or UNSET
        return event(chunk) + DONE

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
    def _token_ids(self, delta: TextDelta) -> list[int] | UnsetType:
        return delta.token_ids if self._options.return_token_ids else UNSET

    def _prompt_ids(self, answer: Answer) -> list[int] | UnsetType:
        return list(answer.prompt.ids) if self._options.return_token_ids else UNSET
