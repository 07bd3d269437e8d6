"""Signals and what systemd is told."""

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from svc.config import ServiceManager, service_manager
from svc.lifecycle import Notifier, Shutdown


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(10)
        yield sock


def received(manager: socket.socket) -> list[str]:
    return manager.recv(4096).decode().splitlines()


def test_messages(manager: socket.socket) -> None:
    """Each message is one datagram of KEY=value lines, as sd_notify(3) says."""
    notifier = Notifier(manager.getsockname())
    notifier.loading("loading: 10 %", 1.5)
    assert received(manager) == ["STATUS=loading: 10 %", "EXTEND_TIMEOUT_USEC=1500000"]
    notifier.ready("serving")
    assert received(manager) == ["READY=1", "STATUS=serving"]
    notifier.stopping("draining", 60)
    assert received(manager) == ["STOPPING=1", "STATUS=draining", "EXTEND_TIMEOUT_USEC=60000000"]


def test_abstract_address() -> None:
    """An address that begins with "@" is a name without a file."""
    name = f"headrace-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name)
        manager.settimeout(10)
        Notifier("@" + name).ready("x")
        assert received(manager)[0] == "READY=1"


def test_nobody_listens(tmp_path: Path) -> None:
    """No address, or nobody behind it, is no error."""
    Notifier(None).ready("x")
    Notifier(str(tmp_path / "absent")).ready("x")


async def test_watchdog_is_quiet_while_unhealthy(manager: socket.socket) -> None:
    """Only a healthy server is called alive: an engine that hangs is to be restarted."""
    states = iter([True, False, True, False])
    enough = asyncio.Event()

    def healthy() -> bool:
        state = next(states, None)
        if state is None:
            enough.set()
        return bool(state)

    watchdog = asyncio.create_task(Notifier(manager.getsockname()).keep_watchdog(0.001, healthy))
    async with asyncio.timeout(10):
        await enough.wait()
    watchdog.cancel()
    assert [received(manager), received(manager)] == [["WATCHDOG=1"], ["WATCHDOG=1"]]
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_first_signal_asks_and_the_second_is_deadly_again(number: signal.Signals) -> None:
    """After the first signal both have their default meaning."""
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        with Shutdown() as shutdown:
            assert not shutdown.asked
            os.kill(os.getpid(), number)
            async with asyncio.timeout(10):
                await shutdown.wait()
            assert shutdown.asked
            assert shutdown.cause is number
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ServiceManager()),
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "30000000"}, ServiceManager("/run/x", 30.0)),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, ServiceManager()),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, ServiceManager(None, 30.0)),
        ({"NOTIFY_SOCKET": "", "WATCHDOG_USEC": "soon"}, ServiceManager()),
        ({"WATCHDOG_USEC": "0"}, ServiceManager()),
    ],
)
def test_what_systemd_asks(environ: dict[str, str], expected: ServiceManager) -> None:
    """sd_watchdog_enabled(3): a watchdog of another process, or one that is no number, is none of ours."""
    assert service_manager(environ) == expected
