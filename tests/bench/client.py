"""What the benchmarks have in common: a stream of one answer with its times, percentiles, and the line that names the machine."""

import os
import platform
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from svc.cli.client import events

MODEL = Path(__file__).parent.parent / "data" / "gguf" / "tiny-qwen35moe-Q4_K_M.gguf"


@dataclass(slots=True)
class Times:
    """Of one streamed answer, in seconds."""

    first_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)  # between events with text or tokens
    cached_tokens: int = 0


def prompt(length: int, seed: int) -> list[int]:
    """Made-up token ids, none of which is a control token; different from the first on for every length and seed."""
    return random.Random(f"{length} {seed}").choices(range(3, 2000), k=length)


async def stream(session: aiohttp.ClientSession, tokens: Sequence[int], max_tokens: int) -> Times:
    """One answer from /v1/completions, never ending early."""
    body = {
        "prompt": list(tokens),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    times = Times()
    began = last = time.perf_counter()
    async with session.post("/v1/completions", json=body) as response:
        response.raise_for_status()
        async for event in events(response.content.iter_any()):
            now = time.perf_counter()
            if event.get("usage"):
                times.cached_tokens = event["usage"]["prompt_tokens_details"]["cached_tokens"]
            elif not times.first_s:
                times.first_s = now - began
            else:
                times.gaps_s.append(now - last)
            last = now
    return times


def machine() -> str:
    cores = len(os.sched_getaffinity(0))
    return f"{platform.machine()}, {cores} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}"


def spread_ms(values_s: Sequence[float]) -> str:
    """Median, 99th percentile and largest, as snapshots of a Markdown row, in milliseconds."""
    ordered = sorted(values_s)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return f"{1e3 * statistics.median(ordered):.2f} | {1e3 * p99:.2f} | {1e3 * ordered[-1]:.2f}"
