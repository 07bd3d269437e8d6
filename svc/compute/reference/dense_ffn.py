"""SwiGLU feed-forward layer."""

from svc.compute.reference.math import Float32, rms_norm, silu
from svc.compute.reference.weights import ReferenceWeight
from svc.compute.step_inputs import StepInputs
from svc.model.layers.dense_ffn import DenseFfnWeights


def dense_ffn(hidden: Float32, layer: DenseFfnWeights, inputs: StepInputs) -> None:
    """hidden += W_down ( SiLU(W_gate x) * W_up x ), x = norm(hidden)."""
    x = rms_norm(hidden, layer.input_norm, layer.epsilon)
    hidden += swiglu(x, layer.gate, layer.up, layer.down)


def swiglu(x: Float32, gate: ReferenceWeight, up: ReferenceWeight, down: ReferenceWeight) -> Float32:
    return down.dot(silu(gate.dot(x)) * up.dot(x))
