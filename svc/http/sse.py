"""Server-Sent Events: one response that stays open, and comments that keep it so while there is nothing to say."""

import asyncio
import socket

import msgspec
from aiohttp import web

HEADERS = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would otherwise collect the stream
}
DONE = b"data: [DONE]\n\n"
PING = b": keep-alive\n\n"  # an event ends with an empty line; so do comments, or proxies and parsers wait for more
VANISHED_AFTER_MS = 120_000  # unacknowledged data for so long: the client is gone without a word

_encoder = msgspec.json.Encoder()


class EventStream:
    """One SSE response. Owner: the handler that made it. Writing raises ConnectionResetError when the client is gone."""

    def __init__(self, request: web.Request, keep_alive_s: float) -> None:
        self._request = request
        self._keep_alive_s = keep_alive_s
        self._clock = asyncio.get_running_loop().time
        self._last_write_s = self._clock()
        self.response = web.StreamResponse(headers=HEADERS)
        self.response.content_type = "text/event-stream"

    async def open(self) -> None:
        """Sends the headers and a first comment, so that proxies and clients know at once that the request is taken."""
        await self.response.prepare(self._request)
        _notice_vanished_peer(self._request)
        await self.ping()

    @property
    def silence_left_s(self) -> float:
        """Seconds until a comment is due."""
        return max(0.0, self._last_write_s + self._keep_alive_s - self._clock())

    async def send(self, event: object) -> None:
        """One `data:` event with a JSON value (it has no raw newline in it)."""
        await self._write(b"data: " + _encoder.encode(event) + b"\n\n")

    async def ping(self) -> None:
        await self._write(PING)

    async def done(self) -> None:
        """The `[DONE]` event; nothing follows."""
        await self._write(DONE)
        await self.close()

    async def close(self) -> None:
        """Nothing follows, not even `[DONE]`."""
        await self.response.write_eof()

    async def _write(self, data: bytes) -> None:
        await self.response.write(data)
        self._last_write_s = self._clock()


def _notice_vanished_peer(request: web.Request) -> None:
    """Lets the kernel give up a connection whose peer no longer answers (a laptop closed, a network gone)."""
    sock = request.transport.get_extra_info("socket") if request.transport else None
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6) and hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, VANISHED_AFTER_MS)
