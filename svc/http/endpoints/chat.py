"""POST /v1/chat/completions."""

import uuid
from collections.abc import Iterator
from dataclasses import replace

from aiohttp import web
from msgspec import UNSET, Raw, UnsetType

from svc.http.answer import Answer, AnswerBuffer, TextDelta
from svc.http.body import with_body
from svc.http.chat_parts import deltas_of, message_of
from svc.http.chat_plan import (
    ChatPlan,
    chat_template,
    compiled,
    conversation,
    count_prompt,
    offered_tools,
    plan_chat,
    reasoning_format,
)
from svc.http.decoding import decode
from svc.http.endpoints.native import NativeDialect
from svc.http.errors import ApiError
from svc.http.generation import Generation
from svc.http.logprobs import ChatLogprobs
from svc.http.middleware import scope_of
from svc.http.options import GenerationOptions
from svc.http.reply import json_response, reply
from svc.http.schema import (
    ApplyTemplateIn,
    ApplyTemplateOut,
    ChatChoiceOut,
    ChatChunkChoiceOut,
    ChatChunkOut,
    ChatIn,
    ChatOut,
    CountOut,
    DeltaOut,
)
from svc.http.service import DOOR, Service
from svc.http.sse import DONE, HOLE, EventTemplate, event
from svc.http.text.answer_parts import ContentText, Part, ReasoningText
from svc.http.text.prompt_limit import PromptLimit
from svc.http.text.reasoning import ReasoningFormat
from svc.http.text_threads import TEXT_THREADS
from svc.http.timings import progress_of, timings_of, timings_so_far
from svc.slots.events import Progress


async def create(request: web.Request) -> web.StreamResponse:
    service = request.app[DOOR].service
    plan = await with_body(request, _plan, service)
    generation = await start(request, service, plan, f"chatcmpl-{uuid.uuid4().hex}")
    fields = service.answers.reasoning_fields if plan.show_reasoning else ()
    return await reply(request, service, generation, ChatDialect(service, generation, fields))


def _plan(raw: bytearray, service: Service) -> ChatPlan:
    body = decode(ChatIn, raw)
    plan = plan_chat(body, service)
    if plan.show_reasoning and reasoning_format(body, service) is ReasoningFormat.BOTH:
        return replace(plan, rules=replace(plan.rules, reasoning_in_content=True))
    return plan


async def count_tokens(request: web.Request) -> web.Response:
    """POST /v1/chat/completions/input_tokens, as llama-server's: how long the prompt of a request would be."""
    return await with_body(request, _count, request.app[DOOR].service)


def _count(raw: bytearray, service: Service) -> web.Response:
    return json_response(CountOut(count_prompt(decode(ChatIn, raw), service)))


async def start(
    request: web.Request, service: Service, plan: ChatPlan, id: str, logprobs: type[ChatLogprobs] = ChatLogprobs
) -> Generation:
    """The answers to a conversation, not yet asked for. `logprobs` writes those of their tokens."""
    rules = plan.rules
    if plan.needs_grammar:
        rules = await request.app[TEXT_THREADS].run_apart(compiled, plan, service.grammars)
    options = plan.options

    def new_buffer() -> AnswerBuffer:
        return AnswerBuffer(logprobs(service.tokenizer) if options.logprobs else None, options.return_token_ids)

    scope = scope_of(request)
    return Generation(service, id, [plan.prompt], options, scope.arrival_s, new_buffer, rules, plan.masked, scope.tenant)


async def apply_template(request: web.Request) -> web.Response:
    """POST /apply-template: the prompt that the conversation makes, as text, to be looked at or sent to /completion."""
    service = request.app[DOOR].service
    return await with_body(request, _apply_template, service)


def _apply_template(raw: bytearray, service: Service) -> web.Response:
    body = decode(ApplyTemplateIn, raw)
    PromptLimit(service.engine.context_tokens, "messages").check(len(body.messages))
    tools = offered_tools(body, service)
    template = chat_template(service)
    messages, how = conversation(body, service, tools)
    return json_response(ApplyTemplateOut(template.render(messages, **how)))


