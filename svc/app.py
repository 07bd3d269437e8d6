"""Builds the server from a `Config` and runs it: the one place where all packages meet.

The port is opened first, so that a port in use is reported at once and probes get an answer; the model is loaded on a thread.
"""

import asyncio
import gc
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

import numpy as np

from svc import free_memory
from svc.cache_files import check_folders, identity_of, open_store, slot_folder
from svc.compute.backend import Chunk, Sample, StepBatch
from svc.compute.sampling.params import SamplingParams
from svc.compute.worker import ComputeWorker
from svc.config import Config, service_manager
from svc.disk.records import Identity
from svc.disk.store import DiskStore
from svc.errors import ModelFileError
from svc.http.api_keys import ApiKeys
from svc.http.body import body_limit
from svc.http.server import HttpServer
from svc.http.service import AnswerSettings, Door, ModelInfo, Readiness, Service
from svc.http.text.grammar.compiler import GrammarCompiler
from svc.http.text.reasoning import REASONING_FIELDS, REASONING_FORMATS
from svc.lifecycle import KernelProgress, LoadInterruptedError, Notifier, Shutdown, load_progress
from svc.log import Logger, background_logging
from svc.memory.plan import MemoryPlan
from svc.memory.sequence_cache import SequenceCache
from svc.metrics import Metrics
from svc.model_loading import LoadedModel, Progress, load, model_name
from svc.operator_signals import OperatorSignals
from svc.slots.budget import ChunkBudget
from svc.slots.disk_tier import DiskTier
from svc.slots.engine import Engine
from svc.slots.idle_check import IdleCheck
from svc.slots.operator_pins import OperatorPins
from svc.slots.scheduler import Scheduler
from svc.slots.slot_files import SlotFiles
from svc.slots.speculator import Speculator

uvloop: ModuleType | None
try:
    import uvloop
except ImportError:  # not on every platform; asyncio's own loop does as well, more slowly
    uvloop = None

STOP_EXTENSION_S = 30.0  # asked of systemd beyond `drain_s`: for the running step and for closing
COLLECTOR_THRESHOLDS = (2_000, 20, 200)  # a few milliseconds each; a whole one after eight million objects
DISK_STOP_S = 10.0  # to write what is still to be written to the cache on disk
EXIT_INTERRUPTED = 128 + signal.SIGINT
WARM_UP_TOKENS = 256  # enough to use the kernels for many rows, even divided among hundreds of experts


def run_server(config: Config) -> int:
    """Serves until SIGTERM or SIGINT and returns the exit code. HeadraceError if a setting, file or port cannot be used.

    The code is 0, or 130 if Ctrl-C interrupted the load.
    """
    with (
        background_logging(config.log_level, config.log_format) as (logger, writer),
        asyncio.Runner(loop_factory=uvloop.new_event_loop if uvloop else None) as runner,
    ):
        return runner.run(serve(config, logger, lambda: writer.num_dropped))


async def serve(config: Config, logger: Logger, dropped_lines: Callable[[], int] = lambda: 0) -> int:
    """As `run_server`, on a running loop. `dropped_lines`: log lines lost so far, for the metrics."""
    manager = service_manager()
    check_folders(config)  # before the model is loaded, which takes long
    notifier, metrics, door = Notifier(manager.notify_socket), Metrics(), Door()
    metrics.follow_log(dropped_lines)
    keys = None if config.api_key_file is None else ApiKeys.load(config.api_key_file)
    server = HttpServer(
        door,
        metrics,
        logger,
        max_connections=config.max_connections,
        body_timeout_s=config.body_timeout_s,
        keys=keys,
        cors_origins=config.cors_origins,
    )
    with Shutdown() as shutdown, _operator(config, logger, door, shutdown, keys, dropped_lines).handled():
        url = await server.start(config.host, config.port)
        logger.info("listening", url=url)
        try:
            kernels = KernelProgress(logger, notifier, shutdown)
            loaded = await asyncio.to_thread(load, config, logger, load_progress(logger, notifier, shutdown), kernels)
            async with _running(config, logger, loaded, metrics) as engine:
                kernels.finish()
                spare_the_collector()
                free_memory.give_back()
                door.open(_service(config, loaded, engine, metrics))
                _announce(logger, notifier, url, loaded, config)
                async with _watchdog(notifier, manager.watchdog_s, door):
                    await shutdown.wait()
                    await _drain(config, logger, door, engine, notifier)
            logger.info("stopped")
        except LoadInterruptedError:
            logger.info("stopped", cause="interrupted while loading")
            return EXIT_INTERRUPTED if shutdown.cause is signal.SIGINT else 0
        finally:
            await server.stop()
    return 0


