"""/livez, /readyz, /health, /metrics and the log line of a request."""

import asyncio
import re
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from svc.disk.store import DiskCounters, DiskStats
from svc.slots.disk_tier import DiskTierCounters, DiskTierStats
from svc.slots.engine import EngineState
from svc.slots.events import FinishReason
from svc.slots.stats import EngineStats
from tests.fakes.fake_engine import FakeEngine, saying
from tests.http.harness import serving

BODY = {"prompt": "secretword", "max_tokens": 3, "seed": 5}


async def test_loading() -> None:
    """Before the model is there: alive, not ready, and everything else is a 503 that says when to come back."""
    async with serving(FakeEngine(), loaded=False) as at:
        assert (await at.get("/livez"))[0] == 200
        status, body = await at.get("/health")
        assert (status, body["error"]["code"], body["error"]["message"]) == (503, 503, "Loading model")
        for answer in (await at.get("/readyz"), await at.get("/v1/models"), await at.post("/v1/completions", BODY)):
            assert (answer[0], answer[1]["error"]["code"]) == (503, "loading")
        async with at.client.get("/readyz") as response:
            assert int(response.headers["Retry-After"]) >= 1
        async with at.client.get("/metrics") as response:
            assert response.status == 200


async def test_ready() -> None:
    """llama-server's scripts look for {"status": "ok"}."""
    async with serving(FakeEngine()) as at:
        assert await at.get("/health") == (200, {"status": "ok"})
        assert (await at.get("/readyz"))[0] == 200


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (EngineState.DRAINING, "draining"),
        (EngineState.STOPPED, "draining"),
        (EngineState.FAILED, "failed"),
        (EngineState.STARTING, "loading"),
    ],
)
async def test_not_ready_follows_the_engine(state: EngineState, code: str) -> None:
    """Readiness is the engine's state; the process stays alive in each of them."""
    async with serving(FakeEngine()) as at:
        at.engine.state = state
        status, body = await at.get("/readyz")
        assert (status, body["error"]["code"]) == (503, code)
        assert (await at.get("/health"))[0] == 503
        assert (await at.get("/livez"))[0] == 200


async def test_draining_refuses_before_the_engine_does() -> None:
    """From SIGTERM on nothing new is taken, while what runs goes on."""
    async with serving(FakeEngine()) as at:
        at.door.drain()
        status, body = await at.post("/v1/completions", BODY)
        assert (status, body["error"]["code"]) == (503, "draining")


async def test_stalled() -> None:
    """No step for long while there is work: not ready. Idle for long: ready."""
    now = 0.0
    async with serving(FakeEngine(), clock=lambda: now) as at:
        now = 10_000.0
        at.engine.stats = lambda: _stats(at.engine, running=0, waiting=0)  # type: ignore[method-assign]
        assert (await at.get("/readyz"))[0] == 200
        at.engine.stats = lambda: _stats(at.engine, running=1, waiting=0)  # type: ignore[method-assign]
        status, body = await at.get("/readyz")
        assert (status, body["error"]["code"]) == (503, "stalled")


def _stats(engine: FakeEngine, running: int, waiting: int) -> EngineStats:
    return replace(FakeEngine.stats(engine), num_running=running, num_waiting=waiting)


async def _samples(text: str) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


async def test_metrics() -> None:
    """Histograms count what happened, the engine's numbers are published under the names that dashboards know."""
    async with serving(FakeEngine(saying("abc"), cached=lambda request: 4)) as at:
        await at.post("/v1/completions", BODY)
        await at.post("/v1/completions", {})
        async with at.client.get("/metrics") as response:
            assert response.headers["Content-Type"].startswith("text/plain")
            seen = await _samples(await response.text())
        async with at.client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}) as response:
            assert response.headers["Content-Type"].startswith("application/openmetrics-text")
            assert (await response.text()).endswith("# EOF\n")
    expected = {
        "headrace_time_to_first_token_seconds_count": 1,
        "headrace_inter_token_latency_seconds_count": 2,
        "headrace_e2e_request_latency_seconds_sum": 1.75,
        "headrace_request_queue_time_seconds_sum": 0.25,
        "headrace_request_prefill_time_seconds_sum": 0.5,
        "headrace_request_decode_time_seconds_sum": 1.0,
        "headrace_snapshot_rewind_tokens_sum": 1,
        "headrace_reprocessed_tokens_total{reason=no_snapshot}": len("secretword") - 4,
        "headrace_http_requests_total{key=,route=/v1/completions,status=200}": 1,
        "headrace_http_requests_total{key=,route=/v1/completions,status=400}": 1,
        "headrace_readiness{state=ready}": 1,
        "headrace_readiness{state=loading}": 0,
        "headrace_num_requests_running": 0,
        "headrace_num_requests_waiting": 3,
        "headrace_kv_cache_usage_perc": 0.2,
        "headrace_prompt_tokens_total": 100,
        "headrace_prompt_tokens_cached_total": 60,
        "headrace_generation_tokens_total": 42,
        "headrace_snapshot_created_total": 7,
        "headrace_snapshot_restored_total": 5 + 3,  # from the device, and from the host
        "headrace_snapshot_evicted_total": 4,
        "headrace_snapshot_ring_used": 3,
        "headrace_snapshot_ring_capacity": 8,
        "headrace_host_kv_pages_used": 5,
        "headrace_host_snapshots_used": 4,
        "headrace_host_tier_capacity_bytes": 20 * 1000 + 6 * 100,
        "headrace_host_tier_used_bytes": 5 * 1000 + 4 * 100,
        "headrace_host_tier_resumes_total": 2,
        "headrace_host_tier_stored_bytes_total": 9 * 1000 + 5 * 100,
        "headrace_host_tier_loaded_bytes_total": 8 * 1000 + 3 * 100,
        "headrace_request_success_total{finished_reason=stop}": 0,
        "headrace_cache_resumes_total{tier=host}": 1,
        "headrace_cache_resumes_total{tier=disk}": 0,
        "headrace_reused_tokens_total{tier=host}": 4,
        "headrace_captures_published_total{kind=join}": 7,
        "headrace_captures_hit_total{kind=join}": 6,
        "headrace_captures_evicted_total{kind=system_end}": 4,
        "headrace_disk_tier_writable": None,  # without a cache on disk
    }
    assert {name: seen.get(name) for name in expected} == expected


