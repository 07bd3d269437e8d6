"""POST /v1/completions."""

import uuid
from collections.abc import Iterator

from aiohttp import web
from msgspec import UNSET, UnsetType

from svc.errors import RequestError
from svc.http.body import with_body
from svc.http.generation import Answer, Generation, Piece
from svc.http.logprobs import CompletionLogprobs
from svc.http.middleware import scope_of
from svc.http.options import GenerationOptions, completion_options
from svc.http.prompts import NamedPrompt, check_number, encode_prompts
from svc.http.reply import reply
from svc.http.schema import (
    CompletionChoiceOut,
    CompletionIn,
    CompletionLogprobsOut,
    CompletionOut,
    decode,
)
from svc.http.service import DOOR, Service
from svc.http.text.chat_template import PromptTokens


async def create(request: web.Request) -> web.StreamResponse:
    service = request.app[DOOR].service
    options, prompts, echo = await with_body(request, _prepare, service)
    generation = Generation(service, f"cmpl-{uuid.uuid4().hex}", prompts, options, scope_of(request).arrival_s)
    return await reply(request, service, generation, CompletionDialect(service, generation, echo=echo))


def _prepare(raw: bytearray, service: Service) -> tuple[GenerationOptions, list[PromptTokens], bool]:
    body = decode(CompletionIn, raw)
    service.check_model(body.model)
    options = completion_options(body, service.vocabulary)
    prompts = encode_prompts(_split(body.prompt), service.vocabulary, service.engine.context_tokens)
    return options, prompts, bool(body.echo)


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
    """Text answers. Choice `i` belongs to prompt `i // n`. A stream's chunks look like the whole, with pieces of text."""

    ends_with_done = True

    def __init__(self, service: Service, generation: Generation, *, echo: bool) -> None:
        self._service = service
        self._generation = generation
        self._options: GenerationOptions = generation.options
        self._echo = echo
        self._progress: dict[int, _Progress] = {}

    # -- whole ------------------------------------------------------------------------------------------------------------------
    def add(self, piece: Piece) -> None:
        self._of(piece.answer).add(piece)

    def whole(self) -> CompletionOut:
        whole = self._chunk(*(self._take(answer, first=True) for answer in self._generation.answers))
        whole.usage = self._generation.usage()
        whole.timings = self._generation.timings()
        whole.headrace = self._generation.report() or UNSET
        return whole

    # -- stream -----------------------------------------------------------------------------------------------------------------
    def chunks(self, piece: Piece) -> Iterator[CompletionOut]:
        progress = self._of(piece.answer)
        progress.add(piece)
        if progress.text or progress.finish_reason:
            chunk = self._chunk(self._take(piece.answer, first=not progress.begun))
            if piece.finish_reason:
                chunk.timings = piece.answer.timings()
            yield chunk

    def last_chunk(self) -> CompletionOut | None:
        if not (self._options.include_usage or self._options.cache_report):
            return None
        chunk = self._chunk()
        chunk.usage = self._generation.usage() if self._options.include_usage else UNSET
        chunk.timings = self._generation.timings()
        chunk.headrace = self._generation.report() or UNSET
        return chunk

    # -- both -------------------------------------------------------------------------------------------------------------------
    def _of(self, answer: Answer) -> "_Progress":
        if answer.index not in self._progress:
            echoed = self._service.tokenizer.decode_known(answer.prompt.ids) if self._echo else ""
            logprobs = CompletionLogprobs(self._service.tokenizer) if self._options.logprobs else None
            self._progress[answer.index] = _Progress(echoed, logprobs)
        return self._progress[answer.index]

    def _take(self, answer: Answer, *, first: bool) -> CompletionChoiceOut:
        """What came since the last call, as a choice."""
        text, tokens, logprobs, reason = self._of(answer).take()
        ids: list[int] | UnsetType = tokens if self._options.return_token_ids else UNSET
        prompt_ids: list[int] | UnsetType = list(answer.prompt.ids) if self._options.return_token_ids and first else UNSET
        return CompletionChoiceOut(answer.index, text, reason, logprobs, prompt_ids, ids)

    def _chunk(self, *choices: CompletionChoiceOut) -> CompletionOut:
        return CompletionOut(
            id=self._generation.id,
            created=self._generation.created,
            model=self._service.model.name,
            system_fingerprint=self._service.fingerprint,
            choices=list(choices),
            usage=None if self._options.include_usage else UNSET,
        )


class _Progress:
    """What one answer has that was not sent yet."""

    def __init__(self, echoed: str, logprobs: CompletionLogprobs | None) -> None:
        self.text = echoed
        self.finish_reason: str | None = None
        self.begun = False
        self._tokens: list[int] = []
        self._logprobs = logprobs

    def add(self, piece: Piece) -> None:
        self.text += piece.text
        self._tokens += [event.token for event in piece.tokens]
        if self._logprobs:
            self._logprobs.add(piece.tokens)
        self.finish_reason = piece.finish_reason

    def take(self) -> tuple[str, list[int], CompletionLogprobsOut | None, str | None]:
        text, tokens = self.text, self._tokens
        self.text, self._tokens, self.begun = "", [], True
        return text, tokens, self._logprobs.take() if self._logprobs else None, self.finish_reason
