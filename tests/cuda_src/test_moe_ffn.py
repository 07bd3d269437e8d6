"""A whole mixture-of-experts layer, launch after launch, against float64 on activations quantized alike."""

from copy import copy

import numpy as np
import pytest

from svc.compute.cuda.device import Device
from svc.compute.cuda.moe_ffn import MoeSizes, moe_buffers, moe_ffn
from svc.compute.reference.math import rms_norm
from svc.model.layers.moe_ffn import MoeFfnWeights
from tests.cuda_emulator.build import have_compiler
from tests.cuda_emulator.device import EmulatedDevice
from tests.cuda_src.matrices import Float32, Float64, Matrix, assert_close, normal
from tests.kernels import oracle

EPSILON = 1e-6
SCALE = 1.5


@pytest.fixture
def plain() -> Device:
    if not have_compiler():
        pytest.skip("the CUDA emulator needs g++")
    return EmulatedDevice()


def swiglu(x: Float32, gate: Matrix, up: Matrix, down: Matrix) -> Float64:
    return down.dot((oracle.silu(gate.dot(x)) * up.dot(x)).astype(np.float32))


def part_of(stack: Matrix, expert: int) -> Matrix:
    """One expert's matrix."""
    part = copy(stack)
    part.values = stack.values[expert]
    return part


class Layer:
    """`kinds`: types of gate and up, of down, and of the shared expert (None: there is none)."""

    def __init__(self, device: Device, sizes: MoeSizes, kinds: tuple[str, str, str | None]) -> None:
        self.device, self.sizes = device, sizes
        width, count, size, shared = sizes.hidden, sizes.num_experts, sizes.expert, sizes.shared
        self.norm = 1 + normal(1, width) / 5
        self.router = Matrix(device, "F32", count, width, seed=2)
        self.stacks = [
            Matrix(device, kinds[0], count, size, width, seed=3),
            Matrix(device, kinds[0], count, size, width, seed=4),
            Matrix(device, kinds[1], count, width, size, seed=5),
        ]
        self.shared: list[Matrix] = []
        if kinds[2]:
            shapes = [(shared, width), (shared, width), (width, shared)]
            self.shared = [Matrix(device, kinds[2], *shape, seed=6 + i) for i, shape in enumerate(shapes)]
        self.shared_router = normal(9, width) / np.float32(np.sqrt(width))
        self.weights = MoeFfnWeights(
            count, sizes.num_used, SCALE, EPSILON, device.from_host(self.norm), self.router.weight,
            *(stack.weight for stack in self.stacks),
            *([device.from_host(self.shared_router), *(part.weight for part in self.shared)] if kinds[2] else [None] * 4),
        )  # fmt: skip

    def run(self, hidden: Float32, rows: list[int] | None = None, *, exact: bool = False) -> Float32:
        out = self.device.from_host(hidden)
        listed = None if rows is None else self.device.from_host(np.array(rows, np.int32))
        buffers = moe_buffers(self.device, self.sizes, len(hidden))
        moe_ffn(self.device, out, self.weights, buffers, rows=listed, exact=exact)
        return self.device.to_host(out)

    def expected(self, hidden: Float32) -> Float64:
        """What is added."""
        x = rms_norm(hidden, self.norm, EPSILON)
        logits = self.router.dot(x)
        added = np.zeros(hidden.shape)
        for token, row in enumerate(x):
            chosen = np.argsort(-logits[token], kind="stable")[: self.sizes.num_used]
            shares = np.exp(logits[token, chosen] - logits[token].max())
            for expert, share in zip(chosen, shares / shares.sum() * SCALE, strict=True):
                parts = [part_of(stack, expert) for stack in self.stacks]
                added[token] += share * swiglu(row[None], *parts)[0]
        if self.shared:
            added += oracle.sigmoid(x.astype(np.float64) @ self.shared_router)[:, None] * swiglu(x, *self.shared)
        return added


SIZES = MoeSizes(hidden=64, num_experts=6, num_used=3, expert=32, shared=96)
KINDS = [("F32", "F32", None), ("Q8_0", "Q8_0", "Q8_0"), ("Q4_0", "F16", "BF16"), ("BF16", "Q8_0", "F32")]


@pytest.mark.parametrize("tokens", [1, 2, 9, 33])
@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_layer(plain: Device, kinds: tuple[str, str, str | None], tokens: int) -> None:
    """Few pairs and many, every mixture of float and quantized matrices."""
    layer, hidden = Layer(plain, SIZES, kinds), normal(11, tokens, 64)
    assert_close(layer.run(hidden) - hidden, layer.expected(hidden))


def test_blocks_of_256(plain: Device) -> None:
    layer = Layer(plain, MoeSizes(256, 5, 2, 256, 256), ("Q4_K", "Q6_K", "Q8_0"))
    hidden = normal(12, 9, 256)
    assert_close(layer.run(hidden) - hidden, layer.expected(hidden))


@pytest.mark.parametrize("tokens", [2, 9])
def test_orders_of_threads(device: Device, tokens: int) -> None:
    layer, hidden = Layer(device, SIZES, KINDS[1]), normal(13, tokens, 64)
    assert_close(layer.run(hidden) - hidden, layer.expected(hidden))


@pytest.mark.parametrize("tokens", [2, 9])
def test_padding(plain: Device, tokens: int) -> None:
    """Tokens of no live row stay as they are, NaN and all, and do not reach the others."""
    layer, hidden = Layer(plain, SIZES, KINDS[1]), normal(14, tokens, 64)
    rows = [3] * tokens
    rows[1::4] = [-1] * len(rows[1::4])
    padding = np.array(rows) < 0
    hidden[padding] = np.nan
    got = layer.run(hidden, rows)
    np.testing.assert_array_equal(got[padding], hidden[padding])
    assert_close(got[~padding] - hidden[~padding], layer.expected(hidden[~padding]))


def test_bits_do_not_depend_on_company(plain: Device) -> None:
    """Asked to be exact: a token alone and among many, the same bits."""
    layer, hidden = Layer(plain, SIZES, KINDS[2]), normal(15, 20, 64)
    np.testing.assert_array_equal(layer.run(hidden, exact=True)[7:8], layer.run(hidden[7:8], exact=True))
