"""ModelConfig: the sizes of a model. Every number comes from the file (docs/model_math.md)."""

import math
from dataclasses import dataclass

from svc.errors import ModelFileError
from svc.gguf.gguf_file import GgufFile
from svc.memory.layout import MemoryLayout
from svc.model.layers.rope import RopeScaling
from svc.model.not_computed import refuse_unknown_computations

# Tensors of a multimodal model that text does not need.
OTHER_SENSES = ("v.", "mm.", "a.")
DEFAULT_ROPE_BASE = 10_000.0  # the format's default
DEFAULT_ATTENTION_INTERVAL = 4  # of hybrid files that give neither `recurrent_layers` nor an interval


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties that follow from the architecture's name alone."""

    hybrid: bool  # has DeltaNet layers
    experts: bool  # feed-forward layers are mixtures of experts
    shared_expert: bool
    rotary_share: float  # rotary part of a head if the file does not say


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of one model. MTP layers are counted apart and are no part of `num_layers`."""

    name: str
    architecture: str
    num_layers: int
    num_mtp_layers: int
    hidden_size: int
    vocab_size: int
    context_length: int  # tokens that the model was trained for; more may be served (`full_context`)
    epsilon: float  # of all norms and of the L2 norm
    recurrent_layers: tuple[bool, ...]  # [num_layers]: DeltaNet or full attention

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dims: int
    rope_base: float
    rope_scaling: RopeScaling | None

    feed_forward_size: int  # 0 with experts
    num_experts: int  # 0 without
    num_experts_used: int
    expert_size: int
    shared_expert_size: int  # 0 without a shared expert
    expert_weights_scale: float  # 1.0 = none

    conv_kernel: int  # this and the rest are 0 without DeltaNet layers
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int

    @classmethod
    def read(cls, file: GgufFile, traits: Traits) -> "ModelConfig":
        """Reads a file. ModelFileError naming the key or tensor that does not fit this kind of model."""
        return _Reader(file, traits).read()

    @property
    def full_context(self) -> int:
        """The longest sequence the model supports, in tokens: as trained, or as extended by rope scaling."""
        return self.context_length if self.rope_scaling is None else max(self.context_length, self.rope_scaling.context)

    @property
    def num_delta_layers(self) -> int:
        return sum(self.recurrent_layers)

    @property
    def num_attention_layers(self) -> int:
        return self.num_layers - self.num_delta_layers

    @property
    def conv_channels(self) -> int:
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim

    def mixer_index(self, layer: int) -> int:
        """The number of a layer among the layers of its kind: the place of its part of the caches."""
        kind = self.recurrent_layers[layer]
        return sum(other == kind for other in self.recurrent_layers[:layer])

    def memory_layout(self, page_tokens: int, kv_type: str, snapshot_type: str = "f32") -> MemoryLayout:
        hybrid = self.num_delta_layers > 0
        return MemoryLayout(
            hidden_size=self.hidden_size,
            num_attention_layers=self.num_attention_layers,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            num_delta_layers=self.num_delta_layers,
            num_value_heads=self.num_value_heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            conv_channels=self.conv_channels,
            conv_rows=self.conv_kernel - 1 if hybrid else 0,
            page_tokens=page_tokens,
            kv_type=kv_type,
            snapshot_type=snapshot_type,
            even_tokens=self.even_tokens,
        )

    @property
    def even_tokens(self) -> float:
        """The position at which attention over all before it costs as much as the rest of a token's work.

        In multiplications, without the output matrix, which prompts need once. Infinite without attention layers.
        """
        hidden, queries, values = self.hidden_size, self.num_heads * self.head_dim, self.num_value_heads * self.value_dim
        gate = self.num_delta_layers > 0  # hybrids gate the output of attention, by as many columns again as there are queries
        attention = hidden * (queries * (2 + gate) + 2 * self.num_kv_heads * self.head_dim)
        delta = hidden * (self.conv_channels + 2 * values + 2 * self.num_value_heads)
        delta += 4 * values * self.key_dim  # decay, read, update and read again of a state
        width = self.feed_forward_size or self.num_experts_used * self.expert_size + self.shared_expert_size
        feed_forward = hidden * (3 * width + self.num_experts)
        rest = self.num_layers * feed_forward + self.num_attention_layers * attention + self.num_delta_layers * delta
        grows = self.num_attention_layers * 2 * queries  # scores and their sum, for each position before
        return rest / grows if grows else math.inf


class _Reader:
    """Reads the keys of one file; a class only to hold the file and the prefix of its keys."""

    def __init__(self, file: GgufFile, traits: Traits) -> None:
        self._file = file
        self._traits = traits
        self._refuse_unservable()
        refuse_unknown_computations(file, experts=traits.experts)
        self._blocks = self._size("block_count")
        if self._blocks > len(file.tensors):
            raise self._bad("block_count", f"is {self._blocks} in a file of {len(file.tensors)} tensors")
        self._mtp = file.get_int(self._key("nextn_predict_layers"), 0)
        self._trunk = self._blocks - self._mtp
        if self._mtp < 0 or self._trunk < 1:
            raise self._bad("nextn_predict_layers", f"is {self._mtp} of {self._blocks} layers, which leaves none to run")
        self._recurrent = self._recurrent_layers()

    def read(self) -> ModelConfig:
        file, traits = self._file, self._traits
        hidden = self._size("embedding_length")
        vocab = self._vocab_size(hidden)
        heads = self._per_attention_layer("attention.head_count")
        kv_heads = self._per_attention_layer("attention.head_count_kv", heads)
        if heads % kv_heads:
            raise self._bad("attention.head_count", f"is {heads}, not a multiple of the {kv_heads} KV heads")
        head_dim = self._head_dim(hidden, heads)
        experts = self._experts() if traits.experts else {}
        delta = self._delta() if traits.hybrid else {}
        epsilon = file.get_float(self._key("attention.layer_norm_rms_epsilon"))
        if not 0 <= epsilon < 1:
            raise self._bad("attention.layer_norm_rms_epsilon", f"is {epsilon}")
        return ModelConfig(
            name=file.get_str("general.name", file.stem),
            architecture=file.architecture,
            num_layers=self._trunk,
            num_mtp_layers=self._mtp,
            hidden_size=hidden,
            vocab_size=vocab,
            context_length=self._size("context_length"),
            epsilon=epsilon,
            recurrent_layers=self._recurrent,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            rotary_dims=self._rotary_dims(head_dim),
            rope_base=self._rope_base(),
            rope_scaling=self._rope_scaling(),
            feed_forward_size=0 if traits.experts else self._per_layer("feed_forward_length"),
            num_experts=experts.get("count", 0),
            num_experts_used=experts.get("used", 0),
            expert_size=experts.get("size", 0),
            shared_expert_size=experts.get("shared", 0),
            expert_weights_scale=self._expert_scale(),
            conv_kernel=delta.get("conv_kernel", 0),
            num_key_heads=delta.get("key_heads", 0),
            num_value_heads=delta.get("value_heads", 0),
            key_dim=delta.get("state", 0),
            value_dim=delta.get("state", 0),
        )

    # -- the file as a whole ----------------------------------------------------------------------------------------------------
    def _refuse_unservable(self) -> None:
        names = self._file.tensors
        for name in names:
            if name.endswith((".scale", ".input_scale")) and not name.startswith(OTHER_SENSES):
                raise ModelFileError(f"{self._file.path}: the tensor {name} is a separate scale, which is not supported")
        if "blk.0.attn_norm.weight" not in names and any(".nextn." in name for name in names):
            raise ModelFileError(
                f"{self._file.path}: the file holds only the MTP head of a model (no blk.0.attn_norm.weight): "
                "it cannot be served as a main model"
            )

    def _vocab_size(self, hidden: int) -> int:
        embedding = self._file.tensors.get("token_embd.weight")
        if embedding is None:
            raise ModelFileError(f"{self._file.path}: the tensor token_embd.weight is missing")
        if len(embedding.shape) != 2 or embedding.shape[1] != hidden:
            raise ModelFileError(
                f"{self._file.path}: the tensor token_embd.weight has the shape {list(embedding.shape)} "
                f"where {self._key('embedding_length')} is {hidden}"
            )
        num_tokens = len(self._file.get_strs("tokenizer.ggml.tokens", []))
        if num_tokens > embedding.shape[0]:
            raise ModelFileError(
                f"{self._file.path}: tokenizer.ggml.tokens has {num_tokens} entries "
                f"but token_embd.weight only {embedding.shape[0]} rows"
            )
        return embedding.shape[0]

    # -- groups of keys ---------------------------------------------------------------------------------------------------------
    def _recurrent_layers(self) -> tuple[bool, ...]:
        """The array wins over the interval; MTP layers are the last ones and are cut off."""
        if not self._traits.hybrid:
            return (False,) * self._trunk
        given = self._file.get_bools(self._key("attention.recurrent_layers"), None, length=self._blocks)
        if given is not None:
            return tuple(given[: self._trunk])
        interval = self._file.get_int(self._key("full_attention_interval"), DEFAULT_ATTENTION_INTERVAL)
        if interval < 1:
            raise self._bad("full_attention_interval", f"is {interval}")
        return tuple((layer + 1) % interval != 0 for layer in range(self._trunk))

    def _head_dim(self, hidden: int, heads: int) -> int:
        head_dim = self._size("attention.key_length", hidden // heads)
        value_length = self._size("attention.value_length", head_dim)
        if value_length != head_dim:
            raise self._bad("attention.value_length", f"is {value_length} but the key length is {head_dim}: they must be equal")
        return head_dim

    def _rotary_dims(self, head_dim: int) -> int:
        dims = self._size("rope.dimension_count", int(head_dim * self._traits.rotary_share))
        if dims % 2 or dims > head_dim:
            raise self._bad("rope.dimension_count", f"is {dims}, which is not an even part of a head of {head_dim}")
        return dims

    def _rope_base(self) -> float:
        base = self._file.get_float(self._key("rope.freq_base"), DEFAULT_ROPE_BASE)
        if not (math.isfinite(base) and base > 1):
            raise self._bad("rope.freq_base", f"is {base}")
        return base

    def _rope_scaling(self) -> RopeScaling | None:
        """A factor without a type means a linear one, as llama.cpp reads such files."""
        has_factor = self._key("rope.scaling.factor") in self._file.metadata
        kind = self._file.get_str(self._key("rope.scaling.type"), "linear" if has_factor else "none")
        if kind == "none":
            return None
        if kind not in ("linear", "yarn"):
            raise self._bad("rope.scaling.type", f"is {kind!r}; supported are 'none', 'linear' and 'yarn'")
        factor = self._file.get_float(self._key("rope.scaling.factor"))
        if not (math.isfinite(factor) and (factor >= 1 or (kind == "linear" and factor > 0))):
            raise self._bad("rope.scaling.factor", f"is {factor}")
        original = self._size("rope.scaling.original_context_length", self._size("context_length"))
        attention = self._scaling("attn_factor", 1.0, above=0.0)
        if kind == "linear":
            return RopeScaling("linear", factor, original, extrapolation=0.0, attention_factor=attention)
        extrapolation = self._scaling("yarn_ext_factor", 1.0)
        return RopeScaling(
            "yarn",
            factor,
            original,
            extrapolation=1.0 if extrapolation < 0 else extrapolation,  # negative: not set, as in llama.cpp
            attention_factor=attention * self._scaling("yarn_attn_factor", 1.0, above=0.0),
            beta_fast=self._scaling("yarn_beta_fast", 32.0, above=0.0),
            beta_slow=self._scaling("yarn_beta_slow", 1.0, above=0.0),
        )

    def _scaling(self, suffix: str, default: float, *, above: float = -math.inf) -> float:
        """A key of the rope scaling; a finite number."""
        value = self._file.get_float(self._key(f"rope.scaling.{suffix}"), default)
        if not (math.isfinite(value) and value > above):
            raise self._bad(f"rope.scaling.{suffix}", f"is {value}")
        return value

    def _experts(self) -> dict[str, int]:
        count, used = self._size("expert_count"), self._size("expert_used_count")
        if used > count:
            raise self._bad("expert_used_count", f"is {used} of {count} experts")
        size = self._per_layer("expert_feed_forward_length")
        shared = self._per_layer("expert_shared_feed_forward_length") if self._traits.shared_expert else 0
        return {"count": count, "used": used, "size": size, "shared": shared}

    def _expert_scale(self) -> float:
        """0 and 1 both mean no scale."""
        scale = self._file.get_float(self._key("expert_weights_scale"), 1.0) if self._traits.experts else 1.0
        if not math.isfinite(scale):
            raise self._bad("expert_weights_scale", f"is {scale}")
        return scale or 1.0

    def _delta(self) -> dict[str, int]:
        state, key_heads, value_heads = (
            self._size("ssm.state_size"),
            self._size("ssm.group_count"),
            self._size("ssm.time_step_rank"),
        )
        if value_heads % key_heads:
            raise self._bad("ssm.time_step_rank", f"is {value_heads}, not a multiple of the {key_heads} key heads")
        inner = self._size("ssm.inner_size", value_heads * state)
        if inner != value_heads * state:
            raise self._bad("ssm.inner_size", f"is {inner}, not {value_heads} value heads of {state}")
        kernel = self._size("ssm.conv_kernel")
        if kernel < 2:
            raise self._bad("ssm.conv_kernel", f"is {kernel}; at least 2 taps are needed")
        return {"state": state, "key_heads": key_heads, "value_heads": value_heads, "conv_kernel": kernel}

    # -- single keys ------------------------------------------------------------------------------------------------------------
    def _key(self, suffix: str) -> str:
        return f"{self._file.architecture}.{suffix}"

    def _bad(self, suffix: str, what: str) -> ModelFileError:
        return ModelFileError(f"{self._file.path}: the metadata key {self._key(suffix)} {what}")

    def _size(self, suffix: str, default: int | None = None) -> int:
        """A positive integer."""
        value = self._file.get_int(self._key(suffix)) if default is None else self._file.get_int(self._key(suffix), default)
        if value < 1:
            raise self._bad(suffix, f"is {value}; it must be positive")
        return value

    def _per_layer(self, suffix: str) -> int:
        """One number, or an array with an entry per layer; the entries of the trunk must agree."""
        return self._agreed(suffix, self._file.get_ints(self._key(suffix), length=self._blocks)[: self._trunk])

    def _per_attention_layer(self, suffix: str, default: int | None = None) -> int:
        """As above, for the attention layers only (files have 0 for the others)."""
        fallback = None if default is None else [default] * self._blocks
        if fallback is None:
            values = self._file.get_ints(self._key(suffix), length=self._blocks)
        else:
            values = self._file.get_ints(self._key(suffix), fallback, length=self._blocks)
        chosen = [value for value, recurrent in zip(values, self._recurrent, strict=False) if not recurrent]
        return self._agreed(suffix, chosen or values[: self._trunk])

    def _agreed(self, suffix: str, values: list[int]) -> int:
        if len(set(values)) != 1:
            raise self._bad(suffix, f"differs between layers ({sorted(set(values))}), which is not supported")
        if values[0] < 1:
            raise self._bad(suffix, f"is {values[0]}; it must be positive")
        return values[0]
