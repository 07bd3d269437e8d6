"""POST /v1/completions."""

import uuid
from functools import partial

from aiohttp import web
from msgspec import UNSET, Raw, UnsetType

from svc.errors import RequestError
from svc.http.answer import Answer, AnswerBuffer
from svc.http.answer_rules import FREE, held_to
from svc.http.body import with_body
from svc.http.decoding import decode
from svc.http.endpoints.native import NativeDialect
from svc.http.errors import ApiError
from svc.http.fields import blaming
from svc.http.generation import Generation
from svc.http.grammar_fields import AnswerGrammar, answer_grammar
from svc.http.logprobs import CompletionLogprobs
from svc.http.middleware import scope_of
from svc.http.options import GenerationOptions, completion_options
from svc.http.prompts import NamedPrompt, check_number, check_total, encode_prompts
from svc.http.reply import reply
from svc.http.schema import CompletionChoiceOut, CompletionIn, CompletionOut
from svc.http.service import DOOR, Service
from svc.http.sse import DONE, HOLE, EventTemplate, event
from svc.http.text.chat_template import PromptTokens
from svc.http.text.fill_in import FillIn
from svc.http.text_threads import TEXT_THREADS
from svc.http.timings import progress_of, timings_of, timings_so_far
from svc.slots.events import Progress


async def create(request: web.Request) -> web.StreamResponse:
    service = request.app[DOOR].service
    options, prompts, echo, grammar = await with_body(request, _prepare, service)
    rules = await request.app[TEXT_THREADS].run_apart(held_to, grammar, service.grammars) if grammar else FREE
    id, scope = f"cmpl-{uuid.uuid4().hex}", scope_of(request)
    buffer = partial(_buffer, service, options)
    generation = Generation(service, id, prompts, options, scope.arrival_s, buffer, rules, tenant=scope.tenant)
    return await reply(request, service, generation, CompletionDialect(service, generation, echo=echo))


def _buffer(service: Service, options: GenerationOptions) -> AnswerBuffer:
    return AnswerBuffer(CompletionLogprobs(service.tokenizer) if options.logprobs else None, options.return_token_ids)


def _prepare(raw: bytearray, service: Service) -> tuple[GenerationOptions, list[PromptTokens], bool, AnswerGrammar | None]:
    body = decode(CompletionIn, raw)
    service.check_model(body.model)
    options = completion_options(body, service.vocabulary, service.answers.sampling)
    if body.suffix:
        options, prompts = _with_gaps(body, body.suffix, options, service)
    else:
        prompts = encode_prompts(_split(body.prompt), service.vocabulary, service.engine.context_tokens)
    return options, prompts, bool(body.echo), answer_grammar(body)


def _with_gaps(
    body: CompletionIn, suffix: str, options: GenerationOptions, service: Service
) -> tuple[GenerationOptions, list[PromptTokens]]:
    """What is between each prompt and the suffix."""
    if body.echo:
        raise RequestError("echo together with suffix is not supported.", param="echo", code="unsupported_parameter")
    with blaming("suffix"):
        fill_in = FillIn(service.tokenizer, service.engine.context_tokens, options.max_tokens)
    prompts = [fill_in.whole(_text(prompt), suffix, prompt.param) for prompt in _split(body.prompt)]
    check_total(map(len, (prompt.ids for prompt in prompts)), service.engine.context_tokens)
    return options.ending_with(fill_in.tokens.ends), prompts


def _text(prompt: NamedPrompt) -> str:
    if not isinstance(prompt.raw, str):
        raise RequestError(f"{prompt.param} must be a text where there is a suffix.", param=prompt.param)
    return prompt.raw


def _split(prompt: str | list[str | int | list[int]]) -> list[NamedPrompt]:
    """(name, prompt) of each prompt in the four forms that OpenAI allows."""
    if isinstance(prompt, str):
        return [NamedPrompt("prompt", prompt)]
    if not prompt:
        raise RequestError("prompt must not be an empty list.", param="prompt")
    kind = type(prompt[0])
    if set(map(type, prompt)) != {kind}:
        index = next(index for index, item in enumerate(prompt) if type(item) is not kind)
        param = f"prompt[{index}]"
        raise RequestError(f"{param}: strings, token ids and lists of token ids cannot be mixed in one prompt.", param=param)
    if kind is int:
        return [NamedPrompt("prompt", prompt)]
    check_number(prompt)
    return [NamedPrompt(f"prompt[{index}]", item) for index, item in enumerate(prompt) if not isinstance(item, int)]


