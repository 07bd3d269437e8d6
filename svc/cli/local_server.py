"""A server on a thread of this process, for commands that talk to a model file over HTTP."""

import asyncio
import threading
from concurrent.futures import Future
from contextlib import AsyncExitStack
from types import TracebackType

from svc.cli.progress import ProgressLine
from svc.config import Config

PER_MILLE = 1000


class LocalServer:
    """A context manager: entering waits until the model is loaded (and raises the errors of loading), leaving ends the server.

    The server has an event loop of its own, so the command may block and handles Ctrl-C itself.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._ready: Future[tuple[str, str]] = Future()
        self._unwanted = threading.Event()
        self._thread = threading.Thread(target=self._run, name="server")

    def __enter__(self) -> tuple[str, str]:
        """(URL, API key)."""
        self._thread.start()
        try:
            return self._ready.result()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._unwanted.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _serve(self) -> None:
        from svc.app import private_server
        from svc.lifecycle import LoadInterruptedError
        from svc.log import configure_logging

        async with AsyncExitStack() as stack:
            with ProgressLine("loading", PER_MILLE) as line:

                def progress(done_bytes: int, all_bytes: int) -> None:
                    if self._unwanted.is_set():
                        raise LoadInterruptedError
                    line.update(PER_MILLE * done_bytes // max(1, all_bytes))

                logger = configure_logging("warning", "console")
                address = await stack.enter_async_context(private_server(self._config, logger, progress))
            self._ready.set_result(address)
            await asyncio.to_thread(self._unwanted.wait)