async def test_metrics_of_the_disk() -> None:
    """Of a disk that has turned itself off."""
    done = DiskCounters(
        pages_written=3, states_written=2, bytes_written=500, pages_read=30, states_read=20, bytes_read=50, damaged=1
    )
    store = DiskStats(pages=7, states=5, used_bytes=400, budget=1000, writable=False, counters=done)
    engine = FakeEngine()
    engine.disk = DiskTierStats(store, DiskTierCounters(fetches=9, fetched_tokens=90, given_up=8, gone=4), waiting=6, fetching=2)
    async with serving(engine) as at, at.client.get("/metrics") as response:
        seen = await _samples(await response.text())
    found = {name.removeprefix("headrace_disk_tier_"): seen[name] for name in seen if "disk_tier" in name}
    assert found == {
        "used_bytes": 400, "capacity_bytes": 1000, "writable": 0, "waiting": 6, "fetching": 2,
        "records{kind=page}": 7, "records{kind=state}": 5, "written_total{kind=page}": 3, "written_total{kind=state}": 2,
        "read_total{kind=page}": 30, "read_total{kind=state}": 20, "stored_bytes_total": 500, "loaded_bytes_total": 50,
        "damaged_total": 1, "evicted_total": 0, "moved_total": 0, "fetches_total": 9, "fetched_tokens_total": 90,
        "given_up_total": 8, "gone_total": 4,
    }  # fmt: skip


async def test_labels_stay_few() -> None:
    """A scanner that tries a thousand paths makes one time series, not a thousand."""
    async with serving(FakeEngine()) as at:
        for number in range(20):
            await at.get(f"/no/{number}")
            await at.get(f"/v1/models/{number}")
        async with at.client.get("/metrics") as response:
            text = await response.text()
    assert len(re.findall(r"^headrace_http_requests_total\{", text, re.MULTILINE)) == 2


async def test_one_line_per_request() -> None:
    """Counts, times and the reason for what was evaluated; no text of anybody."""
    async with serving(FakeEngine(saying("answerword"), cached=lambda request: 4)) as at:
        await at.post("/v1/completions", BODY, headers={"X-Request-Id": "abc"})
        await at.get("/health")
        lines = [line for line in at.log_lines() if line["level"] == "info"]
    (line,) = lines
    assert line | {"ms": 0, "id": ""} == {
        "event": "request", "level": "info", "request_id": "abc", "method": "POST", "path": "/v1/completions", "status": 200,
        "ms": 0, "id": "", "stream": False, "n": 1, "temperature": 1.0, "seed": 5, "max_tokens": 3, "finish": "length",
        "prompt_tokens": 10, "cached_tokens": 4, "generated_tokens": 3, "queue_ms": 250.0, "ttft_ms": 750.0, "tpot_ms": 500.0,
        "matched_tokens": 3, "resumed_at": 2, "why": "no_snapshot", "tier": "host", "differs_at": 3,
    }  # fmt: skip
    assert "word" not in at.log.getvalue()
    assert "tic" not in at.log.getvalue()


@pytest.mark.parametrize(("said", "intervals"), [("ab", 2), ("abcdef", 2), ("a", 1), ("", 0)])
async def test_time_per_token_counts_intervals(said: str, intervals: int) -> None:
    """Between tokens that were sampled: of three at most, a stop token included, which is no part of the answer."""
    async with serving(FakeEngine(saying(said))) as at:
        await at.post("/v1/completions", BODY)
        (line,) = at.log_lines()
    assert line.get("tpot_ms") == (1000.0 / intervals if intervals else None)


async def test_failed_stream_is_in_the_line() -> None:
    """A stream's status is 200 when it fails; the line says what happened, and gives no time to a token that never came."""
    async with serving(FakeEngine()) as at:
        stream = asyncio.create_task(at.events("/v1/completions", BODY))
        (await at.engine.submitted.get()).end(FinishReason.ERROR, "not finite")
        await stream
        (line,) = at.log_lines()
    assert (line["status"], line["finish"], line["error"]) == (200, "error", "not finite")
    assert (line["generated_tokens"], line.get("ttft_ms")) == (0, None)
