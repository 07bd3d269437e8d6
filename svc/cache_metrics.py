"""The cache by kind of capture and by tier, and the cache on disk: a part of `svc.metrics`."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from svc.memory.placement import WantedKind
from svc.slots.disk_tier import DiskTierStats
from svc.slots.events import Finished
from svc.slots.stats import EngineStats
from svc.slots.usage_report import TIERS

PREFIX = "headrace_"


class TierCounters:
    """What ended answers resumed from."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Answers that resumed from what the cache had, by where that was when they came"
        self._resumes = Counter(PREFIX + "cache_resumes", text, ("tier",), registry=registry)
        text = "Prompt tokens that were not evaluated, by where their state was when the request came"
        self._reused = Counter(PREFIX + "reused_tokens", text, ("tier",), registry=registry)
        for tier in TIERS:  # all series from the start, so that the first is a change
            self._resumes.labels(tier)
            self._reused.labels(tier)

    def finished(self, finished: Finished) -> None:
        tier = finished.cache.tier
        if tier:
            self._resumes.labels(tier).inc()
            self._reused.labels(tier).inc(finished.usage.cached_tokens)


class CacheCollector(Collector):
    """Read at each scrape."""

    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        counters = stats.cache.counters
        yield _by_kind("captures_published", "States kept, by why they were captured", counters.published)
        yield _by_kind("captures_hit", "Requests that resumed at a state, by why that was captured", counters.resumed)
        yield _by_kind("captures_evicted", "States evicted, by why they were captured", counters.evicted)
        if stats.pins is not None:
            yield GaugeMetricFamily(PREFIX + "pins", "Prefixes that the operator has pinned", stats.pins.num_pins)
            yield GaugeMetricFamily(PREFIX + "pins_bytes", "Bytes of their snapshots and pages", stats.pins.used_bytes)
            yield GaugeMetricFamily(PREFIX + "pins_capacity_bytes", "Bytes that they may have", stats.pins.budget_bytes)
            text = "Pins that were given up because a request needed their memory"
            yield CounterMetricFamily(PREFIX + "pins_given_up", text, stats.pins.given_up)
        if stats.disk is not None:
            yield from _disk(stats.disk)


def _by_kind(name: str, text: str, counts: Mapping[WantedKind, int]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=["kind"])
    for kind, count in counts.items():
        family.add_metric([kind.name.lower()], count)
    return family


def _disk(disk: DiskTierStats) -> Iterator[Metric]:
    """Nothing of this is published without a cache on disk."""
    store, tier, done = disk.store, disk.counters, disk.store.counters
    levels = {
        "disk_tier_used_bytes": ("Bytes of the files of the cache on disk", store.used_bytes),
        "disk_tier_capacity_bytes": ("Bytes that they may have", store.budget),
        "disk_tier_writable": ("1 while the cache on disk is written, 0 once its disk was full or failed", store.writable),
        "disk_tier_waiting": ("States that are still to be written to the disk", disk.waiting),
        "disk_tier_fetching": ("Requests that wait for the disk", disk.fetching),
    }
    for name, (text, value) in levels.items():
        yield GaugeMetricFamily(PREFIX + name, text, value)
    held = GaugeMetricFamily(PREFIX + "disk_tier_records", "Records in the cache on disk", labels=["kind"])
    written = CounterMetricFamily(PREFIX + "disk_tier_written", "Records written to the cache on disk", labels=["kind"])
    read = CounterMetricFamily(PREFIX + "disk_tier_read", "Records read from the cache on disk", labels=["kind"])
    for family, pages, states in (
        (held, store.pages, store.states),
        (written, done.pages_written, done.states_written),
        (read, done.pages_read, done.states_read),
    ):
        family.add_metric(["page"], pages)
        family.add_metric(["state"], states)
        yield family
    counts = {
        "disk_tier_stored_bytes": ("Bytes written to the cache on disk", done.bytes_written),
        "disk_tier_loaded_bytes": ("Bytes read from the cache on disk", done.bytes_read),
        "disk_tier_damaged": ("Records dropped because they could not be read", done.damaged),
        "disk_tier_evicted": ("Records that left the cache on disk for want of space", done.evicted),
        "disk_tier_moved": ("Records written anew because their file had to go", done.moved),
        "disk_tier_fetches": ("States that were brought from the disk", tier.fetches),
        "disk_tier_fetched_tokens": ("Tokens before the states that were brought from the disk", tier.fetched_tokens),
        "disk_tier_given_up": ("Readings that took too long, or whose memory was needed", tier.given_up),
        "disk_tier_gone": ("States that left the memory before they were written", tier.gone),
    }
    for name, (text, value) in counts.items():
        yield CounterMetricFamily(PREFIX + name, text, value)
