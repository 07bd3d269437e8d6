"""POST /cache/pin, GET /cache/pins, DELETE /cache/pin/{pin}, POST /cache/flush: who may, and what is refused."""

import asyncio

import pytest

from svc.http.api_keys import ApiKeys
from svc.slots.events import FinishReason
from tests.fakes.fake_engine import FakeEngine, saying
from tests.fakes.fake_text import ids
from tests.http.harness import serving

ADMIN = {"x-api-key": "root"}
ROUTES = [("POST", "/cache/pin"), ("GET", "/cache/pins"), ("DELETE", "/cache/pin/1"), ("POST", "/cache/flush")]


def keys() -> ApiKeys:
    return ApiKeys(["ops:root admin", "alice:user", "nameless"])


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize(
    ("key", "status", "code"),
    [(None, 401, "missing_api_key"), ("wrong", 401, "invalid_api_key"), ("user", 403, "admin_key_required"),
     ("nameless", 403, "admin_key_required")],
)  # fmt: skip
async def test_only_administrators(method: str, path: str, key: str | None, status: int, code: str) -> None:
    """Before anything of the request is looked at."""
    async with serving(FakeEngine(saying("x")), keys=keys()) as at:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        async with at.client.request(method, path, headers=headers, data=b"{") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (status, code)
    assert (at.engine.sequences, at.engine.num_flushed) == ([], 0)


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_without_a_key_file_nobody_may(method: str, path: str) -> None:
    """Not even from this machine, where a proxy's clients seem to be too."""
    async with serving(FakeEngine(saying("x"))) as at, at.client.request(method, path, data=b"{}") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (403, "admin_key_required")


async def test_a_new_key_file_takes_the_right_away() -> None:
    mine = keys()
    async with serving(FakeEngine(), keys=mine) as at:
        mine.replace(ApiKeys(["ops:root"]))
        async with at.client.get("/cache/pins", headers=ADMIN) as response:
            assert response.status == 403


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "prompt", None),
        ({"prompt": "a", "messages": []}, "prompt", None),
        ({"prompt": ""}, "prompt", None),
        ({"prompt": [1, "a", None]}, "prompt[2]", None),
        ({"prompt": [10**9]}, "prompt[0]", None),
        ({"prompt": 7}, "prompt", None),
        ({"prompt": "a", "name": "n" * 201}, "name", None),
        ({"messages": [{"role": "assistant", "content": "refuse"}]}, "messages", None),
        ({"prompt": "word" * 2000}, "prompt", "context_length_exceeded"),
        ({"prompt": "a" * 1000}, None, "pin_budget"),  # of 16 pages
    ],
)
async def test_what_is_refused(body: object, param: str | None, code: str | None) -> None:
    """Nothing is evaluated for it."""
    async with serving(FakeEngine(saying("x")), keys=keys()) as at:
        status, answer = await at.post("/cache/pin", body, headers=ADMIN)
    assert (status, answer["error"]["param"]) == (400, param), answer
    assert code is None or answer["error"]["code"] == code
    assert at.engine.sequences == []


async def test_the_prefix_is_evaluated() -> None:
    """As a request for no token. Here no snapshot comes of it: a 503. A client that leaves, and a device that fails, end it."""
    async with serving(FakeEngine(saying("x")), keys=keys()) as at:
        status, answer = await at.post("/cache/pin", {"messages": [{"role": "system", "content": "hi"}]}, headers=ADMIN)
    assert (status, answer["error"]["code"]) == (503, "no_snapshot")
    (sequence,) = at.engine.sequences
    assert list(sequence.request.prompt) == ids("<|im_start|>system\nhi<|im_end|>\n")
    assert (sequence.request.max_tokens, sequence.request.tenant, sequence.request.owner) == (0, "ops", "ops")
    async with serving(FakeEngine(), keys=keys()) as at:
        asked = asyncio.create_task(at.post("/cache/pin", {"prompt": "a"}, headers=ADMIN))
        (await at.engine.submitted.get()).end(FinishReason.ERROR, "not finite")
        assert (await asked)[0] == 500
        asked = asyncio.create_task(at.post("/cache/pin", {"prompt": "a"}, headers=ADMIN))
        sequence = await at.engine.submitted.get()
        asked.cancel()
        assert await at.engine.cancelled.get() is sequence


async def test_pins_are_listed_and_ended() -> None:
    """With their bytes; what is no pin is a 404."""
    async with serving(FakeEngine(), keys=keys()) as at:
        cache, pins = at.engine.pins._cache, at.engine.pins
        driver = cache.open(tokens := tuple(b"hello"), cache.match(tokens), 0.0)
        assert driver is not None
        assert cache.extend(driver, 5, 0.0)
        reservation = cache.reserve(driver, 5, 0.0)
        assert reservation is not None
        cache.finish(cache.begin([driver], [reservation]), 0.0)
        status, pin = await at.post("/cache/pin", {"prompt": list(tokens), "name": "greeting"}, headers=ADMIN)
        layout = cache.plan.layout
        size = layout.page_bytes + layout.state_bytes
        assert (status, pin) == (200, {"id": 1, "name": "greeting", "n_tokens": 5, "size": size, "created": pin["created"]})
        async with at.client.get("/cache/pins", headers=ADMIN) as response:
            budget = pins.budget_bytes
            assert await response.json() == {"pins": [pin], "used_bytes": size, "budget_bytes": budget, "given_up": 0}
        for path, status in (("/cache/pin/2", 404), ("/cache/pin/x", 404), ("/cache/pin/1", 200), ("/cache/pin/1", 404)):
            async with at.client.delete(path, headers=ADMIN) as response:
                assert response.status == status, path
        assert len(pins) == 0


async def test_flush() -> None:
    async with serving(FakeEngine(), keys=keys()) as at:
        answer = await at.post("/cache/flush", {}, headers=ADMIN)
    assert answer == (200, {"n_snapshots": 3, "n_pages": 4, "n_pins": 1, "disk_bytes": 500})
    assert at.engine.num_flushed == 1
