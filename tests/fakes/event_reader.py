"""The reader of one answer's events, as tests of the engine need it."""

import asyncio

from svc.slots.engine import Engine
from svc.slots.events import Event, Finished, TokenEvent
from svc.slots.request import Request


class EventReader:
    """Submits a request and keeps every event of its answer."""

    def __init__(self, engine: Engine, request: Request) -> None:
        self.events: list[Event] = []
        self._news = asyncio.Event()
        self.stream = engine.submit(request, self._on_event)

    def _on_event(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    @property
    def finished(self) -> Finished | None:
        return self.stream.finished

    def cancel(self) -> None:
        self.stream.cancel()

    async def wait(self) -> None:
        """Until there is an event."""
        await self._news.wait()

    async def tokens(self) -> list[int]:
        """All tokens, once the answer has ended."""
        while self.finished is None:
            self._news.clear()
            await self._news.wait()
        return [event.token for event in self.events if isinstance(event, TokenEvent)]