def _operator(
    config: Config, logger: Logger, door: Door, shutdown: Shutdown, keys: ApiKeys | None, dropped_lines: Callable[[], int]
) -> OperatorSignals:
    return OperatorSignals(logger, door, shutdown, keys=keys, key_file=config.api_key_file, dropped_lines=dropped_lines)


@asynccontextmanager
async def private_server(config: Config, logger: Logger, progress: Progress) -> AsyncIterator[tuple[str, str]]:
    """A server for this process alone, ready for requests: (URL on the loopback interface, a secret API key).

    It handles no signals and notifies no service manager; it ends when the context does. Raises what `load` raises.
    """
    metrics, door, key = Metrics(), Door(), secrets.token_urlsafe()
    server = HttpServer(door, metrics, logger, keys=ApiKeys([key]))
    url = await server.start("127.0.0.1", 0)
    try:
        loaded = await asyncio.to_thread(load, config, logger, progress)
        async with _running(config, logger, loaded, metrics) as engine:
            door.open(_service(config, loaded, engine, metrics))
            yield url, key
    finally:
        await server.stop()


@asynccontextmanager
async def _running(config: Config, logger: Logger, loaded: LoadedModel, metrics: Metrics) -> AsyncIterator[Engine]:
    """A warm engine on its compute thread. Leaving stops both."""
    slots = await asyncio.to_thread(slot_folder, config)
    identity = await asyncio.to_thread(identity_of, config, loaded)
    store = await asyncio.to_thread(open_store, config, loaded, identity, logger)
    worker = ComputeWorker(loaded.runner)
    engine, disk = _engine(config, loaded, worker, metrics, logger, identity, store, slots)
    try:
        await _warm_up(worker, loaded)
        await engine.start()
        if disk is not None:
            await disk.start()
        metrics.follow(engine.stats)
        yield engine
    finally:
        await engine.stop()
        if disk is not None:
            await disk.stop(DISK_STOP_S)
        await worker.close()


