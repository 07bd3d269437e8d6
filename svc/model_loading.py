"""Loads a model: opens the file, reads its text side, chooses the backend, plans the memory, hands over the weights.

Everything here blocks; the server runs it on a thread of its own.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from svc.compute.cache_plan import plan_caches, step_sizes
from svc.compute.model_file import OpenedModel, open_configured
from svc.compute.ops import Ops
from svc.compute.runner import ModelRunner
from svc.config import Config, inapplicable
from svc.errors import BackendUnavailableError, ConfigError, ModelFileError
from svc.gguf.gguf_file import GgufFile
from svc.gguf.parts import stem
from svc.http.text.answer_format import NO_FORMAT, AnswerFormat, answer_format
from svc.http.text.chat_template import ChatTemplate
from svc.http.text.tokenizer import Tokenizer
from svc.http.text.tool_calls.call_format import FORMATS
from svc.log import Logger
from svc.machine import available_memory_bytes
from svc.memory.plan import MemoryPlan
from svc.model.arch import load_model
from svc.model.model_config import ModelConfig
from svc.processors import choose_threads

MAX_NAMED_TENSORS = 5  # in the warning about tensors that nothing reads
MAX_NAMED_TOKENS = 10  # in the warning about control tokens of another type
TEMPLATE_KEY = "tokenizer.chat_template"
TOOL_TEMPLATE_KEY = "tokenizer.chat_template.tool_use"

Progress = Callable[[int, int], None]  # (bytes done, bytes in all)


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """Everything known before a weight is touched."""

    opened: OpenedModel
    tokenizer: Tokenizer
    template: ChatTemplate | None
    answer_format: AnswerFormat
    ops: Ops
    plan: MemoryPlan
    read_in: bool  # whether the weights fit into the machine's memory beside the caches


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory, with its tokenizer and chat template."""

    file: GgufFile
    config: ModelConfig
    context_tokens: int
    runner: ModelRunner
    tokenizer: Tokenizer
    template: ChatTemplate | None
    answer_format: AnswerFormat


def load(config: Config, logger: Logger, progress: Progress, on_compile: Callable[[str], None] | None = None) -> LoadedModel:
    """Raises HeadraceError naming the culprit, and whatever `progress` raises to end the load.

    `on_compile` is called before each GPU kernel is compiled, which happens in the first steps.
    """
    prepared = prepare(config, logger, on_compile)
    opened, ops = prepared.opened, prepared.ops
    model = load_model(opened.source, opened.config, ops, progress, read_in=prepared.read_in)
    if model.unused_tensors:
        names = ", ".join(model.unused_tensors[:MAX_NAMED_TENSORS]) + (", ..." if model.unused_tensors[MAX_NAMED_TENSORS:] else "")
        reason = f"{len(model.unused_tensors)} tensors of {opened.file.path} are not used ({names}): answers may be wrong"
        logger.warning("unused_tensors", reason=reason)
    runner = ModelRunner(model, ops, prepared.plan, config.max_step_tokens)
    return LoadedModel(
        opened.file.without_vocabulary(),
        opened.config,
        opened.context_tokens,
        runner,
        prepared.tokenizer,
        prepared.template,
        prepared.answer_format,
    )


def prepare(config: Config, logger: Logger, on_compile: Callable[[str], None] | None = None) -> PreparedModel:
    """Reads the file's header, chooses the backend and plans the memory. Warns about settings without the expected effect."""
    opened = open_configured(config)
    tokenizer, template = _text_side(config, opened, logger)
    ops = choose_ops(config, logger, on_compile)
    plan, too_large = plan_memory_for(config, opened, ops)
    if too_large:
        logger.warning("weights_not_read_ahead", reason=too_large)
    _warn(config, opened, ops.name, plan, template, logger)
    form = configured_format(config, template)
    return PreparedModel(opened, tokenizer, template, form, ops, plan, read_in=too_large is None)


def plan_memory_for(config: Config, opened: OpenedModel, ops: Ops) -> tuple[MemoryPlan, str | None]:
    """The caches' sizes, and a warning if the machine's memory cannot hold the weights beside them."""
    sizes = step_sizes(config, opened.config, config.max_slots)
    on_device = ops.bytes_for_caches(sizes, opened.file.file_bytes)
    return plan_caches(config, opened, on_device, available_memory_bytes())


def _text_side(config: Config, opened: OpenedModel, logger: Logger) -> tuple[Tokenizer, ChatTemplate | None]:
    """Tokenizer and chat template. Control tokens that the file types as text are treated as control tokens, with a warning."""
    tokenizer = read_tokenizer(opened)
    template = chat_template(config, opened.file, tokenizer)
    mistyped = tokenizer.mistyped(template.markers() if template else ())
    if not mistyped:
        return tokenizer, template
    names = ", ".join(mistyped[:MAX_NAMED_TOKENS]) + (", ..." if mistyped[MAX_NAMED_TOKENS:] else "")
    reason = f"{opened.file.path} does not mark {names} as control tokens: they are treated as such (tokenizer.ggml.token_type)"
    logger.warning("control_tokens_mistyped", reason=reason)
    tokenizer = read_tokenizer(opened, mistyped)
    return tokenizer, chat_template(config, opened.file, tokenizer)


