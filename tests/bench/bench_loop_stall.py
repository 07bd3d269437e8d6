"""How long the event loop stands still: the gaps of a ticker that wants to run every millisecond, idle, beside streams, and
beside streams while a long prompt is evaluated.

What is above a millisecond in `idle` is the machine's own doing. The client is a thread of this process, so what the interpreter
lock costs between the two counts against the server.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable

import aiohttp

from svc.app import private_server, uvloop
from svc.config import Config
from svc.log import configure_logging
from tests.bench.client import MODEL, machine, prompt, spread_ms, stream

TICK_S = 0.001


async def tick(gaps_s: list[float]) -> None:
    last = time.perf_counter()
    while True:
        await asyncio.sleep(TICK_S)
        now = time.perf_counter()
        gaps_s.append(now - last)
        last = now


async def beside(work: Callable[[], Awaitable[object]]) -> list[float]:
    """The ticker's gaps while `work` is done."""
    gaps_s: list[float] = []
    ticker = asyncio.create_task(tick(gaps_s))
    await work()
    ticker.cancel()
    return gaps_s


async def load(url: str, key: str, num_streams: int, generate: int, long_prompt: int) -> list[float]:
    """The client: k streams, and with `long_prompt` one prompt that begins once all of them run -> their gaps."""
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(url, headers=headers) as session:
        streams = [asyncio.create_task(stream(session, prompt(16, number), generate)) for number in range(num_streams)]
        if long_prompt:
            await stream(session, prompt(long_prompt, 99), 1)
        return [gap for times in await asyncio.gather(*streams) for gap in times.gaps_s]


async def measure(arguments: argparse.Namespace) -> None:
    config = Config(model=arguments.model, threads=arguments.threads, ctx=arguments.long_prompt + 64, kv_bytes=2**28)
    async with private_server(config, configure_logging("error"), lambda done, total: None) as (url, key):
        print("| milliseconds | median | p99 | largest |\n|---|--:|--:|--:|")
        print(f"| ticks, idle | {spread_ms(await beside(lambda: asyncio.sleep(1.0)))} |")
        for name, long_prompt in (("streams", 0), (f"streams and a prompt of {arguments.long_prompt}", arguments.long_prompt)):
            found: list[float] = []

            async def work(long_prompt: int = long_prompt, found: list[float] = found) -> None:
                client = load(url, key, arguments.streams, arguments.generate, long_prompt)
                found += await asyncio.to_thread(asyncio.run, client)

            print(f"| ticks, {arguments.streams} {name} | {spread_ms(await beside(work))} |")
            print(f"| between tokens, {arguments.streams} {name} | {spread_ms(found)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(MODEL))
    parser.add_argument("--long-prompt", type=int, default=8000)
    parser.add_argument("--streams", type=int, default=2)
    parser.add_argument("--generate", type=int, default=200)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    print(f"{arguments.model}, {arguments.threads or 'all'} threads; {machine()}\n")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if uvloop else None) as runner:
        runner.run(measure(arguments))


if __name__ == "__main__":
    main()