def spare_the_collector() -> None:
    """Excludes all present objects (modules, vocabulary) from garbage collection: scanning them stops every stream for 0.1 s.

    Whole collections become rare too: with hundreds of streams one takes 50 ms, and finds next to nothing. After `freeze` the
    interpreter believes that there are few old objects, and would make one every second.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


@asynccontextmanager
async def _watchdog(notifier: Notifier, watchdog_s: float | None, door: Door) -> AsyncIterator[None]:
    """Reports to the service manager while the engine is healthy; does nothing without a watchdog."""

    def healthy() -> bool:
        return door.readiness not in (Readiness.STALLED, Readiness.FAILED)

    task = None
    if watchdog_s is not None:
        task = asyncio.create_task(notifier.keep_watchdog(watchdog_s, healthy), name="watchdog")
    try:
        yield
    finally:
        if task is not None:
            task.cancel()


async def _drain(config: Config, logger: Logger, door: Door, engine: Engine, notifier: Notifier) -> None:
    stats = engine.stats()
    logger.info("draining", running=stats.num_running, waiting=stats.num_waiting, drain_s=config.drain_s)
    notifier.stopping("draining", config.drain_s + STOP_EXTENSION_S)
    door.drain()
    await engine.drain(config.drain_s)


def _announce(logger: Logger, notifier: Notifier, url: str, loaded: LoadedModel, config: Config) -> None:
    """Tells the log and the service manager that requests are served."""
    plan = loaded.runner.plan
    logger.info(
        "serving",
        url=url,
        model=model_name(config),
        device=loaded.runner.name,
        context_tokens=loaded.context_tokens,
        slots=plan.num_rows,
        kv_tokens=plan.kv_tokens,
        snapshots=plan.num_snapshots,
        host_kv_tokens=plan.num_host_pages * plan.layout.page_tokens,
        host_snapshots=plan.num_host_snapshots,
    )
    notifier.ready(f"serving {model_name(config)} on {url}")


def _engine(
    config: Config,
    loaded: LoadedModel,
    worker: ComputeWorker,
    metrics: Metrics,
    logger: Logger,
    identity: Identity,
    store: DiskStore | None,
    slots: Path | None,
) -> tuple[Engine, DiskTier | None]:
    cache = SequenceCache(loaded.runner.plan)
    budget = ChunkBudget(config.max_step_tokens, config.max_step_ms / 1000)

    def warn(event: str, reason: str) -> None:
        logger.warning(event, reason=reason)

    journal_tokens = loaded.runner.plan.journal_tokens
    scheduler = Scheduler(
        cache,
        context_tokens=loaded.context_tokens,
        budget=budget,
        max_queue=config.max_queue,
        capture_every_tokens=config.capture_every_tokens,
        speculator=Speculator(journal_tokens - 1, capture_every=config.capture_every_tokens) if journal_tokens else None,
        pins=OperatorPins(cache, None if config.pin_bytes == "auto" else config.pin_bytes, warn),
    )

    def report(error: BaseException) -> None:
        logger.error("step_failed", exc_info=error)

    def checked(error: Exception | None) -> None:
        metrics.cache_checked(passed=error is None)
        if error is not None:
            logger.error("cache_check_failed", reason="a page or snapshot is not accounted for; restart soon", exc_info=error)

    disk = None
    if store is not None:
        disk = DiskTier(store, worker, cache, scheduler.joins, clock=time.monotonic, token_s=lambda: budget.token_s, report=warn)
    engine = Engine(
        scheduler,
        worker,
        cache,
        on_finished=metrics.finished,
        on_error=report,
        probe=one_token(),
        idle_check=IdleCheck(cache.check, checked, time.monotonic),
        disk=disk,
        slot_files=SlotFiles(
            slots,
            identity,
            worker,
            cache,
            clock=time.monotonic,
        ),
    )
    return engine, disk


async def _warm_up(worker: ComputeWorker, loaded: LoadedModel) -> None:
    """Runs one token through every layer; ModelFileError if the output is not finite. On a GPU also a longer text, because prefill
    has its own kernels, and kernels are compiled when first used.

    Writes state row 0 and the first pages, which no sequence owns yet; their first owner overwrites them.
    """
    result = await worker.run(one_token())
    if result.samples[0].token < 0:
        raise ModelFileError(f"{loaded.file.path}: the model's output is not finite (NaN or infinity)")
    if loaded.runner.name == "cuda":
        await worker.run(many_tokens(loaded.runner.plan, loaded.runner.max_step_tokens))


def many_tokens(plan: MemoryPlan, max_step_tokens: int) -> StepBatch:
    """A step that evaluates one prefill chunk of at most WARM_UP_TOKENS in row 0."""
    count = min(WARM_UP_TOKENS, max_step_tokens, plan.kv_tokens)
    pages = np.arange(-(-count // plan.layout.page_tokens), dtype=np.int32)
    return StepBatch(zero_rows=(0,), chunks=(Chunk(row=0, start=0, tokens=np.zeros(count, np.int32), pages=pages),))


def one_token() -> StepBatch:
    """A step that evaluates one token in row 0 and page 0 and samples the next."""
    pages = token = np.zeros(1, np.int32)
    greedy = SamplingParams(temperature=0.0)
    return StepBatch(zero_rows=(0,), chunks=(Chunk(row=0, start=0, tokens=token, pages=pages),), samples=(Sample(0, 1, 0, greedy),))


def _service(config: Config, loaded: LoadedModel, engine: Engine, metrics: Metrics) -> Service:
    model, file = loaded.config, loaded.file
    meta = {
        "n_ctx_train": model.context_length,
        "n_vocab": model.vocab_size,
        "n_embd": model.hidden_size,
        "n_params": file.num_parameters,
        "size": sum(tensor.nbytes for tensor in file.tensors.values()),
        "architecture": model.architecture,
    }
    return Service(
        engine=engine,
        tokenizer=loaded.tokenizer,
        template=loaded.template,
        answer_format=loaded.answer_format,
        grammars=GrammarCompiler(loaded.tokenizer, model.vocab_size),
        answers=AnswerSettings(
            REASONING_FORMATS[config.reasoning_format],
            REASONING_FIELDS[config.reasoning_fields],
            {"on": True, "off": False}.get(config.thinking),
            None if config.thinking_budget < 0 else config.thinking_budget,
            config.canonical_tools,
            config.sampling_defaults,
        ),
        model=ModelInfo(
            model_name(config),
            int(time.time()),
            model.vocab_size,
            meta,
            config.strict_model_name,
            str(file.path),
            config.model_aliases,
            config.model_tags,
        ),
        fingerprint=f"headrace-{_version()}-{loaded.runner.name}",
        metrics=metrics,
        max_body_bytes=body_limit(config.max_body_bytes, loaded.context_tokens),
        keep_alive_s=config.keep_alive_s,
        show_slots=config.slots_endpoint,
        show_prompts=config.slots_prompt_text,
        isolate_keys=config.isolate_keys,
        prefill_assistant=config.prefill_assistant,
        mask_headers=config.mask_headers,
    )


def _version() -> str:
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "source"
