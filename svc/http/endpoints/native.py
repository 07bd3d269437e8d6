"""POST /completion as llama-server has it. Its answers have no [DONE], and tell all about one answer in one object."""

import uuid
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec
from aiohttp import web
from msgspec import UNSET, Raw

from svc.errors import RequestError
from svc.http.answer import Answer, AnswerBuffer, TextDelta
from svc.http.answer_rules import FREE, held_to
from svc.http.body import with_body
from svc.http.decoding import decode
from svc.http.errors import ApiError
from svc.http.fields import response_fields, shown
from svc.http.generation import Generation
from svc.http.grammar_fields import AnswerGrammar, answer_grammar
from svc.http.logprobs import NativeProbabilities, NativeShares
from svc.http.middleware import scope_of
from svc.http.native_schema import BiasOut, NativeChunkOut, NativeOut, SettingsOut
from svc.http.options import GenerationOptions, native_options
from svc.http.prompts import MAX_PROMPTS, NamedPrompt, check_number, encode_prompts
from svc.http.reply import reply
from svc.http.schema import InfillIn, JsonObject, NativeIn
from svc.http.service import DOOR, Service
from svc.http.sse import event
from svc.http.text.answer_parts import ContentText
from svc.http.text.chat_template import PromptTokens
from svc.http.text.fill_in import FillIn, other_files
from svc.http.text_threads import TEXT_THREADS
from svc.http.timings import progress_of, timings_of, timings_so_far
from svc.slots.events import Progress

NO_SLOT = -1  # which slot an answer gets is the scheduler's business, and may change on the way


async def create(request: web.Request) -> web.StreamResponse:
    return await answer(request, *await with_body(request, _prepare, request.app[DOOR].service))


async def infill(request: web.Request) -> web.StreamResponse:
    """POST /infill: a prompt with a gap, answered as /completion."""
    return await answer(request, *await with_body(request, _prepare_infill, request.app[DOOR].service))


async def answer(
    request: web.Request,
    body: NativeIn,
    options: GenerationOptions,
    grammar: AnswerGrammar | None,
    prompts: list[PromptTokens],
) -> web.StreamResponse:
    service = request.app[DOOR].service
    keep_ids = options.stream or bool(body.return_tokens or body.return_token_ids)

    def new_buffer() -> AnswerBuffer:
        probabilities = NativeShares if options.samplers.post_sampling_probs else NativeProbabilities
        return AnswerBuffer(probabilities(service.tokenizer) if options.logprobs else None, keep_ids)

    rules = await request.app[TEXT_THREADS].run_apart(held_to, grammar, service.grammars) if grammar else FREE
    id, scope = f"completion-{uuid.uuid4().hex}", scope_of(request)
    generation = Generation(service, id, prompts, options, scope.arrival_s, new_buffer, rules, tenant=scope.tenant)
    return await reply(request, service, generation, NativeDialect(service, generation, body.response_fields or ()))


Prepared = tuple[NativeIn, GenerationOptions, AnswerGrammar | None, list[PromptTokens]]


def _prepare(raw: bytearray, service: Service) -> Prepared:
    body = decode(NativeIn, raw)
    options, grammar = _checked(body, service)
    return body, options, grammar, encode_prompts(_split(body.prompt), service.vocabulary, service.engine.context_tokens)


def _prepare_infill(raw: bytearray, service: Service) -> Prepared:
    body = decode(InfillIn, raw)
    options, grammar = _checked(body, service)
    fill_in = FillIn(service.tokenizer, service.engine.context_tokens, options.max_tokens)
    others = other_files(body.input_extra or (), MAX_PROMPTS)
    prompt = fill_in.window(body.input_prefix, body.prompt, body.input_suffix, others)
    return body, options.ending_with(fill_in.tokens.ends), grammar, [prompt]


def _checked(body: NativeIn, service: Service) -> tuple[GenerationOptions, AnswerGrammar | None]:
    """What both ask for beside their prompts. A grammar may be long, so it is read here, where the body is."""
    service.check_model(body.model)
    options = native_options(body, service.vocabulary, service.answers.sampling)
    body.response_fields = response_fields(body.response_fields)
    return options, answer_grammar(body)


def settings(service: Service, options: GenerationOptions) -> SettingsOut:
    """What an answer was made with; -1 is "no limit"."""
    params, limit = options.params, -1 if options.max_tokens is None else options.max_tokens
    biases = [*(BiasOut(token, bias) for token, bias in params.logit_bias), *(BiasOut(token, None) for token in options.banned)]
    fields = asdict(options.samplers)
    fields |= {name: list(fields[name]) for name in ("samplers", "dry_sequence_breakers")}
    return SettingsOut(
        n_predict=limit,
        max_tokens=limit,
        min_tokens=options.min_tokens,
        seed=params.seed,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repeat_last_n=params.repeat_last_n,
        repeat_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=biases,
        stop=list(options.stop),
        ignore_eos=options.ignore_eos,
        stream=options.stream,
        n_probs=params.num_logprobs or 0,
        n_ctx=service.engine.context_tokens,
        model=service.model.name,
        **fields,
    )


