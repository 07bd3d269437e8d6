"""The server of the bench: everything real but the device, which knows every token at once. Prints its URL, then one line of
JSON: the processor time of the event loop's thread per token while all streams run.

Run as a file with PYTHONPATH set to its tree.
"""

import argparse
import asyncio
import json
import random
import threading
import time
import traceback

import uvloop

from svc.app import spare_the_collector
from svc.compute.backend import Completed, Sampled, StepBatch, StepResult
from svc.compute.worker import ComputeWorker
from svc.gguf.gguf_file import GgufFile
from svc.http.server import HttpServer
from svc.http.service import Door, ModelInfo, Service
from svc.http.text.chat_template import ChatTemplate
from svc.http.text.grammar.compiler import GrammarCompiler
from svc.http.text.tokenizer import Tokenizer
from svc.log import configure_logging
from svc.memory.layout import MemoryLayout
from svc.memory.plan import MemoryPlan
from svc.memory.sequence_cache import SequenceCache
from svc.metrics import Metrics
from svc.slots.budget import ChunkBudget
from svc.slots.engine import Engine
from svc.slots.scheduler import Scheduler

LAYOUT = MemoryLayout(
    hidden_size=8, num_attention_layers=1, num_kv_heads=1, head_dim=8, num_delta_layers=1, num_value_heads=1, key_dim=8,
    value_dim=8, conv_channels=24, conv_rows=3, page_tokens=64,
)  # fmt: skip
PAGES_EACH = 64
TICK_S = 0.002


class NullBackend:
    """Samples words at random after `step_s` of sleep. Prints what the thread that made it used in the last three quarters of
    `num_steps` steps, of those in which every stream gets a token."""

    name = "null"

    def __init__(self, plan: MemoryPlan, words: list[int], num_streams: int, step_s: float, num_steps: int, num_top: int) -> None:
        self.plan = plan
        self.max_step_tokens = 4096
        self._words = words
        self._num_streams, self._step_s, self._num_steps = num_streams, step_s, num_steps
        self._top = tuple((token, -1.5) for token in words[:num_top])
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._full_steps = 0
        self._began = (0.0, 0.0)
        self._random = random.Random(0)
        self._longest_gap_s = 0.0
        self._last_turn = time.perf_counter()

    def submit(self, batch: StepBatch) -> Completed:
        self._note(len(batch.samples))
        if self._step_s:
            time.sleep(self._step_s)
        words = self._random.choices(self._words, k=len(batch.samples))
        samples = tuple(Sampled(word, -1.0, self._top) for word in words)
        captured = tuple(save.snapshot_id for save in batch.saves) + tuple(capture.snapshot_id for capture in batch.captures)
        return Completed(StepResult(samples, captured, max(self._step_s, 0.001)))

    def run(self, batch: StepBatch) -> StepResult:
        return self.submit(batch).result()

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Notes the longest time between two turns of the loop, as a timer sees it, from the end of the warm-up on."""
        now = time.perf_counter()
        if self._full_steps > self._num_steps // 4:
            self._longest_gap_s = max(self._longest_gap_s, now - self._last_turn - TICK_S)
        self._last_turn = now
        loop.call_later(TICK_S, self.watch, loop)

    def _note(self, num_samples: int) -> None:
        if num_samples < self._num_streams:
            return
        now = time.clock_gettime(self._clock), time.perf_counter()
        warm_up = self._num_steps // 4
        if self._full_steps == warm_up:
            self._began = now
        if self._full_steps == self._num_steps:
            cpu_s, wall_s = now[0] - self._began[0], now[1] - self._began[1]
            tokens = (self._num_steps - warm_up) * self._num_streams
            found = {"cpu_s": cpu_s, "wall_s": wall_s, "tokens": tokens, "longest_gap_ms": 1000 * self._longest_gap_s}
            print(json.dumps(found), flush=True)
        self._full_steps += 1

    def close(self) -> None:
        """Nothing to free."""


def is_word(tokenizer: Tokenizer, token: int) -> bool:
    return tokenizer.token_bytes(token).isascii() and not tokenizer.is_control(token)


async def serve(arguments: argparse.Namespace) -> None:
    metadata = GgufFile.open(arguments.model).metadata
    tokenizer = Tokenizer.from_metadata(metadata)
    words = [token for token in range(tokenizer.num_tokens) if is_word(tokenizer, token)]
    rows = arguments.streams
    plan = MemoryPlan(LAYOUT, num_pages=(rows + 1) * PAGES_EACH, num_rows=rows, num_snapshots=4 * rows)
    backend = NullBackend(plan, words, rows, arguments.step_ms / 1000, arguments.steps, arguments.top)
    cache = SequenceCache(plan)
    scheduler = Scheduler(cache, context_tokens=PAGES_EACH * 64, budget=ChunkBudget(4096, 1.0), max_queue=2 * rows)
    door, metrics = Door(), Metrics()
    worker = ComputeWorker(backend)
    engine = Engine(scheduler, worker, cache, on_finished=metrics.finished, on_error=traceback.print_exception)
    template = ChatTemplate(metadata["tokenizer.chat_template"], tokenizer)
    model = ModelInfo("null", 0, tokenizer.num_tokens, {})
    server = HttpServer(door, metrics, configure_logging("error"))
    print(await server.start("127.0.0.1", 0), flush=True)
    await engine.start()
    spare_the_collector()
    grammars = GrammarCompiler(tokenizer, tokenizer.num_tokens)
    door.open(Service(engine, tokenizer, template, model, grammars, "null", metrics, max_body_bytes=2**20))
    backend.watch(asyncio.get_running_loop())
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-ms", type=float, required=True)
    parser.add_argument("--top", type=int, default=0)
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(arguments))
