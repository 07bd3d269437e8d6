"""The answers of one HTTP request: submitted together, read as one, cancelled together."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

from svc.http.errors import ApiError, internal_error, unavailable
from svc.http.options import GenerationOptions
from svc.http.schema import CacheReportOut, HeadraceOut, PromptTokensDetails, UsageOut
from svc.http.service import Service
from svc.http.text.answer_text import AnswerText
from svc.http.text.chat_template import PromptTokens
from svc.metrics import Metrics
from svc.slots.events import Event, Finished, FinishReason, TokenEvent
from svc.slots.request import Request
from svc.slots.stream import TokenStream


@dataclass(frozen=True, slots=True)
class Piece:
    """News of one answer: the text that may be shown now, the tokens since the last piece, and the end if it came.

    Text lags behind tokens where a stop string or an unfinished character is held back. All tokens are told, also those of a
    stop string, whose text is never shown.
    """

    answer: "Answer"
    text: str
    tokens: list[TokenEvent]
    finish_reason: str | None = None  # "stop" or "length" with the last piece
    error: Exception | None = None  # instead of a finish reason: to be raised once the text has been dealt with


class Answer:
    """One choice of one prompt on its way. `on_token` runs inside the step loop's commit, everything else in the handler."""

    def __init__(self, index: int, prompt: PromptTokens, text: AnswerText, metrics: Metrics, arrival_s: float) -> None:
        """`arrival_s`: when the HTTP request came, on the clock of time.monotonic."""
        self.index = index
        self.prompt = prompt
        self.finished: Finished | None = None
        self._text = text
        self._metrics = metrics
        self._arrival_s = arrival_s
        self._last_token_s: float | None = None
        self._deltas: deque[str] = deque()  # one per TokenEvent that has not been read yet

    def on_token(self, token: int) -> bool:
        """The engine's question after each token: does the answer end here?"""
        now = time.monotonic()
        if self._last_token_s is None:
            self._metrics.first_token(now - self._arrival_s)
        else:
            self._metrics.next_token(now - self._last_token_s)
        self._last_token_s = now
        delta = self._text.push(token)
        self._deltas.append(delta.text)
        return delta.stopped

    def accept(self, events: Sequence[Event]) -> Piece:
        """Takes events in; the end is the last of them."""
        tokens = [event for event in events if isinstance(event, TokenEvent)]
        text = "".join(self._deltas.popleft() for _ in tokens)
        end = events[-1] if events else None
        if not isinstance(end, Finished):
            return Piece(self, text, tokens)
        self.finished = end
        match end.reason:
            case FinishReason.CANCELLED:
                error = unavailable("The server is shutting down; the answer was cut off.", "draining")
                return Piece(self, text, tokens, error=error)
            case FinishReason.ERROR:
                return Piece(self, text, tokens, error=GenerationFailedError(end.error or "unknown"))
        rest = self._text.flush()
        stopped = rest.stopped or end.reason is FinishReason.STOP
        return Piece(self, text + rest.text, tokens, "stop" if stopped else "length")


class GenerationFailedError(Exception):
    """The engine gave an answer up. The text is for the log, not for the client."""

    def answer(self, request_id: str) -> ApiError:
        return internal_error(request_id)


@dataclass(slots=True)
class Generation:
    """All answers of a request: `num_choices` for each prompt, in order. Use it as a context manager.

    Entering submits them; leaving cancels what has not ended, whatever the reason for leaving. Submitting raises QueueFullError,
    DrainingError or RequestError, and then nothing is left behind.
    """

    service: Service
    id: str
    prompts: Sequence[PromptTokens]
    options: GenerationOptions
    arrival_s: float
    created: int = field(default_factory=lambda: int(time.time()))
    answers: list[Answer] = field(default_factory=list)
    _streams: list[TokenStream] = field(default_factory=list)
    _pumps: list[asyncio.Task[None]] = field(default_factory=list)
    _ready: list[tuple[Answer, list[Event]]] = field(default_factory=list)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def __enter__(self) -> "Generation":
        try:
            for prompt_index, prompt in enumerate(self.prompts):
                for choice in range(self.options.num_choices):
                    self._submit(prompt_index, prompt, choice)
        except BaseException:
            self._cancel()
            raise
        self._pumps = [
            asyncio.create_task(self._pump(answer, stream), name=f"read {self.id}")
            for answer, stream in zip(self.answers, self._streams, strict=True)
        ]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._cancel()

    def _submit(self, prompt_index: int, prompt: PromptTokens, choice: int) -> None:
        service, options = self.service, self.options
        stop_ids = service.tokenizer.eos_ids
        text = AnswerText(service.tokenizer, options.stop)
        answer = Answer(len(self.answers), prompt, text, service.metrics, self.arrival_s)
        request = Request(
            id=self.id if len(self.prompts) == 1 else f"{self.id}.{prompt_index}",
            prompt=tuple(prompt.ids),
            max_tokens=service.engine.validate(len(prompt.ids), options.max_tokens),
            params=options.params,
            choice=choice,
            boundaries=prompt.boundaries,
            stop_ids=options.stop_token_ids | (frozenset() if options.ignore_eos else stop_ids),
            banned=tuple(sorted(stop_ids - options.stop_token_ids)) if options.ignore_eos else (),
            use_cache=options.use_cache,
            on_token=answer.on_token,
        )
        self._streams.append(service.engine.submit(request))
        self.answers.append(answer)

    async def _pump(self, answer: Answer, stream: TokenStream) -> None:
        while True:
            await stream.wait()
            events = stream.take()
            self._ready.append((answer, events))
            self._wake.set()
            if isinstance(events[-1], Finished):
                return

    async def read(self, timeout_s: float | None = None) -> list[Piece]:
        """What is new of any answer; empty when `timeout_s` passed first. Not to be called once `ended`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return []
        self._wake.clear()
        ready, self._ready = self._ready, []
        return [answer.accept(events) for answer, events in ready]

    @property
    def ended(self) -> bool:
        """Whether every answer has been read to its end."""
        return all(answer.finished is not None for answer in self.answers)

    def _cancel(self) -> None:
        """Gives up what has not ended; its `Finished` is there afterwards, for the log."""
        for pump in self._pumps:
            pump.cancel()
        for answer, stream in zip(self.answers, self._streams, strict=True):
            stream.cancel()
            answer.finished = answer.finished or stream.finished

    # -- accounts ---------------------------------------------------------------------------------------------------------------
    def usage(self) -> UsageOut:
        """Tokens of all answers together; a prompt shared by several choices counts once.

        `cached_tokens` is `prompt_tokens` minus the prompt tokens truly evaluated, over all choices.
        """
        prompt_tokens = sum(len(prompt.ids) for prompt in self.prompts)
        ended = [answer.finished.usage for answer in self.answers if answer.finished]
        evaluated = sum(usage.prompt_tokens - usage.cached_tokens for usage in ended)
        completion_tokens = sum(usage.completion_tokens for usage in ended)
        return UsageOut(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
            prompt_tokens_details=PromptTokensDetails(max(0, prompt_tokens - evaluated)),
        )

    def report(self) -> HeadraceOut:
        """Why prompt tokens were evaluated. Only once `ended`."""
        reports = [
            CacheReportOut(f.cache.matched_tokens, f.cache.resumed_at, f.cache.reason)
            for answer in self.answers
            if (f := answer.finished)
        ]
        return HeadraceOut(reports[0], reports) if len(reports) > 1 else HeadraceOut(reports[0])
