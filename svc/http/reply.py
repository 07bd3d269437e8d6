"""Answers on their way out: whole, or as a stream of events. What is in them is the dialect's business (endpoints/)."""

from collections.abc import Iterator
from typing import Protocol

import msgspec
from aiohttp import web

from svc.http.errors import CONTENT_TYPE, ApiError, api_error, is_our_bug
from svc.http.generation import Generation, GenerationFailedError, Piece
from svc.http.middleware import RequestScope, scope_of
from svc.http.service import LOGGER, Service
from svc.http.sse import EventStream


class Dialect(Protocol):
    """How one endpoint writes answers. Every method gives JSON values (Structs); one object lives as long as one request."""

    ends_with_done: bool  # whether a stream's last event is [DONE]

    def add(self, piece: Piece) -> None:
        """Keeps a piece for `whole`."""

    def whole(self) -> object:
        """The complete answer, from all pieces kept."""

    def chunks(self, piece: Piece) -> Iterator[object]:
        """The stream events that a piece makes; none while its text is held back."""

    def last_chunk(self) -> object | None:
        """One more event after those of the last piece, if the client asked for what is in it."""


async def reply(request: web.Request, service: Service, generation: Generation, dialect: Dialect) -> web.StreamResponse:
    """Runs a generation to its end and answers with it. A client that leaves, a failure and the end all go through one exit."""
    scope = scope_of(request)
    scope.generation = generation
    with generation:
        if generation.options.stream:
            return await _stream(request, service, generation, dialect, scope)
        return await _whole(generation, dialect)


async def _whole(generation: Generation, dialect: Dialect) -> web.Response:
    while not generation.ended:
        for piece in await generation.read():
            if piece.error is not None:
                raise piece.error
            dialect.add(piece)
    return json_response(dialect.whole())


async def _stream(
    request: web.Request, service: Service, generation: Generation, dialect: Dialect, scope: RequestScope
) -> web.StreamResponse:
    """Once the stream is open, the status is 200 and a failure becomes its last event."""
    events = EventStream(request, service.keep_alive_s)
    try:
        await events.open()
        await _send_pieces(events, generation, dialect)
        await (events.done() if dialect.ends_with_done else events.close())
    except ConnectionResetError:
        scope.client_left = True
    except Exception as error:
        await _send_error(events, request, scope, error)
    return events.response


async def _send_pieces(events: EventStream, generation: Generation, dialect: Dialect) -> None:
    while not generation.ended:
        for piece in await generation.read(events.silence_left_s):
            for chunk in dialect.chunks(piece):
                await events.send(chunk)
            if piece.error is not None:
                raise piece.error
        if events.silence_left_s == 0:
            await events.ping()
    last = dialect.last_chunk()
    if last is not None:
        await events.send(last)


async def _send_error(events: EventStream, request: web.Request, scope: RequestScope, error: Exception) -> None:
    """The stream ends with an error event, and without [DONE]: nobody may take the answer for complete."""
    if isinstance(error, GenerationFailedError):
        answer: ApiError = error.answer(scope.id)
        scope.error = str(error)
    else:
        if is_our_bug(error):
            request.app[LOGGER].exception("stream_failed", request_id=scope.id)
        answer = api_error(error, request, scope.id)
        scope.error = answer.message
    try:
        await events.send(answer.body())
        await events.close()
    except ConnectionResetError:
        scope.client_left = True


def json_response(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type=CONTENT_TYPE)
