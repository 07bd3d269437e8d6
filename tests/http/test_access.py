"""API keys and CORS."""

from pathlib import Path

import openai
import pytest

from svc.errors import ConfigError
from svc.http.access import CorsPolicy
from svc.http.api_keys import ApiKeys
from svc.http.routes import ROUTES
from tests.fakes.fake_engine import FakeEngine, saying
from tests.http.harness import serving

KEYS = ApiKeys(["first-key", "second-key"])
BODY = {"prompt": "a"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer first-key"}, 200),
        ({"Authorization": "bearer  second-key "}, 200),
        ({"x-api-key": "second-key"}, 200),
        ({"Authorization": "Bearer first-ke"}, 401),
        ({"Authorization": "Bearer first-keyy"}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": "Basic first-key"}, 401),
        ({"Authorization": "first-key"}, 401),
        ({"Authorization": "Bearer wrong", "x-api-key": "first-key"}, 401),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": "\u00fcber\u00a0key"}, 401),
    ],
)
async def test_a_key_opens(headers: dict[str, str], status: int) -> None:
    """Either header, any key of the file, whole; a refusal is OpenAI-shaped and nothing is submitted."""
    async with serving(FakeEngine(saying("x")), keys=KEYS) as at:
        answered, body = await at.post("/v1/completions", BODY, headers=headers)
    assert answered == status
    assert len(at.engine.sequences) == (status == 200)
    if status == 401:
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert body["error"]["code"] in ("missing_api_key", "invalid_api_key")


async def test_what_needs_no_key() -> None:
    """Probes, metrics and the knock at / are open; every other path of the table is not, nor is one that does not exist."""
    paths = {(route.method, route.path.replace("{model:.+}", "m")) for route in ROUTES} | {("GET", "/no/such/path")}
    opened = set()
    async with serving(FakeEngine(saying("x")), keys=KEYS) as at:
        for method, path in paths:
            async with at.client.request(method, path) as response:
                if response.status != 401:
                    opened.add(path)
                else:
                    assert response.headers["WWW-Authenticate"] == "Bearer"
        async with at.client.head("/") as response:
            assert response.status == 200
    assert opened == {"/livez", "/readyz", "/health", "/v1/health", "/metrics", "/"}


async def test_the_sdk_knows_the_refusal() -> None:
    """The openai SDK raises its own exception, and works with the right key."""
    async with serving(FakeEngine(saying("x")), keys=KEYS) as at:
        async with openai.AsyncOpenAI(base_url=f"{at.url}/v1", api_key="wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError):
                await client.completions.create(model="m", prompt="a")
        async with openai.AsyncOpenAI(base_url=f"{at.url}/v1", api_key="first-key", max_retries=0) as client:
            assert (await client.completions.create(model="m", prompt="a")).choices[0].text == "x"


async def test_keys_are_not_logged() -> None:
    async with serving(FakeEngine(saying("x")), keys=KEYS) as at:
        for key in ("first-key", "wrong-key"):
            await at.post("/v1/completions", BODY, headers={"Authorization": f"Bearer {key}"})
        assert "-key" not in at.log.getvalue()
    assert "first" not in repr(KEYS)


def test_key_file(tmp_path: Path) -> None:
    """One key a line; comments, empty lines, spaces around and line ends of any kind do not count."""
    file = tmp_path / "keys"
    file.write_bytes(b"# ours\n\n  alpha  \r\nbe#ta\n#gamma\n")
    keys = ApiKeys.load(str(file))
    opens = [keys.tenant_of(key) is not None for key in ("alpha", "be#ta", "gamma", "#gamma", "", "# ours")]
    assert opens == [True, True] + [False] * 4


async def test_keys_are_replaced() -> None:
    """Whoever holds the object sees the new keys at once, and the old ones no longer."""
    keys = ApiKeys(["old", "both"])
    async with serving(FakeEngine(saying("x")), keys=keys) as at:
        keys.replace(ApiKeys(["both", "new"]))
        for key, status in (("old", 401), ("both", 200), ("new", 200)):
            assert (await at.post("/v1/completions", BODY, headers={"x-api-key": key}))[0] == status
    assert keys.num_keys == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        (b"", "no key in it"),
        (b"# only\n\n", "no key in it"),
        (b"good\ntwo words\n", "line 2"),
        ("sch\u00fcssel".encode(), "line 1"),
        (b"\xff\xfe", "not UTF-8"),
        (b"key\n" * 2**19, "larger than"),
    ],
)
def test_bad_key_file(tmp_path: Path, content: bytes | None, reason: str) -> None:
    """One sentence that names the setting, the file and what is wrong, and never the key."""
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=reason) as error:
        ApiKeys.load(str(file))
    assert str(error.value).startswith("api_key_file: ")
    assert str(file) in str(error.value)
    assert "words" not in str(error.value)


HOME = "https://chat.example.org"
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        ((), HOME, None),
        ((HOME,), HOME, HOME),
        ((f"{HOME}/", "http://localhost:3000"), "http://localhost:3000", "http://localhost:3000"),
        ((HOME,), "https://evil.example.org", None),
        ((HOME,), f"{HOME}.evil.org", None),
        ((HOME,), "null", None),
        (("*",), "https://any.example.net", "*"),
        ((HOME,), None, None),
        *(
            (("localhost", HOME), origin, origin)
            for origin in ("http://localhost", "http://LocalHost:8080", "https://[::1]:3000", HOME)
        ),
        *((("localhost",), origin, origin) for origin in ("http://127.0.0.1:3000", "http://[::1]")),
        *(
            (("localhost",), f"http://{name}", None)
            for name in ("notlocalhost", "localhost.evil.com", "localhost:1@evil.com", "127.0.0.2")
        ),
    ],
)
async def test_origins(origins: tuple[str, ...], origin: str | None, allowed: str | None) -> None:
    """A page of an allowed origin may read answers, errors and streams, and ask before; to any other the headers are silent."""
    headers = {} if origin is None else {"Origin": origin}
    async with serving(FakeEngine(saying("x")), cors_origins=origins, keys=KEYS) as at:
        key = {"x-api-key": "first-key"}
        for body, more, status in ((BODY, key, 200), (BODY, {}, 401), ({**BODY, "stream": True}, key, 200), ({}, key, 400)):
            async with at.client.post("/v1/completions", json=body, headers={**headers, **more}) as response:
                assert response.status == status
                assert response.headers.get("Access-Control-Allow-Origin") == allowed
                assert ("Origin" in response.headers.get("Vary", "")) == (allowed not in (None, "*"))
        async with at.client.options("/v1/completions", headers={**headers, **PREFLIGHT}) as response:
            assert response.status == 200
            assert response.headers.get("Access-Control-Allow-Origin") == allowed
            if allowed is not None:
                assert "POST" in response.headers["Access-Control-Allow-Methods"]
                assert response.headers["Access-Control-Allow-Headers"] == "authorization,content-type"
    assert len(at.engine.sequences) == 2


@pytest.mark.parametrize("origin", ["chat.example.org", "https://a.org/path", "https://", "**", ""])
def test_what_is_no_origin(origin: str) -> None:
    with pytest.raises(ConfigError, match="cors_origins"):
        CorsPolicy([origin])
