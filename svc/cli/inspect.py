"""`headrace inspect MODEL`: contents of a model file, memory of a token and of a snapshot, capacity of the budgets."""

import argparse
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

import msgspec

from svc.cli.options import MEMORY_KEYS, METADATA_KEYS, add_options, load
from svc.compute.cache_plan import plan_caches, step_sizes
from svc.compute.model_file import OpenedModel, open_configured
from svc.config import Config
from svc.gguf.gguf_file import GgufFile
from svc.machine import available_memory_bytes
from svc.memory.plan import MemoryPlan
from svc.model.model_config import ModelConfig
from svc.processors import choose_threads

if TYPE_CHECKING:
    from svc.compute.cuda.ops import CudaOps

DEVICE_KEYS = ("device", "threads", "exact", "max_step_tokens")  # those that threads and a plan for a GPU's memory depend on
PROGRAM_BYTES, TOKEN_BYTES = 86 << 20, 400  # measured on Linux, x86-64, Python 3.11: the rest of a server with 49k and 152k tokens
CHAT_TEMPLATE_KEY = "tokenizer.chat_template"


class FileReport(msgspec.Struct, frozen=True):
    """The file. `quant_types` maps a type's name to its share of the tensors' bytes, largest first."""

    path: str
    num_files: int
    size_bytes: int
    gguf_version: int
    num_tensors: int
    num_parameters: int
    quant_types: dict[str, float]
    has_chat_template: bool


class ModelReport(msgspec.Struct, frozen=True):
    """Sizes of the network; 0 for parts that it does not have."""

    name: str
    architecture: str
    num_layers: int
    num_attention_layers: int
    num_recurrent_layers: int
    num_mtp_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_key_heads: int
    num_value_heads: int
    recurrent_head_dim: int
    feed_forward_size: int
    num_experts: int
    num_experts_used: int
    expert_size: int
    shared_expert_size: int
    vocab_size: int
    pre_tokenizer: str | None
    trained_context_tokens: int
    rope_scaling: str  # "none", "linear" or "yarn"
    rope_scale: float
    full_context_tokens: int  # the trained context, stretched by the rope scaling


class ResidentReport(msgspec.Struct, frozen=True):
    """Memory of the server's process where the caches are in the machine's memory too. They grow with what they hold."""

    weights_bytes: int  # the mapped file
    program_bytes: int  # about: Python, libraries, vocabulary
    start_bytes: int  # of all, with the live state, before the first request
    most_bytes: int  # with full caches


class MemoryReport(msgspec.Struct, frozen=True):
    """Sizes of the caches under the given settings."""

    kv_type: str
    snapshot_type: str
    kv_bytes_per_token: int
    snapshot_bytes_each: int
    snapshot_in_kv_tokens: int | None  # None where there are no KV pages
    context_tokens: int
    kv_bytes: int
    page_tokens: int
    num_pages: int
    kv_tokens: int
    snapshot_bytes: int
    num_snapshots: int
    host_kv_bytes: int  # of the machine's memory, beside a GPU
    num_host_pages: int
    host_snapshot_bytes: int
    num_host_snapshots: int
    num_slots: int
    slot_bytes: int
    journal_tokens: int  # of each slot: how far it can be rolled back
    journal_bytes: int


class GpuReport(msgspec.Struct, frozen=True):
    """The GPU that would compute. For caches: 95 % of its free memory, less the weights and the steps' memory."""

    name: str
    total_bytes: int
    free_bytes: int
    steps_bytes: int
    for_caches_bytes: int


class ThreadsReport(msgspec.Struct, frozen=True):
    num_threads: int
    reason: str


class Inspection(msgspec.Struct, frozen=True):
    file: FileReport
    model: ModelReport
    memory: MemoryReport
    gpu: GpuReport | None  # None: the caches are in the machine's memory
    threads: ThreadsReport | None  # None: the device does not choose
    resident: ResidentReport | None  # None: a GPU has most of it
    remarks: list[str]  # the server's warnings


