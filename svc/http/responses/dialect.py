"""Answers as OpenAI's responses: a list of items, whole or as a stream of events."""

import time
import uuid
from collections.abc import Iterator
from typing import Any

from msgspec import UNSET, Raw

from svc.http.answer import Answer
from svc.http.errors import ApiError
from svc.http.generation import Generation
from svc.http.responses import schema as out
from svc.http.responses.conversation import sealed, wants_sealed_reasoning
from svc.http.responses.schema import CallItem, Item, MessageItem, OutputText, ReasoningContent, ReasoningItem, ResponseOut
from svc.http.responses.tools import names_in_namespaces
from svc.http.service import Service
from svc.http.sse import named_event
from svc.http.text.answer_parts import CallArguments, CallEnd, CallStart, ContentText, Part, ReasoningText
from svc.http.timings import progress_of, timings_of, timings_so_far

IN_PROGRESS, COMPLETED, INCOMPLETE = "in_progress", "completed", "incomplete"
NO_LOGPROBS = Raw(b"[]")


class ResponsesDialect:
    """One answer to a request. Whole or streamed, it is made of the same items."""

    def __init__(
        self, service: Service, generation: Generation, body: out.ResponsesIn, *, show_reasoning: bool, parallel: bool
    ) -> None:
        self._service = service
        self._generation = generation
        self._body = body
        self._show_reasoning = show_reasoning
        self._parallel = parallel
        self._seals = wants_sealed_reasoning(body)
        self._namespaces = names_in_namespaces(body.tools or ())  # and names, by the names that the model knows
        self._items: list[Item] = []
        self._open: Item | None = None  # the last of the items, while more of it may come
        self._texts: list[str] = []  # of the open item
        self._logprobs: list[bytes] = []  # of the open item: JSON arrays without their brackets
        self._num_events = 0
        self._begun = False

    # -- whole ------------------------------------------------------------------------------------------------------------------
    def whole(self) -> ResponseOut:
        (answer,) = self._generation.answers
        for _ in self._answer_events(answer):
            pass
        return self._ended(answer)

    # -- stream -----------------------------------------------------------------------------------------------------------------
    def news(self, answer: Answer) -> bytes:
        return b"".join(map(_event, self._news(answer)))

    def _news(self, answer: Answer) -> Iterator[out.Event]:
        """Each is to be written before the next is asked for: an item goes on growing."""
        if not self._begun:
            self._begun = True
            started = self._response(IN_PROGRESS)
            yield out.Created(self._next(), started)
            yield out.InProgress(self._next(), started)
        per_token = self._generation.options.timings_per_token
        for progress in answer.take_progress():
            timings = timings_so_far(answer, progress) if per_token else UNSET
            yield out.InProgress(self._next(), self._response(IN_PROGRESS), progress_of(progress), timings)
        for each in self._answer_events(answer):
            if per_token and isinstance(each, out.TextDelta):
                each.timings = timings_so_far(answer)
            yield each
        if answer.finish_reason:
            ended = self._ended(answer)
            kind = out.Completed if ended.status == COMPLETED else out.Incomplete
            yield kind(self._next(), ended, ended.timings if per_token else UNSET)

    def last_events(self) -> bytes:
        return b""

    def error_event(self, error: ApiError) -> bytes:
        """The response, failed: SDKs look for that, and for an `error` event."""
        failed = self._response("failed")
        failed.error = {"code": error.code or error.type, "message": error.message}
        return _event(out.Failed(self._next(), failed))

    def _next(self) -> int:
        self._num_events += 1
        return self._num_events - 1

    # -- items ------------------------------------------------------------------------------------------------------------------
    def _answer_events(self, answer: Answer) -> Iterator[out.Event]:
        """What is new of the answer, as events; the items are brought up to date with them."""
        delta = answer.buffer.take()
        logprobs = NO_LOGPROBS if delta.logprobs is None else delta.logprobs
        for part in delta.parts:
            yield from self._part(part, logprobs)
            if isinstance(part, ContentText):
                logprobs = NO_LOGPROBS  # they have been told
        if answer.finish_reason:
            yield from self._close(INCOMPLETE if answer.finish_reason == "length" else COMPLETED)

    def _part(self, part: Part, logprobs: Raw) -> Iterator[out.Event]:
        """`logprobs`: the JSON list of the tokens that came with it."""
        match part:
            case ContentText(text):
                if not isinstance(self._open, MessageItem):
                    yield from self._close(COMPLETED)
                    yield from self._begin(MessageItem(_id("msg"), IN_PROGRESS, []))
                yield out.TextDelta(self._next(), self._id, self._index, 0, text, logprobs)
                self._texts.append(text)
                self._logprobs.append(bytes(logprobs)[1:-1])
            case ReasoningText(text):
                if not self._show_reasoning:
                    return
                if not isinstance(self._open, ReasoningItem):
                    yield from self._close(COMPLETED)
                    yield from self._begin(ReasoningItem(_id("rs"), [], [], IN_PROGRESS))
                yield out.ReasoningDelta(self._next(), self._id, self._index, 0, text)
                self._texts.append(text)
            case CallStart(_, call_id, name):
                yield from self._close(COMPLETED)
                namespace, name = self._namespaces.get(name, (UNSET, name))
                yield from self._begin(CallItem(_id("fc"), call_id, name, "", IN_PROGRESS, namespace))
            case CallArguments(_, text):
                yield out.ArgumentsDelta(self._next(), self._id, self._index, text)
                self._texts.append(text)
            case CallEnd(_, complete):
                yield from self._close(COMPLETED if complete else INCOMPLETE)

    @property
    def _index(self) -> int:
        return len(self._items)

    @property
    def _id(self) -> str:
        assert self._open is not None
        return self._open.id

    def _begin(self, item: Item) -> Iterator[out.Event]:
        self._open, self._texts = item, []
        yield out.ItemAdded(self._next(), self._index, item)
        if isinstance(item, MessageItem):
            yield out.PartAdded(self._next(), item.id, self._index, 0, OutputText("", [], NO_LOGPROBS))
        elif isinstance(item, ReasoningItem):
            yield out.PartAdded(self._next(), item.id, self._index, 0, ReasoningContent(""))

    def _close(self, status: str) -> Iterator[out.Event]:
        """The open item is whole."""
        item, text = self._open, "".join(self._texts)
        if item is None:
            return
        item.status = status
        match item:
            case MessageItem():
                part = OutputText(text, [], Raw(b"[" + b",".join(filter(None, self._logprobs)) + b"]"))
                self._logprobs = []
                item.content = [part]
                yield out.TextDone(self._next(), item.id, self._index, 0, text, part.logprobs)
                yield out.PartDone(self._next(), item.id, self._index, 0, part)
            case ReasoningItem():
                item.content = [ReasoningContent(text)]
                item.encrypted_content = sealed(text) if self._seals else UNSET
                yield out.ReasoningDone(self._next(), item.id, self._index, 0, text)
                yield out.PartDone(self._next(), item.id, self._index, 0, item.content[0])
            case CallItem():
                item.arguments = text
                yield out.ArgumentsDone(self._next(), item.id, self._index, item.name, text)
        yield out.ItemDone(self._next(), self._index, item)
        self._items.append(item)
        self._open = None

    # -- the response -----------------------------------------------------------------------------------------------------------
    def _response(self, status: str) -> ResponseOut:
        body, options = self._body, self._generation.options
        return ResponseOut(
            id=self._generation.id,
            created_at=self._generation.created,
            model=self._service.model.name,
            status=status,
            output=list(self._items),
            parallel_tool_calls=self._parallel,
            tool_choice=body.tool_choice or "auto",
            tools=body.tools or [],
            instructions=body.instructions,
            max_output_tokens=options.max_tokens,
            temperature=options.params.temperature,
            top_p=options.params.top_p,
            top_logprobs=options.params.num_logprobs or 0,
            reasoning={"effort": None, "summary": None} | (body.reasoning or {}),
            text=body.text or {"format": {"type": "text"}},
        )

    def _ended(self, answer: Answer) -> ResponseOut:
        assert answer.finished is not None
        is_cut = answer.finish_reason == "length"
        response = self._response(INCOMPLETE if is_cut else COMPLETED)
        usage = answer.finished.usage
        response.usage = out.ResponsesUsage(
            usage.prompt_tokens,
            out.InputTokensDetails(usage.cached_tokens),
            usage.completion_tokens,
            out.OutputTokensDetails(answer.reasoning_tokens),
            usage.prompt_tokens + usage.completion_tokens,
        )
        response.incomplete_details = {"reason": "max_output_tokens"} if is_cut else None
        response.completed_at = None if is_cut else int(time.time())
        response.timings = timings_of(answer)
        response.headrace = self._generation.report() or UNSET
        return response


def _id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


def _event(value: Any) -> bytes:
    return named_event(value.__struct_config__.tag, value)
