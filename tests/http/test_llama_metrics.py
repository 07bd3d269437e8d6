"""llama-server's metrics in /metrics: what its users' dashboards read."""

import time

from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.fake_engine import FakeEngine, saying
from tests.http.harness import Harness, serving

# Without those of a draft model, and the number of busy slots in a step.
COUNTERS = ("prompt_tokens", "prompt_tokens_cached", "prompt_seconds", "tokens_predicted", "tokens_predicted_seconds", "n_decode")
GAUGES = ("prompt_tokens_seconds", "predicted_tokens_seconds", "requests_processing", "requests_deferred", "n_tokens_max")


async def _scraped(at: Harness) -> dict[str, float]:
    async with at.client.get("/metrics") as response:
        text = await response.text()
        assert 0 <= time.time() - int(response.headers["Process-Start-Time-Unix"]) < 100
    families = [family for family in text_string_to_metric_families(text) if family.name.startswith("llamacpp:")]
    types = {family.name.removeprefix("llamacpp:"): family.type for family in families}
    assert types == dict.fromkeys(COUNTERS, "counter") | dict.fromkeys(GAUGES, "gauge")
    return {sample.name.removeprefix("llamacpp:"): sample.value for family in families for sample in family.samples}


async def test_sums_are_those_of_the_answers() -> None:
    """Counts and seconds are the sums of the timings in the answers, 0 before the first one; the engine's are its own."""
    async with serving(FakeEngine(saying("abc"), cached=lambda request: 3)) as at:
        nothing = await _scraped(at)
        timings = [(await at.post("/completion", {"prompt": prompt}))[1]["timings"] for prompt in ("hello", "hello, hello")]
        values = await _scraped(at)
    engines = FakeEngine().stats()
    theirs = {"requests_deferred": engines.num_waiting, "n_decode_total": engines.counters.steps}
    assert min(theirs.values()) > 0
    assert {name: value for name, value in nothing.items() if value} == theirs
    assert values["prompt_tokens_total"] == sum(each["prompt_n"] for each in timings) == 2 + 9
    assert values["prompt_tokens_cached_total"] == sum(each["cache_n"] for each in timings) == 6
    assert values["tokens_predicted_total"] == sum(each["predicted_n"] for each in timings) == 6
    assert values["prompt_seconds_total"] * 1000 == sum(each["prompt_ms"] for each in timings)
    assert values["prompt_tokens_seconds"] == values["prompt_tokens_total"] / values["prompt_seconds_total"]
    assert values["predicted_tokens_seconds"] == 4 / values["tokens_predicted_seconds_total"]
    assert (values["requests_processing"], values["n_tokens_max"]) == (0, 12 + 3)
