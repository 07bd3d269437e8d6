"""Start and end of the process: signals that end it, systemd notification, progress of the start.

The first SIGTERM or SIGINT asks for a drain and restores the signals' default action: a second one ends the process at once.
"""

import asyncio
import signal
import socket
import time
from collections.abc import Callable

from svc.log import Logger

PROGRESS_EVERY_S = 2.0
START_EXTENSION_S = 60.0  # asked of the service manager each time the start makes progress
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Shutdown:
    """Whether a drain was asked for, and by which signal. Between enter and exit it owns the loop's two signal handlers."""

    def __init__(self) -> None:
        self.cause: signal.Signals | None = None
        self._asked = asyncio.Event()

    def __enter__(self) -> "Shutdown":
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.ask, number)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def ask(self, number: signal.Signals) -> None:
        """Asks for a drain on behalf of the signal `number`."""
        self.cause = number
        self._restore()
        self._asked.set()

    @staticmethod
    def _restore() -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            if loop.remove_signal_handler(number):
                signal.signal(number, signal.SIG_DFL)

    @property
    def asked(self) -> bool:
        """Whether a drain was asked for. Other threads may read it."""
        return self.cause is not None

    async def wait(self) -> None:
        """Returns once a drain was asked for."""
        await self._asked.wait()


class Notifier:
    """Reports the service's state to systemd or another service manager. Without an address every method does nothing."""

    def __init__(self, address: str | None) -> None:
        """`address`: the value of NOTIFY_SOCKET, a path or an abstract name that begins with "@"."""
        self._address = address and ("\0" + address[1:] if address.startswith("@") else address)

    def send(self, *lines: str) -> None:
        """Sends one message of `KEY=value` lines. Ignores a manager that does not listen."""
        if self._address:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                    sock.connect(self._address)
                    sock.send("\n".join(lines).encode())
            except OSError:
                pass

    def loading(self, status: str, extend_s: float) -> None:
        """Reports a start in progress and asks for `extend_s` seconds from now."""
        self.send(f"STATUS={status}", f"EXTEND_TIMEOUT_USEC={int(extend_s * 1e6)}")

    def ready(self, status: str) -> None:
        self.send("READY=1", f"STATUS={status}")

    def stopping(self, status: str, extend_s: float) -> None:
        """Reports the end and asks for `extend_s` seconds from now, in place of the manager's stop timeout."""
        self.send("STOPPING=1", f"STATUS={status}", f"EXTEND_TIMEOUT_USEC={int(extend_s * 1e6)}")

    async def keep_watchdog(self, watchdog_s: float, healthy: Callable[[], bool]) -> None:
        """Runs until cancelled: reports "alive" twice per `watchdog_s` while `healthy()`."""
        while True:
            if healthy():
                self.send("WATCHDOG=1")
            await asyncio.sleep(watchdog_s / 2)


class LoadInterruptedError(Exception):
    """A signal arrived before the server was ready."""


def load_progress(logger: Logger, notifier: Notifier, shutdown: Shutdown) -> Callable[[int, int], None]:
    """A callback for the loading thread. Reports progress to log and service manager every PROGRESS_EVERY_S seconds; after a signal
    it raises LoadInterruptedError, which ends the load."""
    began = last = time.monotonic()
    complete = False

    def progress(done_bytes: int, all_bytes: int) -> None:
        nonlocal last, complete
        if shutdown.asked:
            raise LoadInterruptedError
        now = time.monotonic()
        if complete or (now - last < PROGRESS_EVERY_S and done_bytes < all_bytes):
            return
        last, complete = now, done_bytes >= all_bytes
        percent = 100 * done_bytes // max(1, all_bytes)
        logger.info("loaded" if complete else "loading", percent=percent, mib=done_bytes >> 20, seconds=round(now - began, 2))
        notifier.loading(f"loading: {percent} %", START_EXTENSION_S)

    return progress


class KernelProgress:
    """Reports the compilation of kernels to log and service manager. Each takes seconds at the first start on a machine; later ones
    find them in CuPy's cache. Called on the compute thread; does nothing after `finish`."""

    def __init__(self, logger: Logger, notifier: Notifier, shutdown: Shutdown) -> None:
        self._logger, self._notifier, self._shutdown = logger, notifier, shutdown
        self._began = self._last = 0.0
        self._count = 0
        self._finished = False

    def __call__(self, kernel: str) -> None:
        if self._finished:
            return
        if self._shutdown.asked:
            raise LoadInterruptedError
        now = time.monotonic()
        if not self._count:
            self._began = self._last = now
        self._count += 1
        self._notifier.loading(f"compiling kernels: number {self._count}, {kernel}", START_EXTENSION_S)
        if now - self._last >= PROGRESS_EVERY_S:
            self._last = now
            self._logger.info("compiling", number=self._count, kernel=kernel, seconds=round(now - self._began, 2))

    def finish(self) -> None:
        self._finished = True
        if self._count:
            self._logger.info("kernels_ready", kernels=self._count, seconds=round(time.monotonic() - self._began, 2))
