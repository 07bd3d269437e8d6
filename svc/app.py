"""Builds everything from a `Config` and runs it: the one place where all rooms meet.

The port is opened first (a taken port is known at once, and probes get an answer); the model is loaded off the loop meanwhile.
"""

import asyncio
import gc
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import cast

import numpy as np

from svc.compute.backend import Chunk, Sample, StepBatch
from svc.compute.opening import OpenedModel, open_configured, plan_caches
from svc.compute.ops import Ops
from svc.compute.runner import MAX_LOGIT_ROWS, ModelRunner, load_model
from svc.compute.sampling.params import SamplingParams
from svc.compute.worker import ComputeWorker
from svc.config import Config, inapplicable, service_manager
from svc.errors import BackendUnavailableError, ConfigError, ModelFileError
from svc.gguf.gguf_file import GgufFile
from svc.gguf.parts import stem
from svc.http.access import ApiKeys
from svc.http.server import HttpServer
from svc.http.service import Door, ModelInfo, Readiness, Service
from svc.http.text.chat_template import ChatTemplate
from svc.http.text.tokenizer import Tokenizer
from svc.lifecycle import KernelProgress, Notifier, Shutdown, load_progress
from svc.lifecycle import LoadInterruptedError as LoadInterruptedError  # raised by `load`
from svc.log import Logger, configure_logging
from svc.machine import available_memory_bytes
from svc.memory.plan import MemoryPlan
from svc.memory.sequence_cache import SequenceCache
from svc.metrics import Metrics
from svc.model.model_config import ModelConfig
from svc.slots.budget import ChunkBudget
from svc.slots.engine import Engine
from svc.slots.scheduler import Scheduler

uvloop: ModuleType | None
try:
    import uvloop
except ImportError:  # not on every platform; asyncio's own loop does as well, more slowly
    uvloop = None

STOP_EXTENSION_S = 30.0  # beyond the drain time: for the step under way, and for closing
EXIT_INTERRUPTED = 128 + signal.SIGINT
WARM_UP_TOKENS = 256  # enough for the kernels of many rows, also where these are shared out among hundreds of experts
MAX_NAMED_TENSORS = 5  # in the warning about those that nothing reads
TEMPLATE_KEY = "tokenizer.chat_template"

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Loaded:
    """A model in memory and the text side that belongs to it."""

    file: GgufFile
    config: ModelConfig
    context_tokens: int
    runner: ModelRunner
    tokenizer: Tokenizer
    template: ChatTemplate | None


def run_server(config: Config) -> int:
    """Serves until SIGTERM or SIGINT; the process's exit code. HeadraceError when something the user gave cannot be used.

    The code is 0, also when it was told to end while loading, but 130 when it was Ctrl-C that interrupted the load.
    """
    logger = configure_logging(config.log_level, config.log_format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if uvloop else None) as runner:
        return runner.run(serve(config, logger))


async def serve(config: Config, logger: Logger) -> int:
    """`run_server` on a running loop."""
    manager = service_manager()
    notifier, metrics, door = Notifier(manager.notify_socket), Metrics(), Door()
    keys = None if config.api_key_file is None else ApiKeys.load(config.api_key_file)
    server = HttpServer(door, metrics, logger, max_body_bytes=config.max_body_bytes, keys=keys, cors_origins=config.cors_origins)
    with Shutdown() as shutdown:
        url = await server.start(config.host, config.port)
        logger.info("listening", url=url)
        try:
            kernels = KernelProgress(logger, notifier, shutdown)
            loaded = await asyncio.to_thread(load, config, logger, load_progress(logger, notifier, shutdown), kernels)
            async with _running(config, logger, loaded, metrics) as engine:
                kernels.finish()
                _spare_the_collector()
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


@asynccontextmanager
async def private_server(config: Config, logger: Logger, progress: Progress) -> AsyncIterator[tuple[str, str]]:
    """A server for this process alone, ready for requests: (URL on the loopback interface, API key that nobody else knows).

    No signal handlers, no systemd: whoever enters decides when it ends. Raises what `load` raises.
    """
    metrics, door, key = Metrics(), Door(), secrets.token_urlsafe()
    server = HttpServer(door, metrics, logger, max_body_bytes=config.max_body_bytes, keys=ApiKeys([key]))
    url = await server.start("127.0.0.1", 0)
    try:
        loaded = await asyncio.to_thread(load, config, logger, progress)
        async with _running(config, logger, loaded, metrics) as engine:
            door.open(_service(config, loaded, engine, metrics))
            yield url, key
    finally:
        await server.stop()


@asynccontextmanager
async def _running(config: Config, logger: Logger, loaded: Loaded, metrics: Metrics) -> AsyncIterator[Engine]:
    """A warm engine on its compute thread; both are gone afterwards."""
    worker = ComputeWorker(loaded.runner)
    engine = _engine(config, loaded, worker, metrics, logger)
    try:
        await _warm_up(worker, loaded)
        await engine.start()
        metrics.follow(engine.stats)
        yield engine
    finally:
        await engine.stop()
        await worker.close()


