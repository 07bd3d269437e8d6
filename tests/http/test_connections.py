"""More clients than there may be: idle ones make place, busy ones do not, and probes and metrics are answered all the same."""

import asyncio
import resource
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.http.connections import WARN_EVERY_S, Connections, Entry, affordable, fitted, shared_out
from svc.slots.events import FinishReason
from tests.fakes.fake_engine import FakeEngine
from tests.http.harness import Harness, serving
from tests.http.test_protocol import ASK, LIVE, Client

LIMIT, RESERVE = 3, 2


@dataclass(eq=False)
class FakeClient:
    idle_since_s: float | None
    dropped: bool = False

    def drop(self) -> None:
        self.dropped = True


def test_the_longest_idle_goes() -> None:
    """For each newcomer one, in the order in which they fell idle; a newcomer never makes place for itself."""
    clients = Connections(LIMIT, RESERVE, lambda number: None)
    idle = [FakeClient(since_s) for since_s in (2.0, 0.0, 1.0)]
    assert [clients.admit(client, 2.0) for client in idle] == [Entry.OPEN] * LIMIT
    for expected in (idle[1], idle[2], idle[0]):
        assert clients.admit(FakeClient(5.0), 5.0) is Entry.OPEN
        assert expected.dropped
    assert (len(clients), clients.num_dropped, clients.num_refused) == (LIMIT, 3, 0)


def test_where_all_are_busy() -> None:
    """The reserve is for probes and metrics; beyond it connections are refused. Those that leave make place again."""
    clients = Connections(LIMIT, RESERVE, lambda number: None)
    busy = [FakeClient(None) for _ in range(LIMIT + RESERVE + 1)]
    admitted = [clients.admit(client, 0.0) for client in busy]
    assert admitted == [Entry.OPEN] * LIMIT + [Entry.PROBES] * RESERVE + [Entry.REFUSED]
    assert clients.num_refused == 1
    assert not any(client.dropped for client in busy)
    busy[-1].idle_since_s = 0.0
    assert clients.admit(FakeClient(None), 1.0) is Entry.REFUSED  # as many as before are busy
    for client in busy[2:]:
        clients.leave(client)
    assert clients.admit(FakeClient(None), 0.0) is Entry.PROBES


def test_it_is_said_once_a_minute() -> None:
    """However many come."""
    told: list[int] = []
    clients = Connections(1, 0, told.append)
    clients.admit(FakeClient(None), 0.0)
    for now_s in (0.0, 1.0, WARN_EVERY_S - 0.1, WARN_EVERY_S, WARN_EVERY_S + 1):
        newcomer = FakeClient(None)
        clients.admit(newcomer, now_s)
        clients.leave(newcomer)
    assert told == [2, 2]


@given(st.integers(1, 10**6), st.integers(0, 100), st.integers(1, 10**5), st.integers(0, 10**6) | st.just(resource.RLIM_INFINITY))
def test_descriptors(wanted: int, others: int, soft: int, more: int) -> None:
    """As many connections as wanted where the hard limit allows it, else as many as that does; never more than descriptors."""
    hard = more if more == resource.RLIM_INFINITY else soft + more
    raised, count = fitted(wanted, others, soft, hard)
    assert soft <= raised
    assert hard == resource.RLIM_INFINITY or raised <= hard
    assert count == wanted or raised == hard
    assert count == 1 or count + others <= raised


@given(st.integers(1, 10**4), st.integers(1, 10**4), st.integers(0, 100))
def test_connections_are_shared_out(possible: int, wanted: int, most: int) -> None:
    """Never more than are possible or wanted, and of what is possible three quarters at least for all requests."""
    limit, reserve = shared_out(possible, wanted, most)
    assert limit + reserve <= possible
    assert 0 <= reserve <= most
    assert limit == wanted or (4 * limit >= 3 * possible and limit + reserve == possible)


LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import asyncio
from tests.fakes.fake_engine import FakeEngine
from tests.http.harness import serving
async def main():
    async with serving(FakeEngine()) as at:
        print(at.server.clients.limit)
asyncio.run(main())
"""


def test_few_descriptors() -> None:
    """With 64 of them (`ulimit -n 64`) a server still takes a useful number of clients."""
    command = [sys.executable, "-c", LIMITED]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert 16 <= int(done.stdout) <= 48


def test_descriptors_of_this_process() -> None:
    """One connection can always be had, and the limit is not lowered."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert affordable(1) == 1
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


async def _metric(at: Harness, name: str) -> float:
    async with aiohttp.ClientSession() as session, session.get(f"{at.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"headrace_{name} ")))


async def test_idle_sockets_keep_nobody_out() -> None:
    """Far more sockets than there may be, of which none asks anything: requests are answered, and it is said once."""
    async with serving(FakeEngine(), max_connections=LIMIT) as at, AsyncExitStack() as stack:
        for _ in range(5 * LIMIT):
            await stack.enter_async_context(Client(at))
        async with Client(at) as client:
            client.send(LIVE)
            assert (await client.response()).status == 200
        assert await _metric(at, "http_connections_limit") == LIMIT
        assert await _metric(at, "http_connections_dropped_total") > 0
        assert len(at.log_lines("too_many_connections")) == 1


async def test_busy_connections_leave_room_for_probes() -> None:
    """All of them wait for answers: one more gets a 503 and when to come back, probes and the scrape get their answers, and the
    answers that were waited for come."""
    async with serving(FakeEngine(), max_connections=LIMIT) as at, AsyncExitStack() as stack:
        busy = [await stack.enter_async_context(Client(at)) for _ in range(LIMIT)]
        for client in busy:
            client.send(ASK)
        sequences = [await at.engine.submitted.get() for _ in busy]
        async with Client(at) as client:
            client.send(LIVE + ASK)
            assert (await client.response()).status == 200
            refused = await client.response()
            assert (refused.status, refused.error["code"]) == (503, "too_many_connections")
            assert int(refused.headers["Retry-After"]) > 0
            assert await client.closed()
        assert await _metric(at, "http_connections") == LIMIT + 1
        for client, sequence in zip(busy, sequences, strict=True):
            sequence.end(FinishReason.STOP)
            assert (await client.response()).status == 200


@pytest.mark.parametrize("requests", [1, 3])
async def test_a_connection_is_busy_until_its_last_answer(requests: int) -> None:
    """Pipelined requests included; only then others may take its place."""
    async with serving(FakeEngine(), max_connections=1) as at, Client(at) as client:
        client.send(ASK * requests)
        for _ in range(requests):
            sequence = await at.engine.submitted.get()
            async with Client(at) as other:
                other.send(ASK)
                assert (await other.response()).status == 503
            sequence.end(FinishReason.STOP)
            assert (await client.response()).status == 200
        await asyncio.sleep(0)
        async with Client(at) as other:
            other.send(LIVE)
            assert (await other.response()).status == 200
        assert await client.closed()
