"""The one place where the answers of an HTTP request wait for their reader."""

import asyncio
from collections.abc import Callable

from svc.http.answer import Answer

Sink = Callable[[list[Answer]], bool]
"""Takes the news of some answers at once. False where it did not, because there is something to wait for."""


class Rounds:
    """One callback of the event loop for all inboxes that got news since its last turn. Owner: the service."""

    def __init__(self) -> None:
        self._inboxes: list[Inbox] = []

    def add(self, inbox: "Inbox") -> None:
        """`inbox` is emptied in the next turn."""
        if not self._inboxes:
            asyncio.get_running_loop().call_soon(self._empty)
        self._inboxes.append(inbox)

    def _empty(self) -> None:
        inboxes, self._inboxes = self._inboxes, []
        for inbox in inboxes:
            inbox.empty()


class Inbox:
    """The answers that have news, in the order in which they got them. Their news wait in the answers themselves.

    Owner: the handler that waits; the engine's events put answers in. While it waits, news go to its sink, once for all that came
    between two turns of the loop. The handler itself is woken for what the sink does not take.
    """

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._answers: dict[int, Answer] = {}
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Sink | None = None  # only beside a waiter

    def put(self, answer: Answer) -> None:
        if not self._answers and self._waiter is not None:
            if self._sink is None:
                self.wake()
            else:
                self._rounds.add(self)
        self._answers[answer.index] = answer

    def wake(self) -> None:
        """Lets the reader look around, whether there are news or not."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def empty(self) -> None:
        """Offers the news to the sink of a reader that waits. What the sink raises the reader gets."""
        waiter, sink = self._waiter, self._sink
        if waiter is None or sink is None or waiter.done() or not self._answers:
            return  # the reader looks by itself
        try:
            if sink(list(self._answers.values())):
                self._answers.clear()
            else:
                self.wake()
        except Exception as error:
            waiter.set_exception(error)

    async def wait(self, sink: Sink | None = None) -> None:
        """Until there are news that `sink` does not take, or somebody calls `wake`."""
        if self._answers:
            return
        self._waiter, self._sink = asyncio.get_running_loop().create_future(), sink
        try:
            await self._waiter
        finally:
            self._waiter = self._sink = None

    def take(self) -> list[Answer]:
        """The answers with news; may be none."""
        answers, self._answers = self._answers, {}
        return list(answers.values())
