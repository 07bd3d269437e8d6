"""Connections below every handler: what is no proper HTTP, clients that close their half, and `Expect`.

Everything that leans on the insides of aiohttp is here; tests/http/test_protocol.py holds it against the installed version.
"""

import asyncio
import re
import select
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from aiohttp import ClientConnectionResetError, HttpVersion10, HttpVersion11, hdrs, http_exceptions, web, web_protocol
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpRequestParser, RawRequestMessage, StreamWriter
from aiohttp.streams import StreamReader
from multidict import CIMultiDict, CIMultiDictProxy

from svc.http.connections import Connections, Entry
from svc.http.errors import ApiError, closing, unavailable

MAX_PIPELINED = 8  # requests of one connection that are read before they are answered
PROBE_EVERY_S = 5.0  # of a client that has closed its half: whether it still listens
CHECKS_S = (0.005, 1.0)  # how soon and how seldom the answer to a probe is looked for
LINGER_S = 1.0  # behind the answer to what is no HTTP
HTTP10_GRACE_S = 1.0  # for the answer to a client of HTTP/1.0 that has closed its half, which cannot be asked
UPGRADE = re.compile(rb"\nupgrade", re.IGNORECASE)  # in no JSON text: a line cannot begin so, neither in a string nor outside
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

REFUSAL = web.RequestKey("refusal", ApiError)  # why the request is not served, whatever it asks
CONTINUE_EXPECTED = "100-continue"
EXPECTATION = web.RequestKey("expectation", str)  # what its Expect header says
TOO_MANY = "too_many_connections"
VERSIONS = (HttpVersion10, HttpVersion11)

_MESSAGES: tuple[tuple[type[Exception], str], ...] = (
    (http_exceptions.BadHttpMethod, "The request does not begin with an HTTP method. This port speaks HTTP/1.1, without TLS."),
    (http_exceptions.BadStatusLine, "The request line is not that of HTTP/1.1."),
    (http_exceptions.LineTooLong, "The request line or a header is too long."),
    (http_exceptions.InvalidHeader, "A header is malformed."),
    (http_exceptions.InvalidURLError, "The target of the request is malformed."),
)


