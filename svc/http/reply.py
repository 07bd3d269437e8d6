"""Answers on their way out: whole, or as a stream of events. What is in them is the dialect's business (endpoints/)."""

from collections.abc import Iterable
from typing import Protocol

import msgspec
from aiohttp import web

from svc.http.answer import Answer, GenerationFailedError
from svc.http.errors import CONTENT_TYPE, ApiError, api_error, internal_error, is_our_bug
from svc.http.generation import Generation
from svc.http.middleware import RequestScope, scope_of
from svc.http.protocol import BodyWriter
from svc.http.service import LOGGER, Service
from svc.http.sse import EventStream


class Dialect(Protocol):
    """How one endpoint writes answers. It takes what is new of an answer out of `Answer.buffer`; one object per request."""

    def whole(self) -> object:
        """The complete answer as a JSON value, once all answers have ended well."""

    def news(self, answer: Answer) -> bytes:
        """The stream events for what is new of an answer; may be none while its text is held back. Nothing waits after its end."""

    def last_events(self) -> bytes:
        """Those that follow when all answers have ended well."""

    def error_event(self, error: ApiError) -> bytes:
        """The one that ends a stream that has failed."""


async def reply(request: web.Request, service: Service, generation: Generation, dialect: Dialect) -> web.StreamResponse:
    """Runs a generation to its end and answers with it. A client that leaves, a failure and the end all go through one exit."""
    scope = scope_of(request)
    scope.generation = generation
    with generation:
        if generation.options.stream:
            return await _stream(request, service, generation, dialect, scope)
        return await _whole(generation, dialect)


async def _whole(generation: Generation, dialect: Dialect) -> web.Response:
    num_open = len(generation.answers)
    while num_open:
        await generation.inbox.wait()
        answers = generation.inbox.take()
        _raise_error(answers)
        num_open -= len(answers)
    return json_response(dialect.whole())


async def _stream(
    request: web.Request, service: Service, generation: Generation, dialect: Dialect, scope: RequestScope
) -> web.StreamResponse:
    """Once the stream is open, the status is 200 and a failure becomes its last event."""
    ping_s = generation.options.ping_s
    events = EventStream(request, service.keep_alive_s if ping_s is None else ping_s, generation.inbox.wake)
    try:
        body = await events.open()
        await _send_news(events, body, generation, dialect)
    except ConnectionResetError:
        scope.client_left = True
    except Exception as error:
        await _send_error(events, request, scope, error, dialect)
    finally:
        events.release()
    return events.response


async def _send_news(events: EventStream, body: BodyWriter, generation: Generation, dialect: Dialect) -> None:
    """Whatever came between two turns, of however many answers, is one write. This task is woken for what needs one: the end of an
    answer, a comment, a client that does not read."""

    def write(answers: list[Answer]) -> bool:
        if body.paused:
            return False
        for answer in answers:
            if answer.finished is not None:
                return False
        data = b"".join([dialect.news(answer) for answer in answers])
        if data:
            body.write(data)
            events.written()
        return True

    num_open = len(generation.answers)
    while num_open:
        await generation.inbox.wait(write)
        if body.paused:
            await body.resumed()
        answers = generation.inbox.take()
        ended = [answer for answer in answers if answer.ended]  # later ones have news that are not in `data`
        num_open -= len(ended)
        data = b"".join([dialect.news(answer) for answer in answers])
        if not num_open and all(answer.error is None for answer in ended):
            return await events.close(data + dialect.last_events())
        if data:
            await events.write(data)
        elif events.ping_is_due:
            await events.ping()
        _raise_error(ended)


def _raise_error(answers: Iterable[Answer]) -> None:
    for answer in answers:
        if answer.error is not None:
            raise answer.error


async def _send_error(events: EventStream, request: web.Request, scope: RequestScope, error: Exception, dialect: Dialect) -> None:
    """The stream ends with an error event, and without [DONE]: nobody may take the answer for complete."""
    if isinstance(error, GenerationFailedError):
        answer: ApiError = internal_error(scope.id)
        scope.error = str(error)
    else:
        if is_our_bug(error):
            request.app[LOGGER].exception("stream_failed", request_id=scope.id)
        answer = api_error(error, request, scope.id)
        scope.refused(answer)
    try:
        await events.close(dialect.error_event(answer))
    except ConnectionResetError:
        scope.client_left = True


def json_response(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type=CONTENT_TYPE)
