"""One request's events on their way from the engine to whoever reads them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from svc.slots.events import Event, Finished


class TokenStream:
    """Single-reader queue of events that ends with exactly one `Finished`. The step loop never waits for the reader.

    Owner: the engine pushes, one reader pulls; both on the event loop. Leaving early is normal: call `cancel()` in a `finally`
    (harmless after the end), which frees the sequence's slot before the next step.
    """

    def __init__(self, request_id: str, on_cancel: Callable[[], None]) -> None:
        self.request_id = request_id
        self._on_cancel = on_cancel
        self._events: deque[Event] = deque()
        self._finished: Finished | None = None
        self._wake: asyncio.Future[None] | None = None

    @property
    def finished(self) -> Finished | None:
        """The end, once the engine has pushed it (even if the reader has not come to it yet)."""
        return self._finished

    def push(self, event: Event) -> None:
        """Called by the engine. Nothing may follow `Finished`."""
        assert self._finished is None, f"event after the end of {self.request_id}"
        self._events.append(event)
        if isinstance(event, Finished):
            self._finished = event
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def take(self) -> list[Event]:
        """All events that are there now, in order; may be empty."""
        events = list(self._events)
        self._events.clear()
        return events

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until `take` would give something. False when `timeout_s` passed first (time for a keep-alive comment)."""
        if self._events:
            return True
        self._wake = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake
        except TimeoutError:
            return bool(self._events)
        finally:
            self._wake = None
        return True

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Events one by one, the last is `Finished`."""
        while True:
            await self.wait()
            for event in self.take():
                yield event
                if isinstance(event, Finished):
                    return

    def cancel(self) -> None:
        """Gives up the request; does nothing once it has ended."""
        if self._finished is None:
            self._on_cancel()

    def __repr__(self) -> str:
        state = self._finished.reason.value if self._finished else "open"
        return f"<TokenStream {self.request_id} {state}, {len(self._events)} unread>"
