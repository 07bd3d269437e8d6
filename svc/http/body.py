"""Request bodies on their way in: whole and in time, and never more of them at once than there is memory set aside for."""

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, Literal, ParamSpec, TypeVar

from aiohttp import web

from svc.http.errors import ApiError, closing, unavailable
from svc.http.protocol import tell_to_continue
from svc.http.service import DOOR
from svc.http.text_threads import INLINE_BYTES, TEXT_THREADS

BODIES_HELD = 4  # bodies of the largest size that may be here at once
UNCOUNTED_BYTES = 2**16  # of each body, so that ordinary requests pass when large ones do not; connections are counted
AUTO_FIXED_BYTES = 2 * 2**20  # what bodies may have beside a prompt: tools, and further prompts
AUTO_BYTES_PER_TOKEN = 16  # a token has about 4 bytes; a character that is escaped for JSON alone has 6
AUTO_MAX_BYTES = 6 * 2**20  # a text of that length is decoded in 10 to 35 ms, for which everything else waits

# The breakers of DRY are looked for in the whole vocabulary, which takes long however short the body is. Letters may be escaped.
_DRY = re.compile(rb"dry_|\\u00[567]")

P = ParamSpec("P")
R = TypeVar("R")


def body_limit(configured: int | Literal["auto"], context_tokens: int) -> int:
    """`max_body_bytes` of a server; where the configuration has no number, enough for every prompt that fits into the context."""
    if configured != "auto":
        return configured
    return min(AUTO_FIXED_BYTES + AUTO_BYTES_PER_TOKEN * context_tokens, AUTO_MAX_BYTES)


class Bodies:
    """Owner of the count of body bytes in memory. One for a server."""

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s`: how long a body may take to arrive."""
        self.timeout_s = timeout_s
        self.held_bytes = 0

    @contextmanager
    def hold(self, limit_bytes: int) -> Iterator["HeldBody"]:
        """Room for one body of at most `limit_bytes`, until the block ends."""
        held = HeldBody(self, limit_bytes)
        try:
            yield held
        finally:
            held.release()


class HeldBody:
    """One body as it arrives."""

    def __init__(self, bodies: Bodies, limit_bytes: int) -> None:
        self._bodies = bodies
        self._limit_bytes = limit_bytes
        self._counted_bytes = 0
        self.content = bytearray()

    def add(self, data: bytes) -> None:
        """ApiError when the body is too large, or when too much of others is here already."""
        if len(self.content) + len(data) > self._limit_bytes:
            raise too_large(self._limit_bytes)
        counted = max(0, len(self.content) + len(data) - UNCOUNTED_BYTES)
        if self._bodies.held_bytes + counted - self._counted_bytes > BODIES_HELD * self._limit_bytes:
            raise closing(unavailable("Too many large requests are being read; come back a little later.", "too_many_bodies"))
        self._count(counted)
        self.content += data

    def release(self) -> None:
        self._count(0)

    def _count(self, num_bytes: int) -> None:
        self._bodies.held_bytes += num_bytes - self._counted_bytes
        self._counted_bytes = num_bytes


async def with_body(request: web.Request, work: Callable[Concatenate[bytearray, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
    """`work(body, ...)` with the whole body of the request, off the loop if that is large.

    ApiError for a body that is too large, comes too slowly, or comes while too many others are here.
    """
    limit_bytes = request.app[DOOR].service.max_body_bytes
    if (request.content_length or 0) > limit_bytes:
        raise too_large(limit_bytes)
    with request.app[BODIES].hold(limit_bytes) as held:
        await _read(request, held)
        num_bytes = len(held.content)
        if _DRY.search(held.content):
            num_bytes = max(num_bytes, INLINE_BYTES + 1)
        return await request.app[TEXT_THREADS].run(num_bytes, work, held.content, *args, **kwargs)


async def _read(request: web.Request, held: HeldBody) -> None:
    timeout_s = request.app[BODIES].timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            await tell_to_continue(request)
            while data := await request.content.readany():
                held.add(data)
    except TimeoutError:
        message = f"The request body did not arrive within {timeout_s:g} seconds."
        raise closing(ApiError(408, message, "invalid_request_error", code="body_timeout")) from None


def too_large(limit_bytes: int) -> ApiError:
    """413; the rest of the body is not waited for."""
    message = f"The request body is larger than the {limit_bytes} bytes allowed here."
    return closing(ApiError(413, message, "invalid_request_error", code="body_too_large"))


BODIES = web.AppKey("bodies", Bodies)