def add_command(commands: Any) -> None:
    """`commands` is argparse's sub-parser action, which has no public type."""
    parser = commands.add_parser(
        "inspect",
        help="describe a model file and what fits into memory",
        description="Describe a GGUF file, the memory of one token and of one snapshot, and the capacity of the memory budgets.",
        allow_abbrev=False,
    )
    add_options(parser, DEVICE_KEYS + MEMORY_KEYS + METADATA_KEYS)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(namespace: argparse.Namespace) -> int:
    config = load(namespace)
    report = inspect_model(config, available_memory_bytes(), find_gpu(config))
    print(msgspec.json.format(msgspec.json.encode(report)).decode() if namespace.json else render(report))
    return 0


def find_gpu(config: Config) -> "CudaOps | None":
    """The GPU that would compute; None for another backend. BackendUnavailableError if `device` names a GPU that is missing."""
    if config.device in ("cpu", "reference") or (config.device == "auto" and not find_spec("cupy")):
        return None
    from svc.log import configure_logging
    from svc.model_loading import choose_gpu  # slow to import: only if there may be a GPU

    return cast("CudaOps | None", choose_gpu(config, configure_logging("warning", "console")))


def inspect_model(config: Config, available_bytes: int, gpu: "CudaOps | None" = None) -> Inspection:
    """Reads the file's header and no weight. Without a GPU, automatic budgets are shares of `available_bytes`.

    Raises ModelFileError, ConfigError and MemoryBudgetError.
    """
    opened = open_configured(config)
    file, model, context_tokens = opened.file, opened.config, opened.context_tokens
    gpu_report = None if gpu is None else _gpu_report(config, gpu, opened)
    device_bytes = None if gpu_report is None else gpu_report.for_caches_bytes
    plan, too_large = plan_caches(config, opened, device_bytes, available_bytes)
    remarks = [remark.reason for remark in opened.remarks] + ([too_large] if too_large else [])
    threads = None if gpu is not None or config.device == "reference" else _threads_report(config)
    memory = _memory_report(plan, context_tokens)
    resident = None if gpu is not None else _resident_report(file, model, plan)
    return Inspection(_file_report(file), _model_report(model, file), memory, gpu_report, threads, resident, remarks)


def _resident_report(file: GgufFile, model: ModelConfig, plan: MemoryPlan) -> ResidentReport:
    program_bytes = PROGRAM_BYTES + TOKEN_BYTES * model.vocab_size
    start_bytes = file.file_bytes + program_bytes + plan.row_bytes
    host_bytes = plan.num_host_pages * plan.layout.page_bytes + plan.num_host_snapshots * plan.layout.snapshot_bytes
    most_bytes = file.file_bytes + program_bytes + plan.total_bytes + host_bytes
    return ResidentReport(file.file_bytes, program_bytes, start_bytes, most_bytes)


def _threads_report(config: Config) -> ThreadsReport:
    chosen = choose_threads(config.threads)
    return ThreadsReport(chosen.num_threads, chosen.reason)


def _gpu_report(config: Config, gpu: "CudaOps", opened: OpenedModel) -> GpuReport:
    memory, sizes = gpu.device.memory(), step_sizes(config, opened.config, config.max_slots)
    for_caches_bytes = gpu.bytes_for_caches(sizes, opened.file.file_bytes)
    steps_bytes = gpu.bytes_for_steps(sizes)
    return GpuReport(gpu.device.name, memory.total_bytes, memory.free_bytes, steps_bytes, for_caches_bytes)


def _file_report(file: GgufFile) -> FileReport:
    return FileReport(
        path=str(file.path),
        num_files=len(file.paths),
        size_bytes=file.file_bytes,
        gguf_version=file.version,
        num_tensors=len(file.tensors),
        num_parameters=file.num_parameters,
        quant_types=file.type_shares(),
        has_chat_template=CHAT_TEMPLATE_KEY in file.metadata,
    )


