"""A real HttpServer on a loopback port with the real text side; only the engine behind it is a fake."""

import io
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import aiohttp
import structlog

from svc.http.api_keys import ApiKeys
from svc.http.server import HttpServer
from svc.http.service import AnswerSettings, Door, MaskHeaders, ModelInfo, Service
from svc.http.text.answer_format import NO_FORMAT, answer_format
from svc.http.text.chat_template import ChatTemplate
from svc.http.text.grammar.compiler import GrammarCompiler
from svc.metrics import Metrics
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.fake_text import VOCAB_SIZE, byte_tokenizer, chatml

TOKENIZER = byte_tokenizer()
TEMPLATE = chatml(TOKENIZER)
GRAMMARS = GrammarCompiler(TOKENIZER, VOCAB_SIZE)
_format_of = cache(answer_format)
_format_of(TEMPLATE)  # as when a model is loaded, not while a request is served
MODEL = "tiny/model"


@dataclass
class Harness:
    """What a test touches."""

    engine: FakeEngine
    door: Door
    metrics: Metrics
    server: HttpServer
    client: aiohttp.ClientSession
    url: str
    log: io.StringIO = field(default_factory=io.StringIO)

    async def post(self, path: str, body: Any, **kwargs: Any) -> tuple[int, Any]:
        """(status, decoded body) of a JSON request; `body` may be raw bytes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.client.post(path, data=data, **kwargs) as response:
            return response.status, await response.json()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.client.get(path) as response:
            return response.status, await response.json()

    async def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """All `data:` values of a stream, in order; the last is "[DONE]" when it ended well."""
        async with self.client.post(path, json={**body, "stream": True}) as response:
            assert response.status == 200, await response.text()
            return parse_sse(await response.read())

    def log_lines(self, event: str = "request") -> list[dict[str, Any]]:
        return [line for line in map(json.loads, self.log.getvalue().splitlines()) if line["event"] == event]


def parse_sse(raw: bytes) -> list[Any]:
    """The data of each event, JSON decoded; fails on anything that is neither an event nor a comment."""
    values = []
    assert raw.endswith(b"\n\n")
    for block in raw.decode().removesuffix("\n\n").split("\n\n"):
        if block.startswith(":"):
            continue
        assert block.startswith("data: "), block
        assert "\n" not in block, block
        data = block.removeprefix("data: ")
        values.append(data if data == "[DONE]" else json.loads(data))
    return values


@asynccontextmanager
async def serving(
    engine: FakeEngine,
    *,
    keep_alive_s: float = 30.0,
    strict_name: bool = False,
    aliases: tuple[str, ...] = (),
    tags: tuple[str, ...] = (),
    template: bool | ChatTemplate = True,
    loaded: bool = True,
    host: str = "127.0.0.1",
    max_body_bytes: int = 2**20,
    body_timeout_s: float = 60.0,
    max_connections: int = 1024,
    clock: Callable[[], float] = lambda: 0.0,
    keys: ApiKeys | None = None,
    cors_origins: Sequence[str] = (),
    show_slots: bool = True,
    show_prompts: bool = False,
    isolate_keys: bool = False,
    prefill_assistant: bool = False,
    answers: AnswerSettings | None = None,
    mask_headers: MaskHeaders = "messages",
    vocab_size: int = VOCAB_SIZE,
) -> AsyncIterator[Harness]:
    """`clock` is the door's, on which the fake engine's last progress is 0, and the limits'. `vocab_size` is the model's, padding
    included."""
    door, metrics, log = Door(clock), Metrics(), io.StringIO()
    server = HttpServer(
        door,
        metrics,
        _logger(log),
        max_connections=max_connections,
        body_timeout_s=body_timeout_s,
        keys=keys,
        cors_origins=cors_origins,
        clock=clock,
    )
    url = await server.start(host, 0)
    if loaded:
        engine.on_finished = metrics.finished
        metrics.follow(engine.stats)
        service = service_of(engine, metrics, keep_alive_s, strict_name, template)
        model = replace(service.model, vocab_size=vocab_size, aliases=aliases, tags=tags)
        settings: dict[str, Any] = {"show_slots": show_slots, "show_prompts": show_prompts, "prefill_assistant": prefill_assistant}
        settings |= {"isolate_keys": isolate_keys}
        settings |= {"max_body_bytes": max_body_bytes, "answers": answers or AnswerSettings(), "mask_headers": mask_headers}
        door.open(replace(service, model=model, **settings))
    try:
        async with aiohttp.ClientSession(url) as client:
            yield Harness(engine, door, metrics, server, client, url, log)
    finally:
        await server.stop()


def service_of(
    engine: FakeEngine,
    metrics: Metrics,
    keep_alive_s: float = 30.0,
    strict_name: bool = False,
    template: bool | ChatTemplate = True,
) -> Service:
    chosen = (TEMPLATE if template else None) if isinstance(template, bool) else template
    return Service(
        engine=engine,
        tokenizer=TOKENIZER,
        template=chosen,
        model=ModelInfo(MODEL, 1_700_000_000, VOCAB_SIZE, {"n_ctx_train": 4096}, strict_name, "/models/tiny.gguf"),
        grammars=GRAMMARS,
        answer_format=_format_of(chosen) if chosen else NO_FORMAT,
        fingerprint="headrace-test",
        metrics=metrics,
        max_body_bytes=2**20,
        keep_alive_s=keep_alive_s,
    )


def _logger(out: io.StringIO) -> Any:
    """JSON lines into `out`, without the process-wide logging setup."""
    processors = [structlog.stdlib.add_log_level, structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    return structlog.wrap_logger(
        structlog.PrintLogger(out), processors=processors, wrapper_class=structlog.make_filtering_bound_logger(10)
    )
