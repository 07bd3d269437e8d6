"""One answer on its way: text is made of its tokens as they are committed, and waits here until the reader takes it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, cast

from msgspec import Raw

from svc.http.errors import ApiError, unavailable
from svc.http.text.answer_parts import ContentText, Part, joined
from svc.http.text.answer_text import AnswerText
from svc.http.text.chat_template import PromptTokens
from svc.metrics import Metrics
from svc.slots.events import Event, Finished, FinishReason, Progress, TokenEvent, TokenText

MAX_UNREAD_BYTES = 2**23  # of one streamed answer; a client that leaves more unread does not want it
_PART_BYTES = 128  # an object with a word in it


class GenerationFailedError(Exception):
    """The engine failed while it made an answer. The text is for the log, not for the client."""


class LogprobWriter(Protocol):
    """Log probabilities of one answer in the form of one dialect."""

    @property
    def num_bytes(self) -> int:
        """About what it holds."""

    def add(self, event: TokenEvent) -> None:
        """The answer's next token."""

    def take(self) -> Raw | None:
        """JSON of those added since the last call; None where the dialect writes nothing for no token."""


class TextDelta(NamedTuple):
    """News of one answer: its next parts, and the tokens that came with them.

    Text lags behind tokens where a stop string or an unfinished character is held back; the tokens then wait for it. All tokens are
    told, also those of a stop string, whose text is never shown.
    """

    parts: list[Part]  # no two neighbours of one kind
    token_ids: list[int]  # empty unless wanted
    logprobs: Raw | None  # None unless wanted

    @property
    def content(self) -> str:
        """What the model says to the user."""
        texts = [part.text for part in self.parts if isinstance(part, ContentText)]
        return texts[0] if len(texts) == 1 else "".join(texts)


@dataclass(slots=True, eq=False)
class AnswerBuffer:
    """What came of an answer and was not taken yet. Nowhere else does it wait."""

    logprobs: LogprobWriter | None
    keep_ids: bool
    parts: list[Part] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)

    def add(self, parts: Sequence[Part], event: TokenEvent) -> None:
        """The answer's next token, and what its text made certain."""
        self.parts += parts
        if self.keep_ids:
            self.token_ids.append(event.token)
        if self.logprobs is not None:
            self.logprobs.add(event)

    def take(self) -> TextDelta:
        """All of it."""
        parts = self.parts if len(self.parts) < 2 else joined(self.parts)
        delta = TextDelta(parts, self.token_ids, self.logprobs.take() if self.logprobs is not None else None)
        self.parts, self.token_ids = [], []
        return delta

    @property
    def num_bytes(self) -> int:
        """About what it holds."""
        kept = _PART_BYTES * len(self.parts) + 8 * len(self.token_ids)
        return kept + (self.logprobs.num_bytes if self.logprobs is not None else 0)


