"""The answers of one HTTP request: submitted together, read as one, cancelled together."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

from svc.errors import RequestError
from svc.http.errors import ApiError, internal_error, unavailable
from svc.http.options import GenerationOptions
from svc.http.schema import CacheReportOut, HeadraceOut, PromptTokensDetails, TimingsOut, UsageOut
from svc.http.service import Service
from svc.http.text.answer_text import AnswerText
from svc.http.text.chat_template import PromptTokens
from svc.metrics import Metrics
from svc.slots.events import Event, Finished, FinishReason, TokenEvent, TokenText
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

    def __init__(
        self, index: int, prompt: PromptTokens, text: AnswerText, metrics: Metrics, arrival_s: float, max_predict_s: float = 0.0
    ) -> None:
        """`arrival_s`: when the HTTP request came, on the clock of time.monotonic.

        `max_predict_s`: seconds after the first token when the answer ends, once it has a complete line; 0: no limit.
        """
        self.index = index
        self.prompt = prompt
        self.finished: Finished | None = None
        self.has_new_line = False
        self._text = text
        self._metrics = metrics
        self._arrival_s = arrival_s
        self._max_predict_s = max_predict_s
        self._first_token_s: float | None = None
        self._out_of_time = False
        self._last_token_s: float | None = None

    def on_token(self, token: int) -> TokenText:
        """The engine's question after each token: what is its text, and does the answer end here?"""
        now = time.monotonic()
        if self._last_token_s is None:
            self._first_token_s = now
            self._metrics.first_token(now - self._arrival_s)
        else:
            self._metrics.next_token(now - self._last_token_s)
        self._last_token_s = now
        delta = self._text.push(token)
        self.has_new_line = self.has_new_line or "\n" in delta.text
        return TokenText(delta.text, delta.stopped or self._time_is_over(now))

    def _time_is_over(self, now: float) -> bool:
        if self._max_predict_s and self.has_new_line and self._first_token_s is not None:
            self._out_of_time = now - self._first_token_s > self._max_predict_s
        return self._out_of_time

    def accept(self, events: Sequence[Event]) -> Piece:
        """Takes events in; the end is the last of them."""
        tokens = [event for event in events if isinstance(event, TokenEvent)]
        text = "".join(str(event.text) for event in tokens)
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
        self.has_new_line = self.has_new_line or "\n" in rest.text
        return Piece(self, text + rest.text, tokens, "length" if self.stop_type == "limit" else "stop")

    @property
    def stopping_word(self) -> str | None:
        """The stop string that ended the answer."""
        return self._text.stop_hit

    @property
    def stop_type(self) -> str:
        """Why the answer ended, in llama-server's words: "word" (a stop string), "eos" (a stop token) or "limit"."""
        assert self.finished is not None
        if self._text.stop_hit is not None:
            return "word"
        return "eos" if self.finished.reason is FinishReason.STOP and not self._out_of_time else "limit"

    def timings(self) -> TimingsOut:
        """Only once it has ended."""
        assert self.finished is not None
        usage, timing = self.finished.usage, self.finished.timing
        evaluated = usage.prompt_tokens - usage.cached_tokens
        return _timings(usage.cached_tokens, evaluated, timing.prefill_s, usage.completion_tokens, timing.decode_s)


class GenerationFailedError(Exception):
    """The engine gave an answer up. The text is for the log, not for the client."""

    def answer(self, request_id: str) -> ApiError:
        return internal_error(request_id)


@dataclass(slots=True)
class Generation:
    """All answers of a request: `num_choices` for each prompt, in order. Use it as a context manager.

    Entering submits all of them or none; leaving cancels what has not ended, whatever the reason for leaving. Submitting raises
    QueueFullError, DrainingError or RequestError, and then nothing is left behind.
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
        self._check_number()
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

    def _check_number(self) -> None:
        """More answers than there is room for in an empty server would be told to come back for ever."""
        num_choices, engine = self.options.num_choices, self.service.engine
        wanted = len(self.prompts) * num_choices
        if wanted > engine.max_requests:
            counts = f"{len(self.prompts)} prompts with n={num_choices}" if len(self.prompts) > 1 else f"n={num_choices}"
            message = f"{counts} are {wanted} answers; this server has room for {engine.max_requests} at once."
            raise RequestError(message, param="n" if num_choices > 1 else "prompt")
        engine.check_room(wanted)

    def _submit(self, prompt_index: int, prompt: PromptTokens, choice: int) -> None:
        service, options = self.service, self.options
        text = AnswerText(service.tokenizer, options.stop, min_tokens=options.min_tokens)
        answer = Answer(len(self.answers), prompt, text, service.metrics, self.arrival_s, options.max_predict_s)
        request = Request(
            id=self.id if len(self.prompts) == 1 else f"{self.id}.{prompt_index}",
            prompt=tuple(prompt.ids),
            max_tokens=service.engine.validate(len(prompt.ids), options.max_tokens),
            params=options.params,
            choice=choice,
            boundaries=prompt.boundaries,
            stop_ids=options.stop_ids,
            banned=options.banned,
            min_tokens=options.min_tokens,
            use_cache=options.use_cache,
            on_token=answer.on_token,
            text_ends=bool(options.stop) or options.max_predict_s > 0,
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

    def timings(self) -> TimingsOut:
        """Counts as in `usage`, and times by the wall: of several answers at once the longest. Only once `ended`."""
        usage = self.usage()
        cached = usage.prompt_tokens_details.cached_tokens
        ends = [answer.finished.timing for answer in self.answers if answer.finished]
        prefill_s, decode_s = max(timing.prefill_s for timing in ends), max(timing.decode_s for timing in ends)
        return _timings(cached, usage.prompt_tokens - cached, prefill_s, usage.completion_tokens, decode_s)

    def report(self) -> HeadraceOut | None:
        """Why prompt tokens were evaluated, if the client asked. Only once `ended`."""
        reports = [report.cache for answer in self.answers if (report := self.report_of(answer))]
        if not reports:
            return None
        return HeadraceOut(reports[0], reports) if len(reports) > 1 else HeadraceOut(reports[0])

    def report_of(self, answer: Answer) -> HeadraceOut | None:
        """`report` of one answer that has ended."""
        if not self.options.cache_report or answer.finished is None:
            return None
        cache = answer.finished.cache
        return HeadraceOut(CacheReportOut(cache.matched_tokens, cache.resumed_at, cache.reason))


def _timings(cached: int, evaluated: int, prefill_s: float, generated: int, decode_s: float) -> TimingsOut:
    return TimingsOut(
        cache_n=cached,
        prompt_n=evaluated,
        prompt_ms=_ms(prefill_s),
        prompt_per_token_ms=_ms(prefill_s / evaluated) if evaluated else 0.0,
        prompt_per_second=round(evaluated / prefill_s, 3) if prefill_s else 0.0,
        predicted_n=generated,
        predicted_ms=_ms(decode_s),
        predicted_per_token_ms=_ms(decode_s / generated) if generated else 0.0,
        predicted_per_second=round(generated / decode_s, 3) if decode_s else 0.0,
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