def read_tokenizer(opened: OpenedModel, control: Iterable[str] = ()) -> Tokenizer:
    """The file's tokenizer, tokens spelled as in `control` taken as control tokens. ModelFileError if it has more tokens than the
    model has embeddings."""
    tokenizer = Tokenizer.from_metadata(opened.file.metadata, control)
    if tokenizer.num_tokens > opened.config.vocab_size:
        raise ModelFileError(
            f"{opened.file.path}: the tokenizer has {tokenizer.num_tokens} tokens "
            f"but the model only {opened.config.vocab_size} embeddings"
        )
    return tokenizer


def choose_ops(config: Config, logger: Logger, on_compile: Callable[[str], None] | None = None) -> Ops:
    """The backend for `config.device`. `auto`: a GPU if CuPy finds one, else the C kernels if they were built, else the reference,
    with a warning."""
    from svc.compute.reference.ops import ReferenceOps

    if config.device == "reference":
        return cast(Ops, ReferenceOps())
    gpu = choose_gpu(config, logger, on_compile)
    if gpu is not None:
        return gpu
    try:
        from svc.compute.cpu.ops import CpuOps

        level = None if config.cpu_level == "auto" else config.cpu_level
        chosen = choose_threads(config.threads)
        ops = CpuOps(chosen.num_threads, activations=config.activations, level=level)
        logger.info("cpu_device", cpu_level=ops.level, threads=ops.num_threads, reason=chosen.reason)
        return cast(Ops, ops)
    except BackendUnavailableError as error:
        if config.device == "cpu" or config.cpu_level != "auto":
            raise
        logger.warning("slow_device", device="reference", reason=f"{error}; numpy computes instead, many times more slowly")
        return cast(Ops, ReferenceOps())


def choose_gpu(config: Config, logger: Logger, on_compile: Callable[[str], None] | None = None) -> Ops | None:
    """The GPU backend; None if another backend computes. BackendUnavailableError if `device` names a GPU that is missing."""
    if config.device.startswith("cuda"):
        return _open_cuda(config.device, config.exact, on_compile)
    if config.device == "auto" and find_spec("cupy"):
        try:
            return _open_cuda("cuda", config.exact, on_compile)
        except BackendUnavailableError as error:
            logger.info("no_cuda", reason=f"{error}; the cpu computes instead")  # "auto" accepts any device: no warning
    return None


def _open_cuda(device: str, exact: bool, on_compile: Callable[[str], None] | None) -> Ops:
    """`device` is `cuda` or `cuda:N`. BackendUnavailableError says what is missing."""
    from svc.compute.cuda.cupy_device import open_cupy_device
    from svc.compute.cuda.device import Device
    from svc.compute.cuda.ops import CudaOps

    opened = cast(Device, open_cupy_device(int(device.partition(":")[2] or 0)))
    opened.on_compile = on_compile
    return cast(Ops, CudaOps(opened, exact=exact))


def chat_template(config: Config, file: GgufFile, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The operator's template, else the file's (with its template for tools), else None.

    The error for one that does not compile names its source: ConfigError for the operator's, ModelFileError for the file's.
    """
    if config.chat_template_file is None:
        source, tool_use = (file.metadata.get(key) for key in (TEMPLATE_KEY, TOOL_TEMPLATE_KEY))
        if not isinstance(source, str) or not source:
            return None
        return ChatTemplate(source, tokenizer, tool_use=tool_use if isinstance(tool_use, str) else None)
    path = Path(config.chat_template_file)
    try:
        return ChatTemplate(path.read_text(encoding="utf-8"), tokenizer)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat_template_file: cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    except ModelFileError as error:
        raise ConfigError(f"chat_template_file {path}: {error}") from None


def configured_format(config: Config, template: ChatTemplate | None) -> AnswerFormat:
    """How the model writes reasoning and tool calls: as the template does, unless the operator knows better."""
    found = answer_format(template) if template is not None else NO_FORMAT
    return found if config.tool_call_format == "auto" else replace(found, calls=FORMATS[config.tool_call_format])


def model_name(config: Config) -> str:
    """The name clients see: the operator's, else the file's without its extension and part number."""
    return config.model_name or stem(Path(config.model or ""))


def _warn(
    config: Config,
    opened: OpenedModel,
    device: str,
    plan: MemoryPlan,
    template: ChatTemplate | None,
    logger: Logger,
) -> None:
    """One line for each setting or property of the file that has another effect than the operator may expect."""
    for event, reason in opened.remarks:
        logger.warning(event, reason=reason)
    for sentence in inapplicable(config, opened.config, device):
        logger.warning("option_without_effect", reason=sentence)
    context_tokens = opened.context_tokens
    if plan.layout.num_attention_layers and plan.kv_tokens < context_tokens + plan.layout.page_tokens:
        reason = f"kv_bytes holds {plan.kv_tokens} tokens, fewer than one sequence of {context_tokens}: longer prompts are refused"
        logger.warning("small_kv", reason=reason)
    if template is None:
        logger.warning("no_chat_template", reason="the model file has none: /v1/chat/completions is refused (chat_template_file)")