class NativeDialect:
    """One object per answer; several prompts or choices make a list of them, and events that tell them apart by `index`."""

    def __init__(self, service: Service, generation: Generation, fields: Sequence[str] = ()) -> None:
        """`fields`: the only ones that are told of an answer; none: all."""
        self._service = service
        self._generation = generation
        self._options = generation.options
        self._fields = fields
        self._settings = settings(service, generation.options)
        self._prompt_texts: dict[int, str] = {}  # by the identity of a prompt, which several answers may have

    # -- whole ------------------------------------------------------------------------------------------------------------------
    def whole(self) -> object:
        answers = [self._end(answer, answer.buffer.take()) for answer in self._generation.answers]
        return answers if len(answers) > 1 else answers[0]

    # -- stream -----------------------------------------------------------------------------------------------------------------
    def news(self, answer: Answer) -> bytes:
        buffer, reason = answer.buffer, answer.finish_reason
        events = b"".join(event(self._progress(answer, progress)) for progress in answer.take_progress())
        if buffer.parts or (reason and buffer.token_ids):
            events += event(self._chunk(answer, buffer.take()))
        return events + event(self._end(answer, TextDelta([], [], None))) if reason else events

    def _chunk(self, answer: Answer, delta: TextDelta) -> NativeChunkOut:
        return NativeChunkOut(
            index=answer.index,
            content=delta.content,
            tokens=delta.token_ids,
            stop=False,
            id_slot=NO_SLOT,
            tokens_predicted=answer.num_tokens,
            tokens_evaluated=len(answer.prompt.ids),
            completion_probabilities=delta.logprobs or UNSET,
            timings=timings_so_far(answer) if self._options.timings_per_token and not answer.ended else UNSET,
        )

    def _progress(self, answer: Answer, progress: Progress) -> NativeChunkOut:
        chunk = self._chunk(answer, TextDelta([], [], None))
        chunk.tokens_predicted, chunk.prompt_progress = 0, progress_of(progress)
        chunk.timings = timings_so_far(answer, progress) if self._options.timings_per_token else UNSET
        return chunk

    def last_events(self) -> bytes:
        return b""

    def error_event(self, error: ApiError) -> bytes:
        return event(error.body())

    # -- both -------------------------------------------------------------------------------------------------------------------
    def verbose(self, answer: Answer, content: str) -> Raw:
        """One that has ended, to be shown beside another form of it."""
        return Raw(msgspec.json.encode(self._out(answer, TextDelta([ContentText(content)], [], None))))

    def _end(self, answer: Answer, delta: TextDelta) -> object:
        """The whole answer, or the last event of its stream."""
        out = self._out(answer, delta)
        return out if not self._fields else picked(msgspec.to_builtins(out, builtin_types=(Raw,)), self._fields)

    def _out(self, answer: Answer, delta: TextDelta) -> NativeOut:
        assert answer.finished is not None
        usage = answer.finished.usage
        return NativeOut(
            index=answer.index,
            content=delta.content,
            tokens=delta.token_ids,
            id_slot=NO_SLOT,
            stop=True,
            model=self._service.model.name,
            tokens_predicted=usage.completion_tokens,
            tokens_evaluated=usage.prompt_tokens,
            generation_settings=self._settings,
            prompt=self._prompt_text(answer.prompt),
            has_new_line=answer.has_new_line,
            truncated=self._truncated(answer),
            stop_type=answer.stop_type,
            stopping_word=answer.stopping_word or "",
            tokens_cached=usage.cached_tokens,
            timings=timings_of(answer),
            completion_probabilities=delta.logprobs or UNSET,
            headrace=self._generation.report_of(answer) or UNSET,
        )

    def _prompt_text(self, prompt: PromptTokens) -> str:
        if id(prompt) not in self._prompt_texts:
            self._prompt_texts[id(prompt)] = self._service.tokenizer.decode_known(prompt.ids)
        return self._prompt_texts[id(prompt)]

    def _truncated(self, answer: Answer) -> bool:
        """Whether the answer ended because the context is full."""
        assert answer.finished is not None
        usage = answer.finished.usage
        full = usage.prompt_tokens + usage.completion_tokens > self._service.engine.context_tokens
        return answer.stop_type == "limit" and full


def picked(answer: JsonObject, fields: Sequence[str]) -> JsonObject:
    """Only `fields`: "timings/prompt_n" is a field inside a field and keeps that name; what there is not is left out."""
    out: JsonObject = {}
    for field in fields:
        value: Any = answer
        for name in field.split("/"):
            if not isinstance(value, dict) or name not in value:
                break
            value = value[name]
        else:
            out[field] = value
    return out


def _split(prompt: str | JsonObject | list[Any]) -> list[NamedPrompt]:
    """A list with a token id in it is one prompt; any other is a list of prompts."""
    if not isinstance(prompt, list) or any(isinstance(item, int) for item in prompt):
        return [_single("prompt", prompt)]
    if not prompt:
        raise RequestError("prompt must not be an empty list.", param="prompt")
    check_number(prompt)
    return [_single(f"prompt[{index}]", item) for index, item in enumerate(prompt)]


def _single(param: str, prompt: Any) -> NamedPrompt:
    if isinstance(prompt, dict) and isinstance(prompt.get("prompt_string"), str) and not prompt.get("multimodal_data"):
        return NamedPrompt(param, prompt["prompt_string"])
    if isinstance(prompt, str | list):
        return NamedPrompt(param, prompt)
    raise RequestError(f"{param} must be text, or a list of token ids and texts, not {shown(prompt)}.", param=param)
