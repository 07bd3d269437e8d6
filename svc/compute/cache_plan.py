"""Memory budgets of the settings turned into numbers of pages and snapshots, for a model that is open."""

from dataclasses import replace

from svc.compute.cuda.delta_chunks import STEP_TOKENS
from svc.compute.model_file import OpenedModel
from svc.compute.ops import StepSizes
from svc.compute.runner import MAX_LOGIT_ROWS
from svc.config import Config
from svc.errors import ConfigError
from svc.memory.auto_budget import FREE_SHARE, resolve_budgets, resolve_host_budgets, weights_remark
from svc.memory.layout import KV_BLOCK, KV_BLOCK_BYTES, MemoryLayout
from svc.memory.plan import MemoryPlan, plan_memory, with_host_tier
from svc.model.model_config import ModelConfig


def layout_of(config: Config, model: ModelConfig) -> MemoryLayout:
    """ConfigError if the model's heads are no whole blocks of the type of pages."""
    if config.kv_type in KV_BLOCK_BYTES and model.num_attention_layers and model.head_dim % KV_BLOCK:
        raise ConfigError(
            f"kv_type = {config.kv_type!r} has blocks of {KV_BLOCK}, but the model's heads have {model.head_dim} numbers: use f16"
        )
    return model.memory_layout(config.page_tokens, config.kv_type, config.snapshot_type)


def step_sizes(config: Config, model: ModelConfig, num_rows: int) -> StepSizes:
    """The largest step of a server with `num_rows` slots."""
    layout = layout_of(config, model)
    return StepSizes(model, layout, num_rows, config.max_step_tokens, MAX_LOGIT_ROWS)


def plan_caches(
    config: Config, opened: OpenedModel, device_bytes: int | None, available_bytes: int
) -> tuple[MemoryPlan, str | None]:
    """Numbers of pages and snapshots in both tiers, and a remark if the machine's memory cannot hold the weights as well.

    `device_bytes`: memory for caches on a device with memory of its own; None if they are in the machine's memory, of which
    `available_bytes` are free. MemoryBudgetError says what would fit.
    """
    beside_gpu, weights_bytes = device_bytes is not None, opened.file.file_bytes
    # The last token is checked beside the drafts; a step of the cuda kernels holds that many.
    most_tokens = min(config.draft_tokens + 1, STEP_TOKENS if beside_gpu else config.max_step_tokens)
    journal_tokens = most_tokens if config.draft_tokens else 0
    layout = layout_of(config, opened.config)
    kv_bytes, snapshot_bytes = resolve_budgets(
        layout,
        kv_bytes=None if config.kv_bytes == "auto" else config.kv_bytes,
        snapshot_bytes=None if config.snapshot_bytes == "auto" else config.snapshot_bytes,
        available_bytes=available_bytes if device_bytes is None else device_bytes,
        weights_bytes=0 if beside_gpu else weights_bytes,
        num_rows=config.max_slots,
        journal_tokens=journal_tokens,
        context_tokens=opened.context_tokens,
        free_share=1.0 if beside_gpu else FREE_SHARE,
    )
    sizes = {"num_rows": config.max_slots, "context_tokens": opened.context_tokens}
    plan = replace(plan_memory(layout, kv_bytes=kv_bytes, snapshot_bytes=snapshot_bytes, **sizes), journal_tokens=journal_tokens)
    host_kv_bytes, host_snapshot_bytes = resolve_host_budgets(
        plan,
        host_kv_bytes=None if config.host_kv_bytes == "auto" else config.host_kv_bytes,
        host_snapshot_bytes=None if config.host_snapshot_bytes == "auto" else config.host_snapshot_bytes,
        available_bytes=available_bytes if beside_gpu else max(available_bytes - plan.total_bytes, 0),
        beside_gpu=beside_gpu,
    )
    plan = with_host_tier(plan, host_kv_bytes=host_kv_bytes, host_snapshot_bytes=host_snapshot_bytes)
    if beside_gpu:
        return plan, None
    caches_bytes = plan.total_bytes + plan.host_bytes
    return plan, weights_remark(weights_bytes=weights_bytes, caches_bytes=caches_bytes, available_bytes=available_bytes)