class Connection(web_protocol.RequestHandler):
    """One connection. aiohttp's class, with these differences:

    Requests of one packet are parsed one by one, so that garbage behind a whole request does not take its answer away.
    Protocol errors go through the application as every other request, for its ids, its headers and its log.
    A client that closes only its sending half gets its answers. Whether it has in truth left is found out by sending it something.
    `Upgrade` is not seen: every upgrade is declined, and behind one that it sees the parser loses requests.
    """

    __slots__ = (
        "_body",
        "_broken",
        "_ended",
        "_half_closed",
        "_last_bytes",
        "_num_answered",
        "_watcher",
        "entry",
        "idle_since_s",
        "ping",
        "protocol_error",
    )

    def __init__(self, manager: "Listener", *, loop: asyncio.AbstractEventLoop, **kwargs: Any) -> None:
        super().__init__(manager, loop=loop, **kwargs)
        self._max_msg_queue_size, self._msg_queue_resume_size = MAX_PIPELINED, MAX_PIPELINED // 2
        self._parser = HttpRequestParser(
            self,
            loop,
            self._read_bufsize,
            max_line_size=self.max_line_size,
            max_field_size=self.max_field_size,
            max_headers=self.max_headers,
            payload_exception=web.RequestPayloadError,
            auto_decompress=False,
            max_msg_queue_size=1,  # it stops after every request
        )
        self.entry = Entry.OPEN
        self.idle_since_s: float | None = loop.time()
        self.ping: Callable[[], Awaitable[None]] | None = None  # sends a stream something that means nothing
        self.protocol_error: BaseException | None = None  # of the request that is about to be made
        self._body: StreamReader | None = None  # of the request read last
        self._broken = False  # no more requests can be told apart
        self._half_closed = False
        self._last_bytes = b""  # that came, as many as can begin `UPGRADE`
        self._ended: asyncio.Future[None] | None = None  # while it is waited for that the client closes its half too
        self._num_answered = 0
        self._watcher: asyncio.Task[None] | None = None

    # -- coming and going -------------------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(self._manager, Listener)
        self.entry = self._manager.clients.admit(self, self._loop.time())
        if self.entry is Entry.REFUSED:
            self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        if isinstance(self._manager, Listener):
            self._manager.clients.leave(self)
        if self._watcher is not None:
            self._watcher.cancel()
        super().connection_lost(exc)

    def drop(self) -> None:
        self.force_close()

    # -- reading ----------------------------------------------------------------------------------------------------------------
    def data_received(self, data: bytes) -> None:
        """Takes requests out of the parser until it has no whole one left, or enough of them wait."""
        data = self._without_upgrade(data)
        while not self._broken:
            seen = self._request_count
            super().data_received(data)
            if self._request_count == seen:
                return
            self.idle_since_s = None
            message, body = self._messages[-1]
            if isinstance(message, RawRequestMessage):
                self._body = body
            else:
                self._break_off()
            if len(self._messages) >= MAX_PIPELINED:
                return
            data = b""

    def _without_upgrade(self, data: bytes) -> bytes:
        """The same bytes with `Upgrad_` for the header's name, wherever packets end."""
        seen = self._last_bytes + data
        self._last_bytes = seen[1 - len(b"\nupgrade") :]
        ends = [match.end() - 1 for match in UPGRADE.finditer(seen)]
        if not ends:
            return data
        masked = bytearray(seen)
        for end in ends:
            masked[end] = ord("_")
        return bytes(masked[len(seen) - len(data) :])

    def _break_off(self) -> None:
        """Nothing that still comes can be understood; a body that was coming will not come to its end."""
        self._broken = True
        if self._body is not None and not self._body.is_eof():
            self._body.set_exception(web.RequestPayloadError())

    def _make_error_handler(self, err_info: Any) -> Any:
        """The application, as for every request; the request tells it what is wrong."""
        self.protocol_error = err_info.exc
        return self._request_handler

    async def finish_response(self, request: Any, resp: Any, start_time: float | None) -> tuple[web.StreamResponse, bool]:
        finished = await super().finish_response(request, resp, start_time)
        self._num_answered += 1
        if self._broken and not self._owes_answers and not self._half_closed:
            await self._linger()
        if not self._owes_answers:
            self.idle_since_s = self._loop.time()
            if self._half_closed:
                self.close()
        return finished

    async def _linger(self) -> None:
        """Closes our half and waits a moment for the other: closed while more comes, a connection takes the answer with it."""
        if self.transport is not None and self.transport.can_write_eof():
            self.transport.write_eof()
            self._ended = self._loop.create_future()
            await asyncio.wait((self._ended,), timeout=LINGER_S)

    @property
    def _owes_answers(self) -> bool:
        return self._num_answered < self._request_count

    # -- half-closed ------------------------------------------------------------------------------------------------------------
    def eof_received(self) -> bool:  # type: ignore[override]  # aiohttp has no use for the answer, asyncio has
        """Whether the connection stays: as long as whole requests of it have no answer."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
        if not self._owes_answers or self._body is None or not self._body.is_eof():
            return False
        self._half_closed = True
        self._watcher = self._loop.create_task(self._watch(), name="watch a half-closed connection")
        return True

    async def _watch(self) -> None:
        """A client that has closed both halves looks the same until it is sent something: then its machine says so."""
        wait_s, longest_s = CHECKS_S
        began_s = asked_s = self._loop.time()
        await self._probe()
        while self.transport is not None and self._owes_answers:
            await asyncio.sleep(wait_s)
            wait_s, now_s = min(2 * wait_s, longest_s), self._loop.time()
            if self.transport is None:
                return
            if _hung_up(self.transport) or (now_s - began_s > HTTP10_GRACE_S and not self._can_be_asked):
                self.transport.abort()
                return
            if now_s - asked_s > PROBE_EVERY_S:
                asked_s = now_s
                await self._probe()

    @property
    def _can_be_asked(self) -> bool:
        """Interim responses came with HTTP/1.1."""
        request = self._current_request
        return self.ping is not None or request is None or request.version >= HttpVersion11

    async def _probe(self) -> None:
        request = self._current_request
        if self.ping is not None:
            with suppress(ConnectionError):
                await self.ping()
        elif request is not None and request.writer.output_size == 0 and self._can_be_asked and self.transport is not None:
            self.transport.write(CONTINUE)


class Listener(web.Server):
    """Makes the connections of one port, and their requests."""

    def __init__(self, served: web.Server, clients: Connections, **kwargs: Any) -> None:
        """In place of `served`, which aiohttp has made of the application. `kwargs` are those of RequestHandler."""
        super().__init__(served.request_handler, request_factory=self._request, handler_cancellation=True, **kwargs)
        self._request_of_application = served.request_factory
        self.clients = clients

    def __call__(self) -> Connection:
        return Connection(self, loop=self._loop, **self._kwargs)

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        connection: web_protocol.RequestHandler,
        writer: AbstractStreamWriter,
        task: "asyncio.Task[None]",
    ) -> web.BaseRequest:
        assert isinstance(connection, Connection)
        connection.ping = None
        error, connection.protocol_error = connection.protocol_error, None
        refusal = _of_protocol(error) if error is not None else _of_request(message, payload, connection.entry)
        expectation = message.headers.get(hdrs.EXPECT)
        if expectation is not None:  # aiohttp would answer it before the application is asked
            headers = CIMultiDict(message.headers)
            headers.popall(hdrs.EXPECT)
            message = message._replace(headers=CIMultiDictProxy(headers))
        if error is not None or message.version not in VERSIONS:  # the answer has its version
            message = message._replace(version=HttpVersion11)
        request = self._request_of_application(message, payload, connection, writer, task)
        if refusal is not None:
            request[REFUSAL] = refusal
        elif expectation and request.version == HttpVersion11:
            request[EXPECTATION] = expectation
        return request


class Runner(web.AppRunner):
    """aiohttp's, with our connections."""

    def __init__(self, app: web.Application, clients: Connections, **kwargs: Any) -> None:
        super().__init__(app, **kwargs)
        self._clients = clients

    async def _make_server(self) -> web.Server:
        return Listener(await super()._make_server(), self._clients, **self._kwargs)


