"""Over HTTP on a tiny model: time to the first token cold and known, and the time between tokens with k streams at once.

The server is a process of its own; so is this one, which both share the machine's cores.
"""

import argparse
import asyncio

import aiohttp

from tests.bench.client import MODEL, machine, prompt, spread_ms, stream
from tests.e2e.server_process import ServerProcess


async def first_token(session: aiohttp.ClientSession, length: int, rounds: int) -> None:
    """The same prompts twice: new, then known to the last token."""
    cold = [await stream(session, prompt(length, seed), 2) for seed in range(rounds)]
    known = [await stream(session, prompt(length, seed), 2) for seed in range(rounds)]
    assert [times.cached_tokens for times in cold] == [0] * rounds
    assert [times.cached_tokens for times in known] == [length] * rounds
    for name, found in (("cold", cold), ("known", known)):
        print(f"| first token, {length} prompt tokens {name} | {spread_ms([times.first_s for times in found])} |")


async def between_tokens(session: aiohttp.ClientSession, num_streams: int, max_tokens: int) -> None:
    streams = [stream(session, prompt(16, 1000 * num_streams + number), max_tokens) for number in range(num_streams)]
    gaps = [gap for times in await asyncio.gather(*streams) for gap in times.gaps_s]
    print(f"| between tokens, {num_streams} streams | {spread_ms(gaps)} |")


async def measure(url: str, arguments: argparse.Namespace) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, connector=connector) as session:
        await stream(session, prompt(64, -1), 8)  # connections and pages
        print("| milliseconds | median | p99 | largest |\n|---|--:|--:|--:|")
        for length in arguments.prompts:
            await first_token(session, length, arguments.rounds)
        for num_streams in arguments.streams:
            await between_tokens(session, num_streams, arguments.generate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(MODEL))
    parser.add_argument("--prompts", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    slots = str(max(arguments.streams))
    print(f"{arguments.model}, {slots} slots; {machine()}\n")
    with ServerProcess(arguments.model, "--max-slots", slots, "--log-level", "info") as server:
        asyncio.run(measure(server.url, arguments))


if __name__ == "__main__":
    main()
