"""The one place where the answers of an HTTP request wait for their reader."""

import asyncio

from svc.http.answer import Answer


class Inbox:
    """The answers that have news, in the order in which they got them. Their news wait in the answers themselves.

    Owner: the handler that waits; the engine's events put answers in. However much comes between two turns of the reader, it is
    woken once.
    """

    def __init__(self) -> None:
        self._answers: dict[int, Answer] = {}
        self._waiter: asyncio.Future[None] | None = None

    def put(self, answer: Answer) -> None:
        self._answers[answer.index] = answer
        if self._waiter is not None:
            self.wake()

    def wake(self) -> None:
        """Lets the reader look around, whether there are news or not."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self) -> None:
        """Until there are news or somebody calls `wake`."""
        if self._answers:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def take(self) -> list[Answer]:
        """The answers with news; may be none."""
        answers, self._answers = self._answers, {}
        return list(answers.values())