class ChatDialect:
    """Chat answers: whole messages, or chunks of deltas that begin with the role."""

    def __init__(self, service: Service, generation: Generation, reasoning_fields: tuple[str, ...]) -> None:
        """`reasoning_fields`: the fields that carry reasoning; none: it is not told."""
        self._service = service
        self._generation = generation
        self._options: GenerationOptions = generation.options
        extra = self._options.logprobs or self._options.return_token_ids or self._options.timings_per_token
        self._plain = not extra  # chunks have text and nothing else
        self._reasoning_fields = reasoning_fields
        self._contents: dict[int, str] = {}  # of whole answers
        self._texts: dict[tuple[int, type[Part]], EventTemplate] = {}  # by the answer's index and the kind of text

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
            verbose=self._verbose(self._generation.answers[0]),
        )

    def _choice(self, answer: Answer) -> ChatChoiceOut:
        delta = answer.buffer.take()
        self._contents[answer.index] = delta.content
        return ChatChoiceOut(
            index=answer.index,
            message=message_of(delta.parts, self._reasoning_fields),
            finish_reason=answer.finish_reason,
            logprobs=delta.logprobs,
            token_ids=self._token_ids(delta),
        )

    # -- stream -----------------------------------------------------------------------------------------------------------------
    def news(self, answer: Answer) -> bytes:
        index, reason = answer.index, answer.finish_reason
        events = b""
        if (index, ContentText) not in self._texts:
            events = event(self._opening(answer))
            self._texts[index, ContentText] = self._template(index, DeltaOut(content=HOLE))
        if self._options.return_progress:
            events += b"".join(event(self._progress(answer, progress)) for progress in answer.take_progress())
        if answer.buffer.parts or (reason and not self._plain):
            events += self._news(answer, answer.buffer.take())
        return events + event(self._end(answer)) if reason else events

    def _opening(self, answer: Answer) -> ChatChunkOut:
        chunk = self._chunk(ChatChunkChoiceOut(answer.index, DeltaOut(role="assistant", content="")))
        chunk.prompt_token_ids = self._prompt_ids(answer)
        return chunk

    def _progress(self, answer: Answer, progress: Progress) -> ChatChunkOut:
        chunk = self._chunk(ChatChunkChoiceOut(answer.index, DeltaOut()))
        chunk.prompt_progress = progress_of(progress)
        chunk.timings = timings_so_far(answer, progress) if self._options.timings_per_token else UNSET
        return chunk

    def _template(self, index: int, delta: DeltaOut) -> EventTemplate:
        return EventTemplate(self._chunk(ChatChunkChoiceOut(index, delta)))

    def _news(self, answer: Answer, delta: TextDelta) -> bytes:
        index = answer.index
        if self._plain and len(delta.parts) == 1:
            part = delta.parts[0]
            if isinstance(part, ContentText):
                return self._texts[index, ContentText].fill(part.text)
            if isinstance(part, ReasoningText) and self._reasoning_fields:
                return self._reasoning(index).fill(part.text)
        chunks = list(self._chunks(index, delta))
        if self._options.timings_per_token and chunks and not answer.ended:
            chunks[-1].timings = timings_so_far(answer)
        return b"".join(map(event, chunks))

    def _reasoning(self, index: int) -> EventTemplate:
        key = index, ReasoningText
        if key not in self._texts:
            (delta,) = deltas_of([ReasoningText(HOLE)], self._reasoning_fields)
            self._texts[key] = self._template(index, delta)
        return self._texts[key]

    def _chunks(self, index: int, delta: TextDelta) -> Iterator[ChatChunkOut]:
        """The first has what is told of the tokens."""
        deltas = list(deltas_of(delta.parts, self._reasoning_fields))
        if not (deltas or self._plain):
            deltas.append(DeltaOut(content=""))
        for n, each in enumerate(deltas):
            choice = ChatChunkChoiceOut(index, each)
            if n == 0:
                choice.logprobs, choice.token_ids = delta.logprobs, self._token_ids(delta)
            yield self._chunk(choice)

    def _end(self, answer: Answer) -> ChatChunkOut:
        chunk = self._chunk(ChatChunkChoiceOut(answer.index, DeltaOut(), finish_reason=answer.finish_reason))
        chunk.timings = timings_of(answer)
        chunk.verbose = self._verbose(answer)
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

    def error_event(self, error: ApiError) -> bytes:
        return event(error.body())

    # -- both -------------------------------------------------------------------------------------------------------------------
    def _verbose(self, answer: Answer) -> Raw | UnsetType:
        """A stream has told the text."""
        if not self._options.verbose:
            return UNSET
        return NativeDialect(self._service, self._generation).verbose(answer, self._contents.get(answer.index, ""))

    def _token_ids(self, delta: TextDelta) -> list[int] | UnsetType:
        return delta.token_ids if self._options.return_token_ids else UNSET

    def _prompt_ids(self, answer: Answer) -> list[int] | UnsetType:
        return list(answer.prompt.ids) if self._options.return_token_ids else UNSET
