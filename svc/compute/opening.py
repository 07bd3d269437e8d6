"""A model file as the settings want it: metadata replaced, its numbers read, the length of its context decided."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from svc.compute.runner import open_model
from svc.config import BY_KEY, Config
from svc.errors import ConfigError
from svc.gguf.gguf_file import GgufFile
from svc.gguf.header import Scalar, shown
from svc.gguf.overrides import parse_overrides
from svc.gguf.tensors import WeightSource
from svc.memory.auto_budget import FREE_SHARE, resolve_budgets, resolve_host_budgets, weights_remark
from svc.memory.plan import MemoryPlan, plan_memory, with_host_tier
from svc.model.model_config import ModelConfig

# Settings that stand for a metadata key, as `{architecture}.rope.` + this. Their defaults leave the file's value.
ROPE_KEYS = {
    "rope_scaling": "scaling.type",
    "rope_scale": "scaling.factor",
    "rope_freq_base": "freq_base",
    "yarn_orig_ctx": "scaling.original_context_length",
    "yarn_ext_factor": "scaling.yarn_ext_factor",
    "yarn_attn_factor": "scaling.yarn_attn_factor",
    "yarn_beta_slow": "scaling.yarn_beta_slow",
    "yarn_beta_fast": "scaling.yarn_beta_fast",
}
YARN_ONLY = ("yarn_ext_factor", "yarn_attn_factor", "yarn_beta_slow", "yarn_beta_fast")


class Remark(NamedTuple):
    """What the operator should be told: a stable word for the log, and one sentence."""

    event: str
    reason: str


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """What there is to know before a weight is touched."""

    file: GgufFile  # its metadata is what everybody reads: tokenizer and chat template too
    config: ModelConfig
    source: WeightSource
    context_tokens: int  # longest sequence served
    remarks: tuple[Remark, ...]


def open_configured(config: Config) -> OpenedModel:
    """Opens `config.model`. ModelFileError, or ConfigError for a setting that this file cannot take."""
    assert config.model is not None, "the command line asks for a model"
    overrides = parse_overrides(config.override_kv)
    plain = GgufFile.open(config.model)
    file = plain.with_metadata(overrides)
    file = file.with_metadata(rope_overrides(config, file))
    model, source = open_model(file)
    context_tokens = config.ctx or model.full_context
    remarks = (
        *(_added(plain, key) for key in overrides if key not in plain.metadata),
        *rope_without_effect(config, model),
        *beyond_training(context_tokens, model),
    )
    return OpenedModel(file, model, source, context_tokens, remarks)


def plan_caches(
    config: Config, opened: OpenedModel, device_bytes: int | None, available_bytes: int
) -> tuple[MemoryPlan, str | None]:
    """Budgets to counts, in both tiers, and what to say of weights that the machine's memory cannot hold.

    `device_bytes`: what a device with memory of its own has for caches; None where they stand in the machine's, of which
    `available_bytes` are free. MemoryBudgetError says what would fit.
    """
    beside_gpu, weights_bytes = device_bytes is not None, opened.file.file_bytes
    layout = opened.config.memory_layout(config.page_tokens, config.kv_type)
    kv_bytes, snapshot_bytes = resolve_budgets(
        layout,
        kv_bytes=None if config.kv_bytes == "auto" else config.kv_bytes,
        snapshot_bytes=None if config.snapshot_bytes == "auto" else config.snapshot_bytes,
        available_bytes=available_bytes if device_bytes is None else device_bytes,
        weights_bytes=0 if beside_gpu else weights_bytes,
        num_rows=config.max_slots,
        context_tokens=opened.context_tokens,
        free_share=1.0 if beside_gpu else FREE_SHARE,
    )
    sizes = {"num_rows": config.max_slots, "context_tokens": opened.context_tokens}
    plan = plan_memory(layout, kv_bytes=kv_bytes, snapshot_bytes=snapshot_bytes, **sizes)
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


def rope_overrides(config: Config, file: GgufFile) -> dict[str, Scalar]:
    """The metadata keys that the rope settings stand for; ConfigError for values that make no scaling of this file."""
    prefix = f"{file.architecture}.rope."
    given = {key: getattr(config, key) for key in ROPE_KEYS if _is_given(config, key)}
    for key, least in (("rope_freq_base", 1), ("yarn_attn_factor", 0), ("yarn_beta_slow", 0), ("yarn_beta_fast", 0)):
        if given.get(key, math.inf) <= least:
            raise ConfigError(f"{key} must be above {least}, not {given[key]:g}")
    overrides = {prefix + ROPE_KEYS[key]: value for key, value in given.items()}
    future = {**file.metadata, **overrides}
    kind, has_factor = future.get(f"{prefix}scaling.type"), f"{prefix}scaling.factor" in future
    if config.rope_scaling in ("linear", "yarn") and not has_factor:
        raise ConfigError(f"rope_scaling is {kind}, but neither rope_scale nor the model file says by what factor")
    if kind == "yarn" and given.get("rope_scale", math.inf) < 1:
        raise ConfigError(f"rope_scale must be at least 1 with YaRN, not {config.rope_scale:g}")
    return overrides


def rope_without_effect(config: Config, model: ModelConfig) -> list[Remark]:
    """Rope settings that were changed from their default and do nothing."""
    scaling = model.rope_scaling
    if scaling is None:
        idle = [key for key in ("rope_scale", "yarn_orig_ctx", *YARN_ONLY) if _is_given(config, key)]
    else:
        idle = [key for key in YARN_ONLY if _is_given(config, key)] if scaling.kind == "linear" else []
    kind = scaling.kind if scaling else "none"
    return [Remark("option_without_effect", f"{key} does nothing: the rope scaling is {kind}") for key in idle]


def beyond_training(context_tokens: int, model: ModelConfig) -> list[Remark]:
    """Whether the context (tokens) is longer than the model is made for: an empty list where it is not."""
    made_for, scaling = model.full_context, model.rope_scaling
    if context_tokens <= made_for or not model.num_attention_layers:
        return []
    if scaling is not None and scaling.context >= model.context_length:
        limit, remedy = f"its rope scaling ({scaling.kind}, factor {scaling.factor:g}) is made for", ""
    else:
        limit, factor = "the model was trained to", math.ceil(context_tokens / made_for)
        remedy = f" (rope_scaling = yarn with rope_scale = {factor} is made for that)"
    reason = f"ctx is {context_tokens}, but {limit} {made_for} tokens: beyond, answers get worse{remedy}"
    return [Remark("beyond_training", reason)]


def _added(file: GgufFile, key: str) -> Remark:
    return Remark("new_metadata_key", f"override_kv: {file.path} has no key {shown(key)}; it is added")


def _is_given(config: Config, key: str) -> bool:
    """Any negative number means what -1 means: not set."""
    value = getattr(config, key)
    return bool(value != BY_KEY[key].default and (isinstance(value, str) or value >= 0))
