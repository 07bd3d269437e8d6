"""One forward pass: all tokens of a step through all layers, with the operations of any backend."""

from svc.compute.ops import Array, Caches, Ops
from svc.compute.step_inputs import StepInputs
from svc.model.arch.model import Model
from svc.model.layers.delta import DeltaWeights
from svc.model.layers.moe_ffn import MoeFfnWeights


def forward(ops: Ops, model: Model, hidden: Array, inputs: StepInputs, caches: Caches) -> None:
    """Overwrites hidden [T, C]; the results are in the live rows and in the captured snapshots."""
    ops.embed(hidden, model.embedding, inputs)
    for mixer, ffn in model.layers:
        if isinstance(mixer, DeltaWeights):
            ops.delta_mixer(hidden, mixer, inputs, caches)
        else:
            ops.attention_mixer(hidden, mixer, inputs, caches)
        if isinstance(ffn, MoeFfnWeights):
            ops.moe_ffn(hidden, ffn, inputs)
        else:
            ops.dense_ffn(hidden, ffn, inputs)
    ops.final_hidden(hidden, model.output_norm, model.config.epsilon, inputs, caches)
