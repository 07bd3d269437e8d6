"""Loads a model for commands that compute without a server, with memory for exactly what they run."""

import sys
from typing import TYPE_CHECKING

from svc.cli.progress import ProgressLine
from svc.config import Config
from svc.errors import MemoryBudgetError
from svc.machine import available_memory_bytes
from svc.memory.auto_budget import weights_remark
from svc.memory.plan import MemoryPlan

if TYPE_CHECKING:  # slow to import: only when a model is loaded
    from svc.compute.model_file import OpenedModel
    from svc.compute.ops import Ops
    from svc.compute.runner import ModelRunner

DEVICE_KEYS = ("device", "threads", "cpu_level", "activations", "exact", "kv_type", "page_tokens", "max_step_tokens")


def open_device(config: Config) -> "Ops":
    """The backend for `config.device`. BackendUnavailableError if it cannot run here."""
    from svc.log import configure_logging
    from svc.model_loading import choose_ops

    return choose_ops(config, configure_logging("warning", "console"))


def load_bare(
    config: Config,
    opened: "OpenedModel",
    ops: "Ops",
    *,
    num_rows: int,
    num_pages: int,
    num_snapshots: int = 0,
    quiet: bool = False,
    on_disk: bool = True,
) -> "ModelRunner":
    """Loads the opened model with `num_rows` slots, `num_pages` KV pages and `num_snapshots` snapshots.

    Warnings and, unless `quiet`, progress go to stderr. `on_disk`: the weights are in a file, not in memory already.
    ModelFileError; MemoryBudgetError if there is too little free memory.
    """
    from svc.compute.cache_plan import step_sizes
    from svc.compute.runner import ModelRunner
    from svc.model.arch import load_model

    for remark in opened.remarks:
        print(f"headrace: warning: {remark.reason}", file=sys.stderr)
    sizes = step_sizes(config, opened.config, num_rows)
    plan = MemoryPlan(sizes.layout, num_pages, num_rows, num_snapshots)
    on_device = ops.bytes_for_caches(sizes, opened.file.file_bytes)
    free_bytes = available_memory_bytes() if on_device is None else on_device
    if plan.total_bytes > free_bytes:
        raise MemoryBudgetError(
            f"{num_rows} sequences at once, {plan.kv_tokens} tokens in all, need {plan.total_bytes} bytes, "
            f"but {free_bytes} are free: take fewer or shorter ones"
        )
    weights_bytes = opened.file.file_bytes if on_device is None and on_disk else 0
    too_large = weights_remark(weights_bytes=weights_bytes, caches_bytes=plan.total_bytes, available_bytes=free_bytes)
    if too_large:
        print(f"headrace: warning: {too_large}", file=sys.stderr)
    with ProgressLine("loading", max(1, opened.file.file_bytes), quiet=quiet) as line:
        read_in = on_disk and too_large is None
        model = load_model(opened.source, opened.config, ops, lambda done, total: line.update(done), read_in=read_in)
    return ModelRunner(model, ops, plan, config.max_step_tokens)
