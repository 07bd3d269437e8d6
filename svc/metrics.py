"""All metrics, published for Prometheus. The engine's own counters are read at scrape time; this file keeps the histograms.

Names follow those of other inference servers, with `headrace_` in front, so that their dashboards need little change.
llama-server's are there as they are.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from svc.cache_metrics import CacheCollector, TierCounters
from svc.llama_metrics import LlamaCollector
from svc.slots.events import Finished
from svc.slots.request import Request
from svc.slots.stats import EngineStats

PREFIX = "headrace_"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_TOKENS = (0, 1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)


@dataclass(frozen=True, slots=True)
class HttpStats:
    """Connections and bodies, at one moment."""

    num_connections: int
    max_connections: int
    num_dropped: int
    num_refused: int
    body_bytes: int


class Metrics:
    """Owner of the process's registry. Made once, before the model is loaded; `follow` adds the engine's metrics later."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # they double the number of series
        self.registry = CollectorRegistry()
        self.start_s = time.time()
        self._llama: LlamaCollector | None = None  # None until an engine is followed
        ProcessCollector(registry=self.registry)  # process_*: memory, descriptors, start time
        self._first = self._seconds("time_to_first_token_seconds", "From the arrival of an HTTP request to its first token")
        self._next = TokenHistogram(PREFIX + "inter_token_latency_seconds", "Between two tokens of an answer", _SECONDS)
        self.registry.register(self._next)
        self.next_token = self._next.observe  # called for every token, with seconds
        self._whole = self._seconds("e2e_request_latency_seconds", "From the submission of an answer to its end")
        self._queue = self._seconds("request_queue_time_seconds", "Waiting for a slot")
        self._prefill = self._seconds("request_prefill_time_seconds", "From the slot to the first token")
        self._decode = self._seconds("request_decode_time_seconds", "From the first token to the end")
        self._rewind = Histogram(
            PREFIX + "snapshot_rewind_tokens",
            "Known prompt tokens that were evaluated again because no snapshot was at their end",
            buckets=_TOKENS,
            registry=self.registry,
        )
        self._reprocessed = self._counter("reprocessed_tokens", "Prompt tokens evaluated, by reason", ("reason",))
        self._tiers = TierCounters(self.registry)
        self._checks = self._counter("cache_checks", "Integrity checks of the cache in idle moments, by result", ("result",))
        for result in ("passed", "failed"):
            self._checks.labels(result)  # both series from the start, so that the first failure is a change
        text = "HTTP requests answered; 499: the client left first; key: the name of the API key"
        self._http = self._counter("http_requests", text, ("route", "status", "key"))
        self._refused = self._counter("requests_refused", "Requests that got a 429, by limit and API key", ("reason", "key"))
        self._refused.labels("queue_full", "")  # from the start, so that the first refusal is a change
        self._key_tokens = self._counter("key_tokens", "Tokens evaluated and generated, by API key", ("key", "kind"))

    def _seconds(self, name: str, text: str) -> Histogram:
        return Histogram(PREFIX + name, text, buckets=_SECONDS, registry=self.registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(PREFIX + name, text, labels, registry=self.registry)

    def first_token(self, seconds: float) -> None:
        self._first.observe(seconds)

    def finished(self, request: Request, finished: Finished) -> None:
        """Counts an ended answer: the engine's `on_finished`."""
        timing, usage, cache = finished.timing, finished.usage, finished.cache
        self._whole.observe(timing.queue_s + timing.prefill_s + timing.decode_s)
        self._queue.observe(timing.queue_s)
        self._prefill.observe(timing.prefill_s)
        self._decode.observe(timing.decode_s)
        self._rewind.observe(max(0, cache.matched_tokens - cache.resumed_at))
        if self._llama is not None:
            self._llama.finished(timing, usage)
        self._tiers.finished(finished)
        if cache.reason:  # it had a slot
            evaluated = usage.prompt_tokens - usage.cached_tokens
            self._reprocessed.labels(cache.reason).inc(evaluated)
            self._key_tokens.labels(request.tenant, "evaluated").inc(evaluated)
            self._key_tokens.labels(request.tenant, "generated").inc(usage.completion_tokens)

    def cache_checked(self, *, passed: bool) -> None:
        """Counts a run of the cache's integrity check."""
        self._checks.labels("passed" if passed else "failed").inc()

    def http_request(self, route: str, status: int, key: str) -> None:
        """Counts a response. `route` is the pattern, never the path, and `key` a name of the key file: labels must stay few."""
        self._http.labels(route, str(status), key).inc()

    def refused(self, reason: str, key: str) -> None:
        """Counts a 429. `reason` is the error's code: the queue, or a limit of the key."""
        self._refused.labels(reason, key).inc()

    def follow(self, stats: Callable[[], EngineStats]) -> None:
        """Publishes the engine's own numbers, read at each scrape."""
        self._llama = LlamaCollector(stats)
        self.registry.register(_EngineCollector(stats))
        self.registry.register(self._llama)
        self.registry.register(CacheCollector(stats))

    def follow_readiness(self, readiness: Callable[[], str], states: Sequence[str]) -> None:
        """Publishes which of `states` the server is in. Works before the model is loaded."""
        self.registry.register(_ReadinessCollector(readiness, states))

    def follow_http(self, stats: Callable[[], HttpStats]) -> None:
        """Publishes what the HTTP server holds for its clients."""
        self.registry.register(_HttpCollector(stats))

    def follow_log(self, dropped_lines: Callable[[], int]) -> None:
        """Publishes the number of log lines that were dropped."""
        self.registry.register(_LogCollector(dropped_lines))

    def render(self, accept: str) -> tuple[bytes, str]:
        """(body, content type) for a scraper's Accept header."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


class TokenHistogram(Collector):
    """A histogram that is cheap enough for every token: the client library's takes a lock and several times as long."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name, self._text, self._bounds = name, text, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Called on the event loop, as `collect` is."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[Metric]:
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        yield HistogramMetricFamily(self._name, self._text, list(zip(names, accumulate(self._counts), strict=True)), self._sum)


class _ReadinessCollector(Collector):
    """One series per state, 1 for the present one: alerts can name a state that has not occurred yet."""

    def __init__(self, readiness: Callable[[], str], states: Sequence[str]) -> None:
        self._readiness, self._states = readiness, states

    def collect(self) -> Iterator[Metric]:
        present = self._readiness()
        family = GaugeMetricFamily(PREFIX + "readiness", "1 for the state that /readyz reports, 0 for the others", labels=["state"])
        for state in self._states:
            family.add_metric([state], state == present)
        yield family


class _HttpCollector(Collector):
    def __init__(self, stats: Callable[[], HttpStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        levels = {
            "http_connections": ("Open connections", stats.num_connections),
            "http_connections_limit": ("Open connections that there may be", stats.max_connections),
            "http_body_bytes": ("Bytes of large request bodies in memory", stats.body_bytes),
        }
        for name, (text, value) in levels.items():
            yield GaugeMetricFamily(PREFIX + name, text, value)
        counts = {
            "http_connections_dropped": ("Idle connections closed to make place for others", stats.num_dropped),
            "http_connections_refused": ("Connections closed at once because all others were busy", stats.num_refused),
        }
        for name, (text, value) in counts.items():
            yield CounterMetricFamily(PREFIX + name, text, value)


class _LogCollector(Collector):
    def __init__(self, dropped_lines: Callable[[], int]) -> None:
        self._dropped_lines = dropped_lines

    def collect(self) -> Iterator[Metric]:
        text = "Log lines dropped because the reader of stderr stalled"
        yield CounterMetricFamily(PREFIX + "log_lines_dropped", text, self._dropped_lines())


class _EngineCollector(Collector):
    """The engine's and the cache's counters and levels as metric families."""

    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        yield from _gauges(stats)
        yield from _counters(stats)
        reasons = CounterMetricFamily(PREFIX + "request_success", "Answers ended, by how", labels=["finished_reason"])
        for reason, count in stats.counters.finished.items():
            reasons.add_metric([reason.value], count)
        yield reasons


def _gauges(stats: EngineStats) -> Iterator[Metric]:
    cache = stats.cache
    used_pages = cache.num_pages - cache.free_pages
    levels = {
        "num_requests_running": ("Sequences with a slot", stats.num_running),
        "num_requests_waiting": ("Sequences waiting for a slot", stats.num_waiting),
        "num_slots": ("Sequences that can be live at once", stats.num_slots),
        "kv_cache_usage_perc": ("Share of KV pages held by live sequences, 0 to 1", cache.pinned_pages / max(1, cache.num_pages)),
        "kv_pages_capacity": ("KV pages", cache.num_pages),
        "kv_pages_used": ("KV pages held by live sequences or kept for reuse", used_pages),
        "kv_pages_held": ("KV pages held by live sequences", cache.pinned_pages),
        "snapshot_ring_capacity": ("Snapshots that the device can hold", cache.num_snapshots),
        "snapshot_ring_used": ("Snapshots that the device holds", cache.num_snapshots - cache.free_snapshots),
        "snapshot_ring_stranded": ("Snapshots whose pages are gone", cache.stranded_snapshots),
        "snapshot_ring_pinned": ("Snapshots that may not be evicted at present", cache.pinned_snapshots),
        "host_kv_pages_capacity": ("KV pages that the host tier holds", cache.num_host_pages),
        "host_kv_pages_used": ("KV pages in the host tier", cache.num_host_pages - cache.free_host_pages),
        "host_snapshots_capacity": ("Snapshots that the host tier holds", cache.num_host_snapshots),
        "host_snapshots_used": ("Snapshots in the host tier", cache.num_host_snapshots - cache.free_host_snapshots),
        "host_tier_capacity_bytes": ("Bytes of the host tier", cache.bytes_of(cache.num_host_pages, cache.num_host_snapshots)),
        "host_tier_used_bytes": (
            "Bytes in use in the host tier",
            cache.bytes_of(cache.num_host_pages - cache.free_host_pages, cache.num_host_snapshots - cache.free_host_snapshots),
        ),
    }
    for name, (text, value) in levels.items():
        yield GaugeMetricFamily(PREFIX + name, text, value)


def _counters(stats: EngineStats) -> Iterator[Metric]:
    engine, memory, bytes_of = stats.counters, stats.cache.counters, stats.cache.bytes_of
    counts = {
        "prompt_tokens": ("Prompt tokens of ended answers", engine.prompt_tokens),
        "prompt_tokens_cached": ("Prompt tokens of ended answers that were not evaluated", engine.cached_tokens),
        "prefix_cache_queries": ("Prompt tokens looked up in the prefix cache", engine.prompt_tokens),
        "prefix_cache_hits": ("Prompt tokens found in the prefix cache", engine.cached_tokens),
        "generation_tokens": ("Tokens generated", engine.generated_tokens),
        "forced_tokens": ("Tokens generated that a grammar left no choice of, and that no step sampled", engine.forced_tokens),
        "prefill_tokens": ("Prompt tokens evaluated", engine.prefill_tokens),
        "decode_tokens": ("Generated tokens evaluated", engine.decode_tokens),
        "draft_tokens": ("Tokens proposed for an answer and evaluated to check them", engine.drafts),
        "draft_tokens_accepted": ("Proposed tokens that were right", engine.accepted_drafts),
        "steps": ("Steps of the device", engine.steps),
        "step_seconds": ("Seconds of device work", engine.step_s),
        "num_preemptions": ("Sequences that lost their slot for lack of pages", engine.preemptions),
        "snapshot_created": ("Snapshots published", memory.num_published),
        "snapshot_restored": ("Snapshots copied into a slot", engine.restores + memory.rows_moved_in),
        "snapshot_evicted": ("Snapshots evicted", memory.num_evicted_snapshots),
        "snapshot_skipped": ("Snapshots not taken because all in use scored higher", memory.num_skipped),
        "kv_pages_evicted": ("KV pages evicted", memory.evicted_pages),
        "host_tier_resumes": ("Sequences that resumed from the host tier", memory.num_host_resumes),
        "host_tier_stored_bytes": (
            "Bytes moved from the device to the host tier",
            bytes_of(memory.pages_moved_out, memory.snapshots_moved_out),
        ),
        "host_tier_loaded_bytes": (
            "Bytes moved from the host tier to the device",
            bytes_of(memory.pages_moved_in, memory.rows_moved_in),
        ),
    }
    for name, (text, value) in counts.items():
        yield CounterMetricFamily(PREFIX + name, text, value)