async def tell_to_continue(request: web.BaseRequest) -> None:
    """Asks for the body, if the client has been waiting to be asked."""
    if request.pop(EXPECTATION, None):
        await request.writer.write(CONTINUE)
        request.writer.output_size = 0  # the answer has not begun with that


def ping_with(request: web.BaseRequest, ping: Callable[[], Awaitable[None]] | None) -> None:
    """How the stream that answers this request is sent something that means nothing; None once it has ended."""
    if isinstance(request.protocol, Connection):
        request.protocol.ping = ping


class BodyWriter:
    """Writes to the body of an open stream without waiting: in one call what `response.write` does in six coroutines.

    Nothing may be written while somebody waits in `response.write`, nor after its `write_eof`.
    """

    def __init__(self, request: web.BaseRequest) -> None:
        """For the response that has been prepared for the request, of unknown length and not compressed."""
        writer = request.writer
        assert isinstance(writer, StreamWriter)
        assert writer.length is None
        assert writer._compress is None
        self._writer = writer
        self._protocol = writer.protocol
        self._chunked = writer.chunked  # not in HTTP/1.0

    @property
    def paused(self) -> bool:
        """Whether the client leaves so much unread that writing should wait."""
        return self._protocol._paused  # its `writing_paused`, without the call

    async def resumed(self) -> None:
        """Waits until the client has read on. ConnectionResetError when it has left instead."""
        await self._writer.drain()

    def write(self, data: bytes) -> None:
        """Data, at least a byte. ConnectionResetError when the client has left."""
        transport = self._protocol.transport
        if transport is None or transport.is_closing():
            raise ClientConnectionResetError("Cannot write to closing transport")
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)


def _of_protocol(error: BaseException) -> ApiError:
    """The answer to what is no HTTP. It does not quote what was sent, which may be anybody's prompt."""
    message = next((text for kind, text in _MESSAGES if isinstance(error, kind)), "The request is not valid HTTP/1.1.")
    refusal = ApiError(400, message, "invalid_request_error", code="invalid_http", closes=True)
    refusal.__cause__ = error  # its class is logged
    return refusal


def _of_request(message: RawRequestMessage, payload: StreamReader, entry: Entry) -> ApiError | None:
    """Why this form of request, or any on this connection, is not served."""
    if message.version not in VERSIONS:
        text = f"HTTP/{message.version.major}.{message.version.minor} is not spoken here, but HTTP/1.1."
        return ApiError(505, text, "invalid_request_error", code="http_version_not_supported", closes=True)
    if message.method == hdrs.METH_CONNECT:
        payload.feed_eof()  # its body would be all that ever comes
        text, headers = "CONNECT is not taken: this server is no proxy.", {"Allow": "GET, HEAD, POST"}
        return ApiError(405, text, "invalid_request_error", code="method_not_allowed", headers=headers, closes=True)
    if entry is not Entry.OPEN:
        return closing(unavailable("Too many clients are connected; come back a little later.", TOO_MANY))
    return None


def _hung_up(transport: asyncio.BaseTransport) -> bool:
    """Whether the other side has answered that nobody is there."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), 0)
    return bool(poll.poll(0))
