"""Opens a model file under the settings: metadata overridden, configuration read, context length decided."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from svc.compute.cpu.mapped_files import name_mapped_files
from svc.config import BY_KEY, Config
from svc.errors import ConfigError
from svc.gguf.gguf_file import GgufFile
from svc.gguf.header import Scalar, shown
from svc.gguf.overrides import parse_overrides
from svc.gguf.tensors import WeightSource
from svc.model.arch import read_config
from svc.model.model_config import ModelConfig

# Settings that override the metadata key `{architecture}.rope.` + this. Their defaults keep the file's value.
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
    """A remark for the operator: a stable word for the log, and one sentence."""

    event: str
    reason: str


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model file, opened and checked; no weight has been read."""

    file: GgufFile  # with the overridden metadata, which tokenizer and chat template read too
    config: ModelConfig
    source: WeightSource
    context_tokens: int  # longest sequence served
    remarks: tuple[Remark, ...]


def open_model(file: GgufFile | Path | str) -> tuple[ModelConfig, WeightSource]:
    """Reads the header of a model file and no weight. ModelFileError if the model cannot be served.

    Then: `plan_memory(config.memory_layout(...), ...)`, `load_model(source, config, ops)`, `ModelRunner(model, ops, plan, ...)`.
    """
    opened = file if isinstance(file, GgufFile) else GgufFile.open(Path(file))
    return read_config(opened), WeightSource(opened)


def open_configured(config: Config) -> OpenedModel:
    """Opens `config.model`. ModelFileError, or ConfigError for a setting that this file cannot take."""
    assert config.model is not None, "the command line asks for a model"
    overrides = parse_overrides(config.override_kv)
    plain = GgufFile.open(config.model)
    name_mapped_files(plain.mapped_ranges())
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


def rope_overrides(config: Config, file: GgufFile) -> dict[str, Scalar]:
    """The metadata keys that the rope settings override. ConfigError for values that give this file no valid scaling."""
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
    """Rope settings that differ from their default and have no effect."""
    scaling = model.rope_scaling
    if scaling is None:
        idle = [key for key in ("rope_scale", "yarn_orig_ctx", *YARN_ONLY) if _is_given(config, key)]
    else:
        idle = [key for key in YARN_ONLY if _is_given(config, key)] if scaling.kind == "linear" else []
    kind = scaling.kind if scaling else "none"
    return [Remark("option_without_effect", f"{key} does nothing: the rope scaling is {kind}") for key in idle]


def beyond_training(context_tokens: int, model: ModelConfig) -> list[Remark]:
    """A remark if the context (tokens) is longer than the model supports."""
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
    """Any negative number means "not set", as -1 does."""
    value = getattr(config, key)
    return bool(value != BY_KEY[key].default and (isinstance(value, str) or value >= 0))