def _model_report(model: ModelConfig, file: GgufFile) -> ModelReport:
    return ModelReport(
        name=model.name,
        architecture=model.architecture,
        num_layers=model.num_layers,
        num_attention_layers=model.num_attention_layers,
        num_recurrent_layers=model.num_delta_layers,
        num_mtp_layers=model.num_mtp_layers,
        hidden_size=model.hidden_size,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        num_key_heads=model.num_key_heads,
        num_value_heads=model.num_value_heads,
        recurrent_head_dim=model.value_dim,
        feed_forward_size=model.feed_forward_size,
        num_experts=model.num_experts,
        num_experts_used=model.num_experts_used,
        expert_size=model.expert_size,
        shared_expert_size=model.shared_expert_size,
        vocab_size=model.vocab_size,
        pre_tokenizer=file.get_str("tokenizer.ggml.pre", None),
        trained_context_tokens=model.context_length,
        rope_scaling=model.rope_scaling.kind if model.rope_scaling else "none",
        rope_scale=model.rope_scaling.factor if model.rope_scaling else 1.0,
        full_context_tokens=model.full_context,
    )


def _memory_report(plan: MemoryPlan, context_tokens: int) -> MemoryReport:
    layout = plan.layout
    per_token = layout.kv_bytes_per_token
    return MemoryReport(
        kv_type=layout.kv_type,
        kv_bytes_per_token=per_token,
        snapshot_type=layout.snapshot_type,
        snapshot_bytes_each=layout.snapshot_bytes,
        snapshot_in_kv_tokens=round(layout.snapshot_bytes / per_token) if per_token else None,
        context_tokens=context_tokens,
        kv_bytes=plan.kv_bytes,
        page_tokens=layout.page_tokens,
        num_pages=plan.num_pages,
        kv_tokens=plan.kv_tokens,
        snapshot_bytes=plan.snapshot_bytes,
        num_snapshots=plan.num_snapshots,
        host_kv_bytes=plan.num_host_pages * layout.page_bytes,
        num_host_pages=plan.num_host_pages,
        host_snapshot_bytes=plan.num_host_snapshots * layout.snapshot_bytes,
        num_host_snapshots=plan.num_host_snapshots,
        num_slots=plan.num_rows,
        slot_bytes=plan.row_bytes,
        journal_tokens=plan.journal_tokens,
        journal_bytes=plan.journal_bytes,
    )


def render(report: Inspection) -> str:
    """The report for people: aligned lines."""
    file, memory = report.file, report.memory
    parts = f" in {file.num_files} files" if file.num_files > 1 else ""
    shares = ", ".join(f"{kind} {_percent(share)}" for kind, share in file.quant_types.items())
    rows = [
        ("file", f"{file.path}: {_bytes(file.size_bytes)}{parts}, GGUF {file.gguf_version}, {file.num_tensors} tensors"),
        ("weights", f"{_count(file.num_parameters)} parameters: {shares} of the bytes"),
        *_model_rows(report.model),
        ("chat template", "yes" if file.has_chat_template else "none in the file (give --chat-template-file)"),
        ("", ""),
        *_gpu_rows(report.gpu),
        ("one token", f"{_bytes(memory.kv_bytes_per_token)} of KV ({memory.kv_type})"),
        ("one snapshot", _snapshot(report)),
        ("ctx", f"{memory.context_tokens} tokens at most in one sequence, prompt and answer together"),
        ("kv_bytes", f"{_bytes(memory.kv_bytes)}: {memory.num_pages} pages of {memory.page_tokens} = {memory.kv_tokens} tokens"),
        ("snapshot_bytes", f"{_bytes(memory.snapshot_bytes)}: {memory.num_snapshots} snapshots"),
        ("host tier", _host_tier(memory)),
        *([("memory", _resident(report.resident, memory))] if report.resident else []),
        *([("threads", f"{report.threads.num_threads}: {report.threads.reason}")] if report.threads else []),
        ("max_slots", f"{memory.num_slots} sequences at once, {_bytes(memory.slot_bytes)} of live state"),
        ("draft_tokens", _journal(memory)),
    ]
    if memory.kv_tokens < memory.context_tokens:
        rows.append(("note", f"the KV pages hold less than one sequence of {memory.context_tokens} tokens"))
    rows += [("note", remark) for remark in report.remarks]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}".rstrip() for name, text in rows)


