"""One request's events on their way from the engine to their reader."""

from collections.abc import Callable

from svc.slots.events import Event, Finished


class TokenStream:
    """Passes each event on at once, and ends with exactly one `Finished`. Nothing waits here.

    Owner: the engine, which pushes. Leaving early is normal: call `cancel()` in a `finally` (harmless after the end), which frees
    the sequence's slot before the next step.
    """

    def __init__(self, request_id: str, on_event: Callable[[Event], None], on_cancel: Callable[[], None]) -> None:
        """`on_event` is called on the event loop, also by `cancel`; it must not raise or block."""
        self.request_id = request_id
        self.finished: Finished | None = None
        self._on_event = on_event
        self._on_cancel = on_cancel

    def push(self, event: Event) -> None:
        """Called by the engine. Nothing may follow `Finished`."""
        assert self.finished is None, f"event after the end of {self.request_id}"
        if isinstance(event, Finished):
            self.finished = event
        self._on_event(event)

    def cancel(self) -> None:
        """Ends the answer as cancelled; does nothing once it has ended."""
        if self.finished is None:
            self._on_cancel()

    def __repr__(self) -> str:
        return f"<TokenStream {self.request_id} {self.finished.reason.value if self.finished else 'open'}>"
