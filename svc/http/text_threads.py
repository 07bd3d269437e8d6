"""Threads for the text work of large requests: decoding, rendering and tokenizing them would stop every stream.

Owner of the threads: the HttpServer.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from aiohttp import web

INLINE_BYTES = 2048  # up to here the work takes about a millisecond, little more than handing it over
LONG_BYTES = 2**18
ORDINARY_THREADS = 2
LONG_THREADS = 3

P = ParamSpec("P")
R = TypeVar("R")


class TextThreads:
    """Some threads for long texts and some for the others, which need not wait behind them.

    Several, so that one text, which may take seconds, does not keep all others waiting; few, so that what they take in memory and
    processor time is bounded, whatever comes in at once.
    """

    def __init__(self) -> None:
        self._ordinary = ThreadPoolExecutor(ORDINARY_THREADS, thread_name_prefix="text")
        self._long = ThreadPoolExecutor(LONG_THREADS, thread_name_prefix="long text")

    async def run(self, num_bytes: int, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """`work(*args, **kwargs)`, where a text of that length belongs: at once when it is short.

        A caller that is cancelled takes its work along if that has not begun; what has begun ends by itself.
        """
        if num_bytes <= INLINE_BYTES:
            return work(*args, **kwargs)
        threads = self._long if num_bytes > LONG_BYTES else self._ordinary
        return await asyncio.wrap_future(threads.submit(work, *args, **kwargs))

    async def run_apart(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """`work` that takes more than a millisecond however short the text is."""
        return await asyncio.wrap_future(self._ordinary.submit(work, *args, **kwargs))

    def close(self) -> None:
        """Nothing begins any more. Does not wait for what has begun: the interpreter does, before it ends."""
        for threads in (self._ordinary, self._long):
            threads.shutdown(wait=False, cancel_futures=True)


TEXT_THREADS = web.AppKey("text_threads", TextThreads)