class Answer:
    """One choice of one prompt. The engine calls `on_token` in its commit and `on_event` right after; the handler does the rest."""

    def __init__(
        self,
        index: int,
        prompt: PromptTokens,
        text: AnswerText,
        buffer: AnswerBuffer,
        metrics: Metrics,
        on_news: Callable[["Answer"], None],
        *,
        arrival_s: float,
        max_predict_s: float = 0.0,
        max_unread_bytes: int | None = None,
        tells_progress: bool = False,
    ) -> None:
        """`on_news` is called whenever there is something new to be read.

        `arrival_s`: when the HTTP request came, on the clock of time.monotonic. `max_predict_s`: seconds after the first token when
        the answer ends, once it has a complete line; 0: no limit. `max_unread_bytes`: how much may wait in the buffer; the answer
        ends with an error where more would; None: no limit. `tells_progress`: whether the reader wants that of the prompt.
        """
        self.index = index
        self.prompt = prompt
        self.buffer = buffer
        self.num_tokens = 0  # those that wait in the buffer included
        self.finished: Finished | None = None
        self.error: Exception | None = None  # to be raised once the text before it has been dealt with
        self._progress: list[Progress] = []  # not read yet
        self._latest: Progress | None = None
        self._tells_progress = tells_progress
        self._text = text
        self._metrics = metrics
        self._on_news = on_news
        self._arrival_s = arrival_s
        self._max_predict_s = max_predict_s
        self._max_unread_bytes = max_unread_bytes
        self._first_token_s: float | None = None
        self._last_token_s: float | None = None
        self._out_of_time = False

    # -- called by the engine -----------------------------------------------------------------------------------------------------
    def on_token(self, token: int) -> TokenText:
        """The text of the next token, and whether the answer ends with it."""
        now = time.monotonic()
        if self._last_token_s is None:
            self._first_token_s = now
            self._metrics.first_token(now - self._arrival_s)
        else:
            self._metrics.next_token(now - self._last_token_s)
        self._last_token_s = now
        try:
            parts = self._text.push(token)
        except Exception as error:  # a bug of ours in a parser must not reach the engine, and with it every other answer
            self.error = error
            return TokenText((), True)
        return TokenText(parts, self._must_end(now))

    def on_event(self, event: Event) -> None:
        if isinstance(event, Finished):
            self._end(event)
        elif isinstance(event, Progress):
            self._latest = event
            if not self._tells_progress:
                return
            self._progress.append(event)
        else:
            self.num_tokens += 1
            self.buffer.add(cast(Sequence[Part], event.text), event)
        self._on_news(self)

    def _must_end(self, now: float) -> bool:
        """Whether the answer ends with the token that came last."""
        if self._max_predict_s and self._text.has_new_line and self._first_token_s is not None:
            self._out_of_time = now - self._first_token_s > self._max_predict_s
        if self._max_unread_bytes is not None and self.buffer.num_bytes > self._max_unread_bytes:
            message = "The answer was cut off because too much of it waited to be read."
            self.error = ApiError(408, message, "invalid_request_error", code="slow_reader")
        return self._text.complete or self._out_of_time or self.error is not None

    def _end(self, finished: Finished) -> None:
        self.finished = finished
        if finished.reason is FinishReason.CANCELLED:
            self.error = self.error or unavailable("The server is shutting down; the answer was cut off.", "draining")
        elif finished.reason is FinishReason.ERROR:
            self.error = self.error or GenerationFailedError(finished.error or "unknown")
        if self.error is None:
            try:
                self.buffer.parts += self._text.flush()
            except Exception as error:
                self.error = error

    # -- called by the reader -----------------------------------------------------------------------------------------------------
    @property
    def ended(self) -> bool:
        """Nothing follows what is in the buffer."""
        return self.finished is not None

    def take_progress(self) -> list[Progress]:
        """What came of it since the last call."""
        progress, self._progress = self._progress, []
        return progress

    @property
    def latest_progress(self) -> Progress | None:
        return self._latest

    @property
    def decode_s(self) -> float:
        """From the first token to the latest."""
        first, last = self._first_token_s, self._last_token_s
        return 0.0 if first is None or last is None else last - first

    @property
    def finish_reason(self) -> str | None:
        """OpenAI's "stop", "length" or "tool_calls" once the answer has ended well."""
        if self.finished is None or self.error is not None:
            return None
        if self.stop_type == "limit":
            return "length"
        return "tool_calls" if self._text.num_calls else "stop"

    @property
    def reasoning_tokens(self) -> int:
        """Its tokens in which the model reasoned."""
        return self._text.reasoning_tokens

    @property
    def num_intervals(self) -> int:
        """Intervals between the tokens that were sampled; a stop token, which is no part of the answer, ends one too."""
        assert self.finished is not None
        sampled = self.finished.usage.completion_tokens + (self.stop_type == "eos")
        return max(0, sampled - 1)

    @property
    def has_new_line(self) -> bool:
        return self._text.has_new_line

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
        cut_off = self._out_of_time or self._text.has_left_block
        return "eos" if self.finished.reason is FinishReason.STOP and not cut_off else "limit"
