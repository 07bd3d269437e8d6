"""What a step's work is counted for: a model whose weights are sizes and types only, from a file or by name.

Names stand for published sizes (the text part; the layers of MTP heads are left out). A recipe says how their matrices are stored.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from svc.cli.bench.shapes import SHAPES
from svc.compute.model_file import open_model
from svc.compute.ops import Ops
from svc.gguf.gguf_file import GgufTensor
from svc.model.arch import load_model
from svc.model.arch.model import Ffn, Mixer, Model
from svc.model.layers.attention import AttentionWeights
from svc.model.layers.delta import DeltaWeights
from svc.model.layers.dense_ffn import DenseFfnWeights
from svc.model.layers.moe_ffn import MoeFfnWeights
from svc.model.layers.rope import RopeTable
from svc.model.model_config import ModelConfig
from tests.bench.roofline.kernels import Matrix, WeightType


@dataclass(frozen=True, slots=True)
class Recipe:
    """Types of a named model's matrices. Routers are float32 in GGUF files."""

    body: WeightType
    head: WeightType  # output and embedding
    router: WeightType


def recipe(name: str) -> Recipe:
    """One GGUF type for all matrices; or "q4_k_m": 4.85 bits a weight, what files of that mix (Q4_K, some Q6_K) come to on average,
    with a head in Q6_K."""
    router = WeightType.of("F32")
    if name == "q4_k_m":
        return Recipe(WeightType("Q4_K mix", 4.85 / 8, is_float=False), WeightType.of("Q6_K"), router)
    return Recipe(WeightType.of(name), WeightType.of(name), router)


# ---- named shapes

NAMED = {name: SHAPES[name] for name in ("80b-a3b", "35b-a3b", "27b", "9b")}


def named_model(name: str, stored: Recipe) -> Model:
    """KeyError for a name that is not in NAMED."""
    config = NAMED[name]
    head = Matrix(stored.head, config.vocab_size, config.hidden_size)
    layers = tuple(_layer(config, stored, layer) for layer in range(config.num_layers))
    rope = RopeTable.of(config.rotary_dims, config.rope_base, config.rope_scaling)
    return Model(config=config, embedding=head, layers=layers, output_norm=None, output=head, rope=rope)


def _layer(config: ModelConfig, stored: Recipe, layer: int) -> tuple[Mixer, Ffn]:
    def matrix(rows: int, columns: int, num_experts: int | None = None) -> Matrix:
        return Matrix(stored.body, rows, columns, num_experts)

    mixer = _delta(config, matrix, layer) if config.recurrent_layers[layer] else _attention(config, matrix, layer)
    return mixer, _experts(config, stored, matrix) if config.num_experts else _dense(config, matrix)


def _delta(config: ModelConfig, matrix: Callable[..., Matrix], layer: int) -> DeltaWeights:
    width, heads, values = config.hidden_size, config.num_value_heads, config.num_value_heads * config.value_dim
    return DeltaWeights(
        index=config.mixer_index(layer),
        num_key_heads=config.num_key_heads,
        num_value_heads=heads,
        key_dim=config.key_dim,
        value_dim=config.value_dim,
        conv_kernel=config.conv_kernel,
        epsilon=config.epsilon,
        grouped_heads=config.architecture == "qwen3next",
        input_norm=None,
        qkv=matrix(config.conv_channels, width),
        gate=matrix(values, width),
        beta=matrix(heads, width),
        alpha=matrix(heads, width),
        conv=None,
        a=None,
        dt_bias=None,
        output_norm=None,
        output=matrix(width, values),
    )


def _attention(config: ModelConfig, matrix: Callable[..., Matrix], layer: int) -> AttentionWeights:
    width, rows, kv_rows = config.hidden_size, config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return AttentionWeights(
        index=config.mixer_index(layer),
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        rotary_dims=config.rotary_dims,
        epsilon=config.epsilon,
        gated=True,
        input_norm=None,
        query=matrix(2 * rows, width),
        key=matrix(kv_rows, width),
        value=matrix(kv_rows, width),
        query_norm=None,
        key_norm=None,
        output=matrix(width, rows),
    )


def _dense(config: ModelConfig, matrix: Callable[..., Matrix]) -> DenseFfnWeights:
    width, size = config.hidden_size, config.feed_forward_size
    return DenseFfnWeights(
        epsilon=config.epsilon, input_norm=None, gate=matrix(size, width), up=matrix(size, width), down=matrix(width, size)
    )


def _experts(config: ModelConfig, stored: Recipe, matrix: Callable[..., Matrix]) -> MoeFfnWeights:
    width, count, size, shared = config.hidden_size, config.num_experts, config.expert_size, config.shared_expert_size
    return MoeFfnWeights(
        num_experts=count,
        num_used=config.num_experts_used,
        weights_scale=config.expert_weights_scale,
        epsilon=config.epsilon,
        input_norm=None,
        router=Matrix(stored.router, count, width),
        gate=matrix(size, width, count),
        up=matrix(size, width, count),
        down=matrix(width, size, count),
        shared_router=None,
        shared_gate=matrix(shared, width),
        shared_up=matrix(shared, width),
        shared_down=matrix(width, shared),
    )


# ---- files


class _Sizes:
    """Takes the place of a backend while a file is loaded, and keeps only sizes."""

    copies_weights = False

    def weight(self, tensor: GgufTensor) -> Matrix:
        *stack, rows, columns = tensor.shape
        return Matrix(WeightType.of(tensor.type), rows, columns, stack[0] if stack else None)

    def vector(self, values: Any) -> None:
        return None


def file_model(path: Path) -> Model:
    """Nothing but metadata and small vectors is read. ModelFileError where the file cannot be served."""
    config, source = open_model(path)
    return load_model(source, config, cast(Ops, _Sizes()), read_in=False)
