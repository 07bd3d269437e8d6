"""Limits of a tenant as plain functions of time."""

import random
from fractions import Fraction

import pytest

from svc.http.rate_limits import HEADERS, Bucket, Limits, Tenant, spoken


def run(limits: Limits, script: str) -> list[str]:
    """What comes of "SECONDS in", "SECONDS out" and "SECONDS tokens=N", in turn: of each "in" the code of its refusal, or "ok"."""
    tenant = Tenant("t", limits)
    said = []
    for line in script.split(", "):
        at, _, what = line.partition(" ")
        now = float(at)
        if what == "in":
            over = tenant.enter(now)
            said.append("ok" if over is None else f"{over.code} {over.retry_after_s:g}")
        elif what == "out":
            tenant.leave()
        else:
            tenant.charge(int(what.removeprefix("tokens=")), now)
    return said


@pytest.mark.parametrize(
    ("limits", "script", "said"),
    [
        (Limits(), "0 in, 0 in, 0 tokens=999999, 0 in", "ok ok ok"),
        # Three at once, then one every twenty seconds; a refusal costs nothing.
        (
            Limits(requests_per_minute=3),
            "5 in, 5 in, 5 in, 5 in, 10 in, 24 in, 25 in, 26 in",
            "ok ok ok,requests_per_minute 20,requests_per_minute 15,requests_per_minute 1,ok,requests_per_minute 19",
        ),
        # Nothing is saved up beyond a minute.
        (Limits(requests_per_minute=2), "0 in, 0 in, 9999 in, 9999 in, 9999 in", "ok ok ok ok,requests_per_minute 30"),
        # A long answer: 600 of 60 a minute are owed 540, and the next request comes when one token is there again.
        (
            Limits(tokens_per_minute=60),
            "0 in, 100 tokens=600, 100 in, 640 in, 641 in",
            "ok,tokens_per_minute 541,tokens_per_minute 1,ok",
        ),
        # Exactly all tokens used: the next one is waited for.
        (Limits(tokens_per_minute=60), "0 in, 0 tokens=60, 0 in, 1 in, 2 in", "ok,tokens_per_minute 1,ok ok"),
        (Limits(parallel_requests=2), "0 in, 0 in, 0 in, 0 out, 0 in, 0 in", "ok ok,parallel_requests 1,ok,parallel_requests 1"),
        # Whichever is over; a request refused for one limit does not use up another.
        (
            Limits(requests_per_minute=2, parallel_requests=1),
            "0 in, 0 in, 0 in, 0 out, 0 in, 0 out, 0 in",
            "ok,parallel_requests 1,parallel_requests 1,ok,requests_per_minute 30",
        ),
        (Limits(requests_per_minute=1, tokens_per_minute=60), "0 in, 0 tokens=90, 60 in, 60 in", "ok ok,requests_per_minute 60"),
    ],
)
def test_scripts(limits: Limits, script: str, said: str) -> None:
    """Who is let in when, and how long the others are told to wait."""
    expected = [word for part in said.split(",") for word in (part.split() if "_" not in part else [part])]
    assert run(limits, script) == expected


@pytest.mark.parametrize("seed", range(20))
def test_a_refused_request_is_let_in_after_the_time_it_is_told(seed: int) -> None:
    """And not noticeably before; over any time no more are let in than the limit gives, counted in exact numbers."""
    rng = random.Random(seed)
    per_minute = rng.choice([1, 3, 60, 997])
    tenant = Tenant("t", Limits(requests_per_minute=per_minute))
    start = now = rng.uniform(0, 1e6)
    for num_in in range(1, 3 * per_minute):
        over = tenant.enter(now)
        if over is not None:
            if over.retry_after_s > 0.01:
                assert tenant.enter(now + over.retry_after_s - 0.01) is not None
            now += over.retry_after_s
            assert tenant.enter(now) is None
        allowed = per_minute + Fraction(per_minute, 60) * Fraction(now - start)
        assert num_in <= allowed + Fraction(1, 1000)
        now += rng.choice([0.0, 0.0, 1e-3, 10.0 / per_minute])


def test_headers() -> None:
    """OpenAI's names, for the limits that there are; what is owed is nothing left, and resets when all has come back."""
    tenant = Tenant("t", Limits(requests_per_minute=6, tokens_per_minute=600, parallel_requests=3))
    tenant.enter(100.0)
    tenant.charge(900, 100.0)
    assert tenant.headers(100.0) == {
        "x-ratelimit-limit-requests": "6",
        "x-ratelimit-remaining-requests": "5",
        "x-ratelimit-reset-requests": "10s",
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "1m30s",
    }
    assert sorted(tenant.headers(100.0)) == sorted(HEADERS)
    assert tenant.headers(160.0)["x-ratelimit-remaining-tokens"] == "300"
    assert Tenant("t").headers(0.0) == Tenant("t", Limits(parallel_requests=1)).headers(0.0) == {}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.12, "120ms"), (1, "1s"), (7.66, "7.66s"), (59.9996, "1m0s"), (360, "6m0s"), (90.5, "1m30.5s"), (3600, "60m0s")],
)
def test_durations(seconds: float, text: str) -> None:
    """As in OpenAI's headers."""
    assert spoken(seconds) == text


def test_a_clock_that_stands_still_or_goes_back_gives_nothing() -> None:
    bucket = Bucket(60)
    bucket.fill(50.0)
    bucket.take(60)
    bucket.fill(50.0)
    bucket.fill(40.0)
    bucket.fill(50.0)
    assert bucket.remaining == 0


@pytest.mark.parametrize(
    ("before", "after", "left"), [(60, 60, "10"), (60, 600, "10"), (60, 6, "6"), (60, None, None), (None, 30, "30")]
)
def test_other_limits(before: int | None, after: int | None, left: str | None) -> None:
    """What is left stays, as far as it fits; a limit that is new starts full; one that is gone does not count."""
    tenant = Tenant("t", Limits(requests_per_minute=before))
    for _ in range(50):
        tenant.enter(1.0)
    tenant.limit(Limits(requests_per_minute=after, parallel_requests=1))
    assert tenant.headers(1.0).get("x-ratelimit-remaining-requests") == left
    over = tenant.enter(1.0)
    assert over is not None
    assert over.code == "parallel_requests"  # those that run still count