def _gpu_rows(gpu: GpuReport | None) -> list[tuple[str, str]]:
    if gpu is None:
        return []
    free = f"{_bytes(gpu.free_bytes)} of {_bytes(gpu.total_bytes)} free"
    return [("gpu", f"{gpu.name}: {free}, {_bytes(gpu.steps_bytes)} for steps, {_bytes(gpu.for_caches_bytes)} left for the caches")]


def _model_rows(model: ModelReport) -> list[tuple[str, str]]:
    layers = f"{model.num_layers}: {model.num_recurrent_layers} recurrent (Gated DeltaNet), {model.num_attention_layers} attention"
    attention = f"{model.num_heads} heads of {model.head_dim}, {model.num_kv_heads} KV heads"
    recurrent = f"{model.num_key_heads} key heads and {model.num_value_heads} value heads of {model.recurrent_head_dim}"
    experts = f"{model.num_experts} experts of {model.expert_size}, {model.num_experts_used} used"
    shared = f", a shared one of {model.shared_expert_size}" if model.shared_expert_size else ""
    context = f"trained to {model.trained_context_tokens} tokens"
    if model.rope_scaling != "none":
        context += f", stretched to {model.full_context_tokens} ({model.rope_scaling}, factor {model.rope_scale:g})"
    return [
        ("model", f"{model.name} ({model.architecture}), hidden size {model.hidden_size}"),
        ("layers", layers + (f", and {model.num_mtp_layers} for multi-token prediction" if model.num_mtp_layers else "")),
        *([("attention", attention)] if model.num_attention_layers else []),
        *([("recurrent", recurrent)] if model.num_recurrent_layers else []),
        ("feed-forward", experts + shared if model.num_experts else f"dense, {model.feed_forward_size}"),
        ("vocabulary", f"{model.vocab_size} tokens ({model.pre_tokenizer or 'pre-tokenizer not named'})"),
        ("context", context),
    ]


def _resident(resident: ResidentReport, memory: MemoryReport) -> str:
    weights, program, live = _bytes(resident.weights_bytes), _bytes(resident.program_bytes), _bytes(memory.slot_bytes)
    start, most = _bytes(resident.start_bytes), _bytes(resident.most_bytes)
    parts = f"{weights} of weights, {program} of program and vocabulary, {live} of live state"
    return f"about {start} after the start: {parts}; {most} with full caches"


def _host_tier(memory: MemoryReport) -> str:
    if not (memory.num_host_pages or memory.num_host_snapshots):
        return "none: automatic only beside a GPU (host_kv_bytes, host_snapshot_bytes)"
    tokens = memory.num_host_pages * memory.page_tokens
    pages = f"{_bytes(memory.host_kv_bytes)} for {memory.num_host_pages} pages = {tokens} tokens"
    return f"{pages}, {_bytes(memory.host_snapshot_bytes)} for {memory.num_host_snapshots} snapshots"


def _journal(memory: MemoryReport) -> str:
    if not memory.journal_tokens:
        return "0: no sequence is rolled back"
    return f"{memory.journal_tokens - 1}: {_bytes(memory.journal_bytes)} of journals to roll sequences back"


def _snapshot(report: Inspection) -> str:
    memory = report.memory
    size = _bytes(memory.snapshot_bytes_each)
    if report.model.num_recurrent_layers and memory.snapshot_type != "f32":
        size = f"{size} of {memory.snapshot_type}"
    if not report.model.num_recurrent_layers:
        return f"{size} (a hidden row: no recurrent layers)"
    return size if memory.snapshot_in_kv_tokens is None else f"{size} (= KV of {memory.snapshot_in_kv_tokens} tokens)"


def _bytes(size: int) -> str:
    """A size for people: three digits and a binary unit."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.{2 if size < 10 * scale else 1 if size < 100 * scale else 0}f} {unit}"
    return f"{size} bytes"


def _count(number: int) -> str:
    for unit, scale in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= scale:
            return f"{number / scale:.1f}{unit}"
    return str(number)


def _percent(share: float) -> str:
    return "<1 %" if share < 0.01 else f"{100 * share:.0f} %"
