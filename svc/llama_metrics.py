"""llama-server's metrics under its own names, for dashboards that are made for it: a part of `svc.metrics`.

The same numbers as elsewhere in /metrics. Those of a draft model are left out.
"""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from svc.slots.events import Timing, Usage
from svc.slots.stats import EngineStats

PREFIX = "llamacpp:"


class LlamaCollector(Collector):
    """Sums over ended answers, and the engine's own numbers, read at each scrape."""

    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._stats = stats
        self._evaluated = self._cached = self._generated = self._intervals = self._longest = 0
        self._prefill_s = self._decode_s = 0.0

    def finished(self, timing: Timing, usage: Usage) -> None:
        """An answer has ended."""
        self._evaluated += usage.prompt_tokens - usage.cached_tokens
        self._cached += usage.cached_tokens
        self._generated += usage.completion_tokens
        self._intervals += max(0, usage.completion_tokens - 1)
        self._longest = max(self._longest, usage.prompt_tokens + usage.completion_tokens)
        self._prefill_s += timing.prefill_s
        self._decode_s += timing.decode_s

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        counts = {
            "prompt_tokens": ("Prompt tokens evaluated", self._evaluated),
            "prompt_tokens_cached": ("Prompt tokens that were not evaluated", self._cached),
            "prompt_seconds": ("Seconds that prompts took", self._prefill_s),
            "tokens_predicted": ("Tokens generated", self._generated),
            "tokens_predicted_seconds": ("Seconds from the first token of an answer to its last", self._decode_s),
            "n_decode": ("Steps of the device", stats.counters.steps),
        }
        for name, (text, value) in counts.items():
            yield CounterMetricFamily(PREFIX + name, text, value)
        levels = {
            "prompt_tokens_seconds": (
                "Prompt tokens evaluated in a second of one prompt, since start",
                _rate(self._evaluated, self._prefill_s),
            ),
            "predicted_tokens_seconds": (
                "Tokens generated in a second of one answer, since start",
                _rate(self._intervals, self._decode_s),
            ),
            "requests_processing": ("Sequences with a slot", stats.num_running),
            "requests_deferred": ("Sequences waiting for a slot", stats.num_waiting),
            "n_tokens_max": ("Tokens of the longest prompt with its answer", self._longest),
        }
        for name, (text, value) in levels.items():
            yield GaugeMetricFamily(PREFIX + name, text, value)


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds else 0.0
