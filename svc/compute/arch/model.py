"""A loaded model: embedding, a list of (mixer, feed-forward) layers, and the head. All architectures come out in this form."""

from dataclasses import dataclass

from svc.compute.layers.attention import AttentionWeights
from svc.compute.layers.delta import DeltaWeights
from svc.compute.layers.dense_ffn import DenseFfnWeights
from svc.compute.layers.moe_ffn import MoeFfnWeights
from svc.compute.layers.rope import RopeTable
from svc.compute.model_config import ModelConfig
from svc.compute.ops import Array, Caches, Ops, Weight
from svc.compute.step_inputs import StepInputs

Mixer = DeltaWeights | AttentionWeights
Ffn = DenseFfnWeights | MoeFfnWeights


@dataclass(frozen=True, slots=True)
class Model:
    """What a room needs to run a forward pass. The rope table grows on demand; the rest is frozen."""

    config: ModelConfig
    embedding: Weight  # [V, C]
    layers: tuple[tuple[Mixer, Ffn], ...]
    output_norm: Array  # vector [C]
    output: Weight  # [V, C]; the embedding itself where the file ties them
    rope: RopeTable
    unused_tensors: tuple[str, ...] = ()  # in the file, taken by no loader and not known to be ignorable: worth one warning

    def forward(self, ops: Ops, hidden: Array, inputs: StepInputs, caches: Caches) -> None:
        """All tokens of a step through all layers; hidden [T, C] is overwritten. The results stand in the live rows and cells."""
        ops.embed(hidden, self.embedding, inputs)
        for mixer, ffn in self.layers:
            if isinstance(mixer, DeltaWeights):
                ops.delta_mixer(hidden, mixer, inputs, caches)
            else:
                ops.attention_mixer(hidden, mixer, inputs, caches)
            if isinstance(ffn, MoeFfnWeights):
                ops.moe_ffn(hidden, ffn, inputs)
            else:
                ops.dense_ffn(hidden, ffn, inputs)
        ops.final_hidden(hidden, self.output_norm, self.config.epsilon, inputs, caches)