def _spare_the_collector() -> None:
    """What is there now stays: looking through modules and vocabulary again and again stops every stream for 0.1 s."""
    gc.collect()
    gc.freeze()


@asynccontextmanager
async def _watchdog(notifier: Notifier, watchdog_s: float | None, door: Door) -> AsyncIterator[None]:
    """Tells the service manager that all is well, as long as it is and if anybody asked."""

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


def _announce(logger: Logger, notifier: Notifier, url: str, loaded: Loaded, config: Config) -> None:
    """From now on requests are served."""
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


# -- loading (on a thread of its own) -------------------------------------------------------------------------------------------


def load(config: Config, logger: Logger, progress: Progress, on_compile: Callable[[str], None] | None = None) -> Loaded:
    """Everything that takes long. HeadraceError naming the culprit; what `progress` raises ends the load.

    `on_compile` is told of every GPU kernel before it is compiled, which happens in the first steps.
    """
    opened = open_configured(config)
    file, model_config, context_tokens = opened.file, opened.config, opened.context_tokens
    tokenizer = read_tokenizer(opened)
    template = chat_template(config, file, tokenizer)
    ops = choose_ops(config, logger, on_compile)
    plan, too_large = _plan(config, opened, ops)
    if too_large:
        logger.warning("weights_not_read_ahead", reason=too_large)
    _warn(config, opened, ops.name, plan, template, logger)
    model = load_model(opened.source, model_config, ops, progress, read_in=too_large is None)
    if model.unused_tensors:
        names = ", ".join(model.unused_tensors[:MAX_NAMED_TENSORS]) + (", ..." if model.unused_tensors[MAX_NAMED_TENSORS:] else "")
        reason = f"{len(model.unused_tensors)} tensors of {file.path} are not computed with ({names}): answers may be wrong"
        logger.warning("unused_tensors", reason=reason)
    runner = ModelRunner(model, ops, plan, config.max_step_tokens)
    return Loaded(file, model_config, context_tokens, runner, tokenizer, template)


def _plan(config: Config, opened: OpenedModel, ops: Ops) -> tuple[MemoryPlan, str | None]:
    """Counts for the caches, and what to say of weights that the machine's memory cannot hold."""
    layout = opened.config.memory_layout(config.page_tokens, config.kv_type)
    sizes = (config.max_slots, config.max_step_tokens, MAX_LOGIT_ROWS, opened.file.file_bytes)
    on_device = ops.bytes_for_caches(opened.config, layout, *sizes)
    return plan_caches(config, opened, on_device, available_memory_bytes())


def read_tokenizer(opened: OpenedModel) -> Tokenizer:
    """ModelFileError for one that does not belong to the model."""
    tokenizer = Tokenizer.from_metadata(opened.file.metadata)
    if tokenizer.num_tokens > opened.config.vocab_size:
        raise ModelFileError(
            f"{opened.file.path}: the tokenizer has {tokenizer.num_tokens} tokens "
            f"but the model only {opened.config.vocab_size} embeddings"
        )
    return tokenizer


def choose_ops(config: Config, logger: Logger, on_compile: Callable[[str], None] | None = None) -> Ops:
    """The room that computes. `auto` is a GPU where CuPy and one are there, else the C kernels where they were built, else the
    reference, with one clear warning."""
    from svc.compute.reference.ops import ReferenceOps

    if config.device == "reference":
        return cast(Ops, ReferenceOps())
    gpu = choose_gpu(config, logger, on_compile)
    if gpu is not None:
        return gpu
    try:
        from svc.compute.cpu.ops import CpuOps

        return cast(Ops, CpuOps(config.threads, activations=config.activations))
    except BackendUnavailableError as error:
        if config.device == "cpu":
            raise
        logger.warning("slow_device", device="reference", reason=f"{error}; numpy computes instead, many times more slowly")
        return cast(Ops, ReferenceOps())


def choose_gpu(config: Config, logger: Logger, on_compile: Callable[[str], None] | None = None) -> Ops | None:
    """The GPU that computes, None where something else does. BackendUnavailableError where `device` names one that is missing."""
    if config.device.startswith("cuda"):
        return _open_cuda(config.device, config.exact, on_compile)
    if config.device == "auto" and find_spec("cupy"):
        try:
            return _open_cuda("cuda", config.exact, on_compile)
        except BackendUnavailableError as error:
            logger.info("no_cuda", reason=f"{error}; the cpu computes instead")  # "auto" asks for nothing that is missing
    return None


def _open_cuda(device: str, exact: bool, on_compile: Callable[[str], None] | None) -> Ops:
    """`cuda` or `cuda:N`. BackendUnavailableError says what is missing."""
    from svc.compute.cuda.cupy_device import open_cupy_device
    from svc.compute.cuda.device import Device
    from svc.compute.cuda.ops import CudaOps

    opened = cast(Device, open_cupy_device(int(device.partition(":")[2] or 0)))
    opened.on_compile = on_compile
    return cast(Ops, CudaOps(opened, exact=exact))


