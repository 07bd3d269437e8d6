"""Server-Sent Events: one response that stays open, and comments that keep it so while there is nothing to say."""

import asyncio
import socket
from collections.abc import Callable

import msgspec
from aiohttp import web

from svc.http.protocol import BodyWriter, ping_with

HEADERS = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would otherwise collect the stream
}
DONE = b"data: [DONE]\n\n"
PING = b": keep-alive\n\n"  # an event ends with an empty line; so do comments, or proxies and parsers wait for more
VANISHED_AFTER_MS = 120_000  # unacknowledged data for so long: the client is gone without a word

_encode = msgspec.json.Encoder().encode


def event(value: object) -> bytes:
    """A `data:` event with a JSON value (which has no raw newline in it)."""
    return b"data: " + _encode(value) + b"\n\n"


def named_event(name: str, value: object) -> bytes:
    """As `event`, with its name in front."""
    return b"event: " + name.encode() + b"\ndata: " + _encode(value) + b"\n\n"


class EventTemplate:
    """Events that differ in one text: the rest is encoded once."""

    def __init__(self, example: object) -> None:
        """`example` has HOLE wherever the text goes."""
        self._around = event(example).split(_encode(HOLE))

    def fill(self, text: str) -> bytes:
        return _encode(text).join(self._around)


HOLE = "\ue000 here goes the text \ue001"


class EventStream:
    """One SSE response. Owner: the handler that made it. Writing raises ConnectionResetError when the client is gone.

    Writing waits while the client leaves more than about 128 KiB unread (aiohttp's limit and the transport's together).
    """

    def __init__(self, request: web.Request, keep_alive_s: float, on_silence: Callable[[], None]) -> None:
        """`on_silence` is called when a comment is due: `ping` then. `keep_alive_s`: 0 is never."""
        self.response = web.StreamResponse(headers=HEADERS)
        self.response.content_type = "text/event-stream"
        self.ping_is_due = False
        self._request = request
        self._keep_alive_s = keep_alive_s
        self._on_silence = on_silence
        self._loop = asyncio.get_running_loop()
        self._last_write_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def open(self) -> BodyWriter:
        """Sends the headers and a first comment, so that proxies and clients know at once that the request is taken.

        What is written by the result, without waiting, is to be told to `written`.
        """
        await self.response.prepare(self._request)
        body = BodyWriter(self._request)
        ping_with(self._request, self.ping)
        _notice_vanished_peer(self._request)
        await self.ping()
        if self._keep_alive_s:
            self._timer = self._loop.call_later(self._keep_alive_s, self._check_silence)
        return body

    def release(self) -> None:
        """Ends the timer, however the stream has ended."""
        if self._timer is not None:
            self._timer.cancel()

    async def write(self, events: bytes) -> None:
        """Complete events, at least one."""
        await self.response.write(events)
        self.written()

    def written(self) -> None:
        """Something has been: no comment is due."""
        self._last_write_s = self._loop.time()
        self.ping_is_due = False

    async def ping(self) -> None:
        await self.write(PING)

    async def close(self, events: bytes = b"") -> None:
        """The last events; nothing follows."""
        ping_with(self._request, None)
        await self.response.write_eof(events)

    def _check_silence(self) -> None:
        """The timer is not set anew with every event, but looks when it fires how long the last one is ago."""
        left_s = self._last_write_s + self._keep_alive_s - self._loop.time()
        if left_s > _TIMER_GRAIN_S:
            self._timer = self._loop.call_later(left_s, self._check_silence)
            return
        self._timer = self._loop.call_later(self._keep_alive_s, self._check_silence)
        self.ping_is_due = True
        self._on_silence()


_TIMER_GRAIN_S = 0.001  # of uvloop


def _notice_vanished_peer(request: web.Request) -> None:
    """Lets the kernel end a connection whose peer no longer answers (a laptop closed, a network gone)."""
    sock = request.transport.get_extra_info("socket") if request.transport else None
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6) and hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, VANISHED_AFTER_MS)
