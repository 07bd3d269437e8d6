"""The answers of one HTTP request: submitted together, read as one, cancelled together."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from msgspec import UNSET

from svc.errors import RequestError
from svc.http.answer import MAX_UNREAD_BYTES, Answer, AnswerBuffer
from svc.http.answer_rules import FREE, AnswerRules
from svc.http.cache_report import owner_of, report_out
from svc.http.cache_salt import space_of
from svc.http.inbox import Inbox
from svc.http.options import GenerationOptions
from svc.http.rate_limits import Tenant
from svc.http.schema import CompletionTokensDetails, HeadraceOut, PromptTokensDetails, UsageOut
from svc.http.service import Service
from svc.http.text.answer_text import AnswerText
from svc.http.text.chat_template import PromptTokens
from svc.http.text.stop_strings import StopStrings
from svc.http.timings import timings
from svc.http.timings_schema import TimingsOut
from svc.slots.request import Request
from svc.slots.stream import TokenStream


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
    new_buffer: Callable[[], AnswerBuffer]  # called once for each answer
    rules: AnswerRules = FREE
    masked: Sequence[str] = ()  # lines of the prompt that were left out for the cache's sake, by their names
    tenant: Tenant | None = None  # whose request it is
    created: int = field(default_factory=lambda: int(time.time()))
    answers: list[Answer] = field(default_factory=list)
    inbox: Inbox = field(init=False)
    _streams: list[TokenStream] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.inbox = Inbox(self.service.rounds)

    def __enter__(self) -> "Generation":
        self._check_number()
        stop = StopStrings(self.options.stop) if self.options.stop else None
        try:
            for prompt_index, prompt in enumerate(self.prompts):
                for choice in range(self.options.num_choices):
                    self._submit(prompt_index, prompt, choice, stop)
        except BaseException:
            self._cancel()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._cancel()

    def _check_number(self) -> None:
        """More answers than there is room for in an empty server would be told to come back for ever."""
        num_choices, engine = self.options.num_choices, self.service.engine
        wanted = len(self.prompts) * num_choices
        room = engine.max_requests(self._queue_share)
        if wanted > room:
            counts = f"{len(self.prompts)} prompts with n={num_choices}" if len(self.prompts) > 1 else f"n={num_choices}"
            message = f"{counts} are {wanted} answers; this server has room for {room} at once."
            raise RequestError(message, param="n" if num_choices > 1 else "prompt")
        engine.check_capacity(wanted, self._tenant_name, self._queue_share)

    def _submit(self, prompt_index: int, prompt: PromptTokens, choice: int, stop: StopStrings | None) -> None:
        service, options, rules = self.service, self.options, self.rules
        answer = Answer(
            index=len(self.answers),
            prompt=prompt,
            text=AnswerText(
                service.tokenizer,
                stop,
                min_tokens=options.min_tokens,
                parser=rules.parser(),
                shown=rules.shown(service.tokenizer),
                min_indent=options.min_indent,
            ),
            buffer=self.new_buffer(),
            metrics=service.metrics,
            on_news=self.inbox.put if options.stream else self._on_news,
            arrival_s=self.arrival_s,
            max_predict_s=options.max_predict_s,
            max_unread_bytes=MAX_UNREAD_BYTES if options.stream else None,
            tells_progress=options.stream and options.return_progress,
        )
        request = Request(
            id=self.id if len(self.prompts) == 1 else f"{self.id}.{prompt_index}",
            prompt=prompt.ids,
            max_tokens=service.engine.validate(len(prompt.ids), options.max_tokens),
            params=options.params,
            choice=choice,
            boundaries=prompt.boundaries,
            stop_ids=options.stop_ids,
            banned=options.banned,
            min_tokens=options.min_tokens,
            use_cache=options.use_cache,
            tenant=self._tenant_name,
            queue_share=self._queue_share,
            owner=owner_of(self._tenant_name, all_shown=service.show_prompts),
            space=space_of(options.cache_salt, self._tenant_name, isolated=service.isolate_keys),
            on_token=answer.on_token,
            slot=options.slot,
            drafts=options.drafts,
            progress=options.stream and (options.return_progress or options.timings_per_token),
            text_ends=bool(options.stop or options.min_indent) or options.max_predict_s > 0 or rules.text_ends,
            constraint=rules.constraint(service.tokenizer, service.model.vocab_size),
        )
        self._streams.append(service.engine.submit(request, answer.on_event))
        self.answers.append(answer)

    @property
    def _tenant_name(self) -> str:
        return "" if self.tenant is None else self.tenant.name

    @property
    def _queue_share(self) -> float:
        return 1.0 if self.tenant is None else self.tenant.limits.queue_share

    def _on_news(self, answer: Answer) -> None:
        """Nobody reads an answer before its end, unless it is streamed."""
        if answer.ended:
            self.inbox.put(answer)

    def _cancel(self) -> None:
        """Ends what has not ended; its `finished` is there afterwards, for the log."""
        for stream in self._streams:
            stream.cancel()

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
            completion_tokens_details=CompletionTokensDetails(sum(answer.reasoning_tokens for answer in self.answers)),
        )

    @property
    def num_tokens_computed(self) -> int:
        """Prompt tokens evaluated for answers that have ended, and tokens generated."""
        ended = [answer.finished for answer in self.answers if answer.finished and answer.finished.cache.reason]  # it had a slot
        return sum(end.usage.prompt_tokens - end.usage.cached_tokens + end.usage.completion_tokens for end in ended)

    def timings(self) -> TimingsOut:
        """Counts as in `usage`, and times by the wall: of several answers at once the longest. Only once `ended`."""
        usage = self.usage()
        cached = usage.prompt_tokens_details.cached_tokens
        ends = [answer.finished.timing for answer in self.answers if answer.finished]
        prefill_s, decode_s = max(timing.prefill_s for timing in ends), max(timing.decode_s for timing in ends)
        intervals = sum(answer.num_intervals for answer in self.answers)
        counts = [answer.finished.usage for answer in self.answers if answer.finished]
        drafts = sum(count.draft_tokens for count in counts), sum(count.accepted_draft_tokens for count in counts)
        return timings(cached, usage.prompt_tokens - cached, prefill_s, usage.completion_tokens, intervals, decode_s, drafts)

    def report(self) -> HeadraceOut | None:
        """Why prompt tokens were evaluated, if the client asked. Only once `ended`."""
        reports = [report.cache for answer in self.answers if (report := self.report_of(answer))]
        if not reports:
            return None
        return HeadraceOut(reports[0], reports if len(reports) > 1 else UNSET, list(self.masked) or UNSET)

    def report_of(self, answer: Answer) -> HeadraceOut | None:
        """`report` of one answer that has ended."""
        if not self.options.cache_report or answer.finished is None:
            return None
        end = answer.finished
        report = report_out(end.cache, answer.prompt.ids, end.usage.cached_tokens, self.service.tokenizer)
        return HeadraceOut(report, masked=list(self.masked) or UNSET)