def chat_template(config: Config, file: GgufFile, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The operator's template, else the file's, else None. A template that does not compile is an error of whoever gave it."""
    if config.chat_template_file is None:
        source = file.metadata.get(TEMPLATE_KEY)
        return ChatTemplate(source, tokenizer) if isinstance(source, str) and source else None
    path = Path(config.chat_template_file)
    try:
        return ChatTemplate(path.read_text(encoding="utf-8"), tokenizer)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat_template_file: cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    except ModelFileError as error:
        raise ConfigError(f"chat_template_file {path}: {error}") from None


def model_name(config: Config) -> str:
    return config.model_name or stem(Path(config.model or ""))


def _warn(
    config: Config,
    opened: OpenedModel,
    device: str,
    plan: MemoryPlan,
    template: ChatTemplate | None,
    logger: Logger,
) -> None:
    """What works otherwise than the operator may think, once each."""
    for event, reason in opened.remarks:
        logger.warning(event, reason=reason)
    for sentence in inapplicable(config, opened.config, device):
        logger.warning("option_without_effect", reason=sentence)
    context_tokens = opened.context_tokens
    if plan.layout.num_attention_layers and plan.kv_tokens < context_tokens + plan.layout.page_tokens:
        reason = f"kv_bytes holds {plan.kv_tokens} tokens, fewer than one sequence of {context_tokens}: prompts are bounded by that"
        logger.warning("small_kv", reason=reason)
    if template is None:
        logger.warning("no_chat_template", reason="the model file has none: /v1/chat/completions is refused (chat_template_file)")


# -- putting together (on the loop) ---------------------------------------------------------------------------------------------


def _engine(config: Config, loaded: Loaded, worker: ComputeWorker, metrics: Metrics, logger: Logger) -> Engine:
    cache = SequenceCache(loaded.runner.plan)
    scheduler = Scheduler(
        cache,
        context_tokens=loaded.context_tokens,
        budget=ChunkBudget(config.max_step_tokens, config.max_step_ms / 1000),
        max_queue=config.max_queue,
        capture_every_tokens=config.capture_every_tokens,
    )

    def report(error: BaseException) -> None:
        logger.error("step_failed", exc_info=error)

    return Engine(scheduler, worker, cache, on_finished=metrics.finished, on_error=report, probe=one_token())


async def _warm_up(worker: ComputeWorker, loaded: Loaded) -> None:
    """One token through every layer before anybody waits for it: finds a model that computes nonsense. On a GPU also a longer
    text, as decoding and prefill have kernels of their own, which are compiled when first used.

    It writes row 0 and the first pages, which nobody owns yet and whoever gets them first overwrites.
    """
    result = await worker.run(one_token())
    if result.samples[0].token < 0:
        raise ModelFileError(f"{loaded.file.path}: the model's output is not finite (NaN or infinity)")
    if loaded.runner.name == "cuda":
        await worker.run(many_tokens(loaded.runner.plan, loaded.runner.max_step_tokens))


def many_tokens(plan: MemoryPlan, max_step_tokens: int) -> StepBatch:
    """A step that computes a text as long as prefill chunks get, up to WARM_UP_TOKENS, in row 0."""
    count = min(WARM_UP_TOKENS, max_step_tokens, plan.kv_tokens)
    pages = np.arange(-(-count // plan.layout.page_tokens), dtype=np.int32)
    return StepBatch(zero_rows=(0,), chunks=(Chunk(row=0, start=0, tokens=np.zeros(count, np.int32), pages=pages),))


def one_token() -> StepBatch:
    """A step that computes one token in row 0 and page 0."""
    pages = token = np.zeros(1, np.int32)
    greedy = SamplingParams(temperature=0.0)
    return StepBatch(zero_rows=(0,), chunks=(Chunk(row=0, start=0, tokens=token, pages=pages),), samples=(Sample(0, 1, 0, greedy),))


def _service(config: Config, loaded: Loaded, engine: Engine, metrics: Metrics) -> Service:
    model, file = loaded.config, loaded.file
    meta = {
        "n_ctx_train": model.context_length,
        "n_vocab": model.vocab_size,
        "n_embd": model.hidden_size,
        "n_params": sum(int(np.prod(tensor.shape)) for tensor in file.tensors.values()),
        "size": sum(tensor.nbytes for tensor in file.tensors.values()),
        "architecture": model.architecture,
    }
    return Service(
        engine=engine,
        tokenizer=loaded.tokenizer,
        template=loaded.template,
        model=ModelInfo(model_name(config), int(time.time()), model.vocab_size, meta, config.strict_model_name, str(file.path)),
        fingerprint=f"headrace-{_version()}-{loaded.runner.name}",
        metrics=metrics,
        keep_alive_s=config.keep_alive_s,
        show_prompts=config.slots_prompt_text,
    )


def _version() -> str:
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "source"
