"""A loaded model: embedding, a list of (mixer, feed-forward) layers, and the head. All architectures have this form."""

from dataclasses import dataclass

from svc.model.layers.attention import AttentionWeights
from svc.model.layers.delta import DeltaWeights
from svc.model.layers.dense_ffn import DenseFfnWeights
from svc.model.layers.loading import Vector, Weight
from svc.model.layers.moe_ffn import MoeFfnWeights
from svc.model.layers.rope import RopeTable
from svc.model.model_config import ModelConfig

Mixer = DeltaWeights | AttentionWeights
Ffn = DenseFfnWeights | MoeFfnWeights


@dataclass(frozen=True, slots=True)
class Model:
    """Everything a backend needs for a forward pass. The rope table grows on demand; the rest is frozen."""

    config: ModelConfig
    embedding: Weight  # [V, C]
    layers: tuple[tuple[Mixer, Ffn], ...]
    output_norm: Vector  # [C]
    output: Weight  # [V, C]; the embedding itself where the file ties them
    rope: RopeTable
    unused_tensors: tuple[str, ...] = ()  # in the file, not taken and not known to be ignorable: one warning lists them
