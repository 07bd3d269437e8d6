"""A server of the bench on uvicorn and starlette that streams ready-made chunks: nothing is scheduled, tokenized or encoded.

What it costs is what that stack alone costs. Needs `pip install starlette uvicorn httptools uvloop`. Its output is as of server.py.
"""

import argparse
import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator

import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

CHUNK = {
    "id": "chatcmpl-00000000000000000000000000000000", "created": 0, "model": "null", "system_fingerprint": "null",
    "choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": None, "logprobs": None}],
    "object": "chat.completion.chunk",
}  # fmt: skip
EVENT = b"data: " + json.dumps(CHUNK, separators=(",", ":")).encode() + b"\n\n"


class Steps:
    """Lets all streams have a token as soon as all of them want one, again and again."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._waiters: list[asyncio.Future[None]] = []
        self._num_steps = 0
        self._began = (0.0, 0.0)

    async def stream(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        while True:
            waiter = loop.create_future()
            self._waiters.append(waiter)
            if len(self._waiters) == self._arguments.streams:
                loop.call_later(self._arguments.step_ms / 1000, self._step)
            await waiter
            yield EVENT

    def _step(self) -> None:
        clock = time.pthread_getcpuclockid(threading.get_ident())
        now = time.clock_gettime(clock), time.perf_counter()
        warm_up = self._arguments.steps // 4
        if self._num_steps == warm_up:
            self._began = now
        if self._num_steps == self._arguments.steps:
            tokens = (self._num_steps - warm_up) * self._arguments.streams
            found = {"cpu_s": now[0] - self._began[0], "wall_s": now[1] - self._began[1], "tokens": tokens}
            print(json.dumps(found), flush=True)
        self._num_steps += 1
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.set_result(None)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--top", type=int)
    steps = Steps(parser.parse_args())

    async def answer(request: Request) -> StreamingResponse:
        await request.body()
        return StreamingResponse(steps.stream(), media_type="text/event-stream")

    async def serve() -> None:
        app = Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])
        server = uvicorn.Server(uvicorn.Config(app, loop="uvloop", http="httptools", log_level="error", lifespan="off"))
        with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
            print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
            await server.serve([listening])

    uvloop.run(serve())


if __name__ == "__main__":
    main()
