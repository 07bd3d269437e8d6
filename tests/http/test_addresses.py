"""The addresses that the server listens on."""

import aiohttp
import pytest

from svc.errors import ConfigError
from svc.http.address import is_free
from tests.fakes.fake_engine import FakeEngine
from tests.http.harness import serving


async def test_several_addresses_have_one_port() -> None:
    """All of them are answered; the URL is the first one's. None of them is free then, and others are."""
    async with serving(FakeEngine(), host="127.0.0.1, 127.0.0.2") as at:
        port = int(at.url.rpartition(":")[2])
        assert at.url == f"http://127.0.0.1:{port}"
        async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.2:{port}/livez") as response:
            assert response.status == 200
        assert [is_free(host, port) for host in ("127.0.0.3,127.0.0.2", "127.0.0.2", "127.0.0.3")] == [False, False, True]


async def test_an_address_that_cannot_be_had_is_named() -> None:
    """The one of several; nothing is left listening."""
    with pytest.raises(ConfigError, match=r"host 192\.0\.2\.1 is not an address of this machine"):
        async with serving(FakeEngine(), host="127.0.0.1,192.0.2.1"):
            pass
