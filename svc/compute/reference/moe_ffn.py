"""Mixture of experts (docs/model_math.md).

    l = W_router x;  e_1 .. e_k = the k largest of l (ties: lower index first);  w = softmax(l[e_1 .. e_k]) * scale
    hidden += sum_i w_i SwiGLU_{e_i}(x)  +  sigmoid(s . x) SwiGLU_shared(x)

Softmax over all experts, then the k best, then renormalised, is the softmax over the k largest logits.
"""

import numpy as np
from numpy.typing import NDArray

from svc.compute.reference.dense_ffn import swiglu
from svc.compute.reference.math import Float32, rms_norm, sigmoid, softmax
from svc.compute.step_inputs import StepInputs
from svc.model.layers.moe_ffn import MoeFfnWeights


def moe_ffn(hidden: Float32, layer: MoeFfnWeights, inputs: StepInputs) -> None:
    x = rms_norm(hidden, layer.input_norm, layer.epsilon)
    experts, weights = route(x, layer)
    parts = np.empty((*experts.shape, x.shape[1]), np.float32)  # [T, k, C]: kept apart, so that the sum runs in rank order
    for expert in np.unique(experts):
        tokens, ranks = np.nonzero(experts == expert)
        parts[tokens, ranks] = swiglu(x[tokens], layer.gate[expert], layer.up[expert], layer.down[expert])
    total = np.zeros_like(x)
    for rank in range(layer.num_used):
        total += weights[:, rank, None] * parts[:, rank]
    if layer.shared_router is not None:
        assert layer.shared_gate is not None
        assert layer.shared_up is not None
        assert layer.shared_down is not None
        shared = swiglu(x, layer.shared_gate, layer.shared_up, layer.shared_down)
        total += sigmoid(x @ layer.shared_router)[:, None] * shared
    hidden += total


def route(x: Float32, layer: MoeFfnWeights) -> tuple[NDArray[np.intp], Float32]:
    """[T, C] -> experts [T, k], best first, and their weights [T, k]."""
    logits = layer.router.dot(x)
    experts = np.argsort(-logits, axis=1, kind="stable")[:, : layer.num_used]
    weights = softmax(np.take_along_axis(logits, experts, axis=1)) * np.float32(layer.weights_scale)
    return experts, weights
