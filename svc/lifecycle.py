"""The process's life as others see it: signals that end it, and what systemd is told.

A first SIGTERM or SIGINT asks for a drain. From then on the signals have their default meaning again: a second one ends the
process at once, whatever it is doing.
"""

import asyncio
import signal
import socket
from collections.abc import Callable

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Shutdown:
    """Whether and by what the end was asked for. Owner of the two signal handlers, on the running loop, between enter and exit."""

    def __init__(self) -> None:
        self.cause: signal.Signals | None = None
        self._asked = asyncio.Event()

    def __enter__(self) -> "Shutdown":
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._ask, number)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _ask(self, number: signal.Signals) -> None:
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
        """May be read from other threads."""
        return self.cause is not None

    async def wait(self) -> None:
        """Returns once a signal has come."""
        await self._asked.wait()


class Notifier:
    """Tells systemd (or whoever gave `address`) how the service is. Without an address every method does nothing."""

    def __init__(self, address: str | None) -> None:
        """`address`: NOTIFY_SOCKET, a path or an abstract name that begins with "@"."""
        self._address = address and ("\0" + address[1:] if address.startswith("@") else address)

    def send(self, *lines: str) -> None:
        """One message of `KEY=value` lines. A manager that does not listen is no error of ours."""
        if self._address:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                    sock.connect(self._address)
                    sock.send("\n".join(lines).encode())
            except OSError:
                pass

    def loading(self, status: str, extend_s: float) -> None:
        """Still starting: asks for `extend_s` more seconds from now."""
        self.send(f"STATUS={status}", f"EXTEND_TIMEOUT_USEC={int(extend_s * 1e6)}")

    def ready(self, status: str) -> None:
        self.send("READY=1", f"STATUS={status}")

    def stopping(self, status: str, extend_s: float) -> None:
        """Ending: asks for `extend_s` seconds from now, whatever the manager would have given."""
        self.send("STOPPING=1", f"STATUS={status}", f"EXTEND_TIMEOUT_USEC={int(extend_s * 1e6)}")

    async def keep_watchdog(self, watchdog_s: float, healthy: Callable[[], bool]) -> None:
        """Runs until cancelled: says "alive" twice per `watchdog_s`, but only while `healthy()`."""
        while True:
            if healthy():
                self.send("WATCHDOG=1")
            await asyncio.sleep(watchdog_s / 2)
