"""SIGHUP, SIGUSR1 and SIGUSR2: what an operator can ask of a running server without ending it.

SIGHUP reads the API keys again, SIGUSR1 logs a line about the server's state, SIGUSR2 writes the stack of every thread to stderr.
"""

import asyncio
import contextlib
import faulthandler
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from svc.errors import ConfigError
from svc.http.api_keys import ApiKeys
from svc.http.service import Door
from svc.lifecycle import Shutdown
from svc.log import Logger

STDERR = 2  # the descriptor: faulthandler writes there itself, also while the interpreter hangs


class OperatorSignals:
    """Answers the signals on the running loop. Owner of a reading of the key file that is under way."""

    def __init__(
        self,
        logger: Logger,
        door: Door,
        shutdown: Shutdown,
        *,
        keys: ApiKeys | None,
        key_file: str | None,
        dropped_lines: Callable[[], int],
    ) -> None:
        """`keys` are those of `key_file`; both None when everybody is let in."""
        self._logger, self._door, self._shutdown = logger, door, shutdown
        self._keys, self._key_file = keys, key_file
        self._dropped_lines = dropped_lines
        self._reading: asyncio.Task[None] | None = None
        self._has_terminal = has_terminal()

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Within it the three signals do what this file says; afterwards they end the process, as by default."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self.hang_up)
        loop.add_signal_handler(signal.SIGUSR1, self.log_state)
        faulthandler.register(signal.SIGUSR2, file=STDERR, all_threads=True)
        try:
            yield
        finally:
            faulthandler.unregister(signal.SIGUSR2)
            loop.remove_signal_handler(signal.SIGUSR1)
            loop.remove_signal_handler(signal.SIGHUP)

    def hang_up(self) -> None:
        """The terminal that the server was started from is closed: drain. Else, a request to read the keys again."""
        if self._has_terminal and not has_terminal():
            self._shutdown.ask(signal.SIGHUP)
        elif self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read_keys(), name="api keys")

    async def _read_keys(self) -> None:
        """A file that cannot be used changes nothing."""
        if self._keys is None or self._key_file is None:
            self._logger.info("nothing_to_reload", reason="api_key_file is not set; other settings need a restart")
            return
        try:
            self._keys.replace(await asyncio.to_thread(ApiKeys.load, self._key_file))
        except ConfigError as error:
            self._logger.error("api_keys_kept", reason=f"{error}; the old keys stay valid")
        else:
            self._logger.info("api_keys_reloaded", number=self._keys.num_keys)

    def log_state(self) -> None:
        stats = self._door.stats
        levels = {}
        if stats is not None:
            cache = stats.cache
            levels = {
                "running": stats.num_running,
                "waiting": stats.num_waiting,
                "slots": stats.num_slots,
                "kv_pages_held": cache.pinned_pages,
                "kv_pages_cached": cache.cached_pages,
                "kv_pages": cache.num_pages,
                "snapshots_used": cache.num_snapshots - cache.free_snapshots,
                "snapshots": cache.num_snapshots,
                "steps": stats.counters.steps,
                "generated_tokens": stats.counters.generated_tokens,
            }
        self._logger.info("state", readiness=self._door.readiness.value, log_lines_dropped=self._dropped_lines(), **levels)


def has_terminal() -> bool:
    """Whether the process has a controlling terminal. A daemon never had one; one that was closed is gone."""
    with contextlib.suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        return True
    return False
