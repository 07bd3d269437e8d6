"""Feed-forward layers against float64: dense SwiGLU, and experts with and without a shared one."""

from functools import partial

import numpy as np
import pytest

from svc.gguf.gguf_file import GgufTensor
from svc.model.layers.dense_ffn import DenseFfnWeights
from svc.model.layers.moe_ffn import MoeFfnWeights
from tests.kernels import oracle
from tests.kernels.backends import KernelBackend
from tests.kernels.op_rig import BATCH_IDS, BATCHES, OpRig, Weights, attention_layout

EPSILON = 1e-6
LAYOUT = attention_layout(1, 16, "f32")
# Types with blocks of 32 need whole blocks; the float types take any width.
WIDTHS = {"F32": (40, 72), "F16": (24, 56), "BF16": (40, 104), "Q8_0": (64, 96), "Q4_0": (32, 64)}


@pytest.mark.parametrize("kind", WIDTHS)
@pytest.mark.parametrize(
    "batch", [BATCHES[0], BATCHES[2], BATCHES[5], BATCHES[-1]], ids=lambda batch: str(sum(n for _, n in batch))
)
def test_dense(backend: KernelBackend, batch: list[tuple[int, int]], kind: str) -> None:
    """Widths that fill no vector register evenly, every weight type that can be made here."""
    width, size = WIDTHS[kind]
    rig = OpRig(backend, LAYOUT, batch)
    weights = Weights(rig.ops, seed=3, kind=kind)
    norm, gate, up, down = (
        weights.norm(width),
        weights.matrix(size, width),
        weights.matrix(size, width),
        weights.matrix(width, size),
    )
    hidden, values = rig.hidden(width)
    rig.ops.dense_ffn(hidden, DenseFfnWeights(EPSILON, norm[0], gate[0], up[0], down[0]), rig.inputs)
    see = partial(backend.activations, weight_type=kind)
    expected = values + oracle.swiglu(oracle.norm(values, norm[1], EPSILON), gate[1], up[1], down[1], see)
    np.testing.assert_allclose(backend.read(hidden), expected, rtol=backend.tolerance(kind), atol=backend.tolerance(kind))


class Experts:
    """E experts, k of them used; `same`: experts whose router rows are zero, so that they tie on every token."""

    def __init__(self, rig: OpRig, kind: str, count: int, used: int, scale: float, shared: int, same: tuple[int, ...]) -> None:
        width, size = WIDTHS[kind]
        weights = Weights(rig.ops, seed=4, kind=kind)
        plain = Weights(rig.ops, seed=5)  # routers are float32 in files
        self.used, self.scale, self.norm = used, scale, weights.norm(width)
        self.see = partial(rig.backend.activations, weight_type=kind)
        router = np.array(plain.matrix(count, width)[1])
        router[list(same)] = 0.0  # a logit of exactly 0 in any order of summation
        self.router = router
        self.stacks = [weights.matrix(count, size, width), weights.matrix(count, size, width), weights.matrix(count, width, size)]
        self.shared = [plain.vector(width)] if shared else []
        if shared:
            self.shared += [weights.matrix(shared, width), weights.matrix(shared, width), weights.matrix(width, shared)]
        self.layer = MoeFfnWeights(
            count, used, scale, EPSILON, self.norm[0], router_weight(rig, router), *(stack for stack, _ in self.stacks),
            *(part for part, _ in self.shared), *([] if shared else [None] * 4),
        )  # fmt: skip

    def expected(self, values: np.ndarray) -> np.ndarray:
        x = oracle.norm(values, self.norm[1], EPSILON)
        stacks = [exact for _, exact in self.stacks]
        out = values + np.array([oracle.experts(token, self.router, self.used, self.scale, stacks, self.see) for token in x])
        if self.shared:
            router, gate, up, down = (exact for _, exact in self.shared)
            out += oracle.sigmoid(x @ router)[:, None] * oracle.swiglu(x, gate, up, down, self.see)
        return out


def router_weight(rig: OpRig, values: np.ndarray) -> object:
    packed = np.ascontiguousarray(values, np.float32)
    return rig.ops.weight(GgufTensor("router", packed.shape, "F32", packed.view(np.uint8)))


@pytest.mark.parametrize("batch", BATCHES, ids=BATCH_IDS)
@pytest.mark.parametrize(("used", "shared"), [(1, 0), (3, 64), (7, 32)])
def test_experts(backend: KernelBackend, batch: list[tuple[int, int]], used: int, shared: int) -> None:
    """One, some and all of the experts; with and without the gated shared one; experts that no token chooses."""
    rig = OpRig(backend, LAYOUT, batch)
    experts = Experts(rig, "F32", 7, used, 1.0, shared, same=())
    hidden, values = rig.hidden(40)
    rig.ops.moe_ffn(hidden, experts.layer, rig.inputs)
    np.testing.assert_allclose(
        backend.read(hidden), experts.expected(values), rtol=backend.tolerance("F32"), atol=backend.tolerance("F32")
    )


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_expert_weight_types(backend: KernelBackend, kind: str) -> None:
    rig = OpRig(backend, LAYOUT, BATCHES[-1])
    experts = Experts(rig, kind, 5, 2, 1.0, 64, same=())
    hidden, values = rig.hidden(WIDTHS[kind][0])
    rig.ops.moe_ffn(hidden, experts.layer, rig.inputs)
    np.testing.assert_allclose(
        backend.read(hidden), experts.expected(values), rtol=backend.tolerance(kind), atol=backend.tolerance(kind)
    )


def test_ties_and_scale(backend: KernelBackend) -> None:
    """Experts that tie are taken by lower index; the routed sum is scaled, the shared expert is not."""
    rig = OpRig(backend, LAYOUT, BATCHES[-1])
    experts = Experts(rig, "F32", 6, 2, 2.5, 32, same=(1, 3, 4))
    hidden, values = rig.hidden(40)
    rig.ops.moe_ffn(hidden, experts.layer, rig.inputs)
    np.testing.assert_allclose(
        backend.read(hidden), experts.expected(values), rtol=backend.tolerance("F32"), atol=backend.tolerance("F32")
    )