class CompletionDialect:
    """Text answers. Choice `i` belongs to prompt `i // n`. A stream's chunks look like the whole, each with the next text."""

    def __init__(self, service: Service, generation: Generation, *, echo: bool) -> None:
        self._service = service
        self._generation = generation
        self._options: GenerationOptions = generation.options
        self._echo = echo
        extra = self._options.logprobs or self._options.return_token_ids or self._options.timings_per_token
        self._plain = not extra  # chunks have text and nothing else
        self._texts: dict[int, EventTemplate] = {}  # by the answer's index, from its first chunk on

    # -- whole ------------------------------------------------------------------------------------------------------------------
    def whole(self) -> CompletionOut:
        whole = self._chunk(*(self._choice(answer, first=True) for answer in self._generation.answers))
        whole.usage = self._generation.usage()
        whole.timings = self._generation.timings()
        whole.headrace = self._generation.report() or UNSET
        whole.verbose = self._verbose(self._generation.answers[0], whole.choices[0].text)
        return whole

    # -- stream -----------------------------------------------------------------------------------------------------------------
    def news(self, answer: Answer) -> bytes:
        index, begun = answer.index, answer.index in self._texts
        events = b"".join(event(self._progress(answer, progress)) for progress in answer.take_progress())
        if not (answer.buffer.parts or answer.finish_reason or (self._echo and not begun)):
            return events
        if not begun:
            self._texts[index] = EventTemplate(self._chunk(CompletionChoiceOut(index, HOLE)))
        if begun and self._plain and not answer.finish_reason:
            return events + self._texts[index].fill(answer.buffer.take().content)
        chunk = self._chunk(self._choice(answer, first=not begun))
        if answer.finish_reason:
            chunk.timings = timings_of(answer)
            chunk.verbose = self._verbose(answer, "")
        elif self._options.timings_per_token:
            chunk.timings = timings_so_far(answer)
        return events + event(chunk)

    def _progress(self, answer: Answer, progress: Progress) -> CompletionOut:
        chunk = self._chunk(CompletionChoiceOut(answer.index, ""))
        chunk.prompt_progress = progress_of(progress)
        chunk.timings = timings_so_far(answer, progress) if self._options.timings_per_token else UNSET
        return chunk

    def last_events(self) -> bytes:
        if not (self._options.include_usage or self._options.cache_report):
            return DONE
        chunk = self._chunk()
        chunk.usage = self._generation.usage() if self._options.include_usage else UNSET
        chunk.timings = self._generation.timings()
        chunk.headrace = self._generation.report() or UNSET
        return event(chunk) + DONE

    def error_event(self, error: ApiError) -> bytes:
        return event(error.body())

    # -- both -------------------------------------------------------------------------------------------------------------------
    def _verbose(self, answer: Answer, text: str) -> Raw | UnsetType:
        return NativeDialect(self._service, self._generation).verbose(answer, text) if self._options.verbose else UNSET

    def _choice(self, answer: Answer, *, first: bool) -> CompletionChoiceOut:
        """What came since the last call; at `first` with what belongs in front of it."""
        delta = answer.buffer.take()
        echoed = self._service.tokenizer.decode_known(answer.prompt.ids) if self._echo and first else ""
        ids: list[int] | UnsetType = delta.token_ids if self._options.return_token_ids else UNSET
        prompt_ids: list[int] | UnsetType = list(answer.prompt.ids) if self._options.return_token_ids and first else UNSET
        return CompletionChoiceOut(answer.index, echoed + delta.content, answer.finish_reason, delta.logprobs, prompt_ids, ids)

    def _chunk(self, *choices: CompletionChoiceOut) -> CompletionOut:
        return CompletionOut(
            id=self._generation.id,
            created=self._generation.created,
            model=self._service.model.name,
            system_fingerprint=self._service.fingerprint,
            choices=list(choices),
            usage=None if self._options.include_usage else UNSET,
        )
