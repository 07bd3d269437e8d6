"""Products with activations in floats: right, and the same bits on every level, for any shape, tokens and threads."""

from ctypes import byref

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from svc.compute.cpu import CpuOps
from svc.compute.cpu.library import available_levels
from svc.compute.cpu.structs import address
from svc.gguf.gguf_file import GgufTensor
from svc.gguf.quant import QUANT_TYPES, quant_type
from tests.compute.cpu.conftest import MakeOps

Float32 = NDArray[np.float32]
FLOATS = ["F32", "F16", "BF16"]
ROUNDING = 2e-6  # of the sum of the products' magnitudes: sums of 16 lanes, each of some hundred roundings of 6e-8


def float_tensor(name: str, rows: int, cols: int, seed: int = 0) -> tuple[GgufTensor, Float32]:
    """Normal numbers in the type, and what they are exactly."""
    values = np.random.default_rng(seed).normal(0, 1, (rows, cols)).astype(np.float32)
    if name == "F16":
        data = values.astype(np.float16).view(np.uint8)
    elif name == "BF16":
        data = np.ascontiguousarray(values.view(np.uint16)[:, 1::2]).view(np.uint8)
    else:
        data = values.view(np.uint8)
    return GgufTensor("weights", (rows, cols), name, data), quant_type(name).dequantize(data).reshape(rows, cols)


def packed_tensor(name: str, rows: int, cols: int) -> GgufTensor:
    """Random bytes below 60: every field of a block is filled, and no half is infinite."""
    quant = quant_type(name)
    data = np.random.default_rng(1).integers(0, 60, (rows, quant.row_bytes(cols)), np.uint8)
    return GgufTensor("weights", (rows, cols), name, data)


def activations(tokens: int, cols: int) -> Float32:
    return np.random.default_rng(tokens).normal(0, 1, (tokens, cols)).astype(np.float32)


def product(ops: CpuOps, tensor: GgufTensor, x: Float32, up: GgufTensor | None = None) -> Float32:
    weight, second = ops.weight(tensor), ops.weight(up) if up else None
    out = ops.empty((len(x), tensor.shape[0]))
    ops._kernels.call("hr_matmul", address(out), byref(weight.matrix), byref(second.matrix) if second else None, address(x), len(x))
    return out


def canonical(weights: Float32, x: Float32) -> Float32:
    """The order of csrc/simd.h in numpy, for exact products: lane k mod 16 in rising k, then a tree."""
    pad = -weights.shape[1] % 16
    products = np.pad(weights, ((0, 0), (0, pad)))[None] * np.pad(x, ((0, 0), (0, pad)))[:, None]
    lanes = np.zeros((*products.shape[:2], 16), np.float32)
    for first in range(0, products.shape[2], 16):
        lanes = lanes + products[:, :, first : first + 16]
    for half in (8, 4, 2, 1):
        lanes = lanes[..., :half] + lanes[..., half:]
    return np.asarray(lanes[..., 0])


@pytest.mark.parametrize("tokens", [1, 3, 9, 131])
@pytest.mark.parametrize("name", FLOATS)
def test_the_order_of_the_sums(make_ops: MakeOps, level: str, name: str, tokens: int) -> None:
    """Exact products of few bits, whose sums round: the bits of the canonical order, and of no other one."""
    random = np.random.default_rng(3)
    few_bits = (random.integers(-127, 128, (21, 600)) * 2.0 ** random.integers(-9, 10, (21, 600))).astype(np.float32)
    tensor, weights = float_tensor(name, 21, 600)
    weights[:] = few_bits
    packed = {"F32": weights.view(np.uint8), "F16": weights.astype(np.float16).view(np.uint8)}
    data = packed.get(name, np.ascontiguousarray(weights.view(np.uint16)[:, 1::2]).view(np.uint8))
    x = random.integers(-127, 128, (tokens, 600)).astype(np.float32)
    got = product(make_ops(2, level), GgufTensor("weights", tensor.shape, name, data), x)
    expected = canonical(weights, x)
    assert got.tobytes() == expected.tobytes()
    assert got.tobytes() != np.add.reduce(weights[None] * x[:, None], axis=-1).tobytes()


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, int, int]:
    """(rows, columns, tokens): around the widths of blocks, tiles, pieces and groups, and anything between."""
    near = lambda *sizes: st.sampled_from([n + d for n in sizes for d in (-1, 0, 1) if n + d > 0])  # noqa: E731
    rows = draw(st.one_of(near(1, 4, 8, 16, 32), st.integers(1, 50)))
    columns = draw(st.one_of(near(16, 256, 512, 768), st.integers(1, 800)))
    return rows, columns, draw(st.one_of(near(1, 4, 8, 16, 128), st.integers(1, 40)))


@pytest.fixture(scope="module", params=available_levels())
def both(request: pytest.FixtureRequest) -> tuple[CpuOps, CpuOps]:
    """Plain C on one thread, and a level on three."""
    kinds = {"poison": True, "least_shared_work": 0}
    return CpuOps(1, level="base", **kinds), CpuOps(3, level=request.param, **kinds)


@pytest.mark.parametrize("name", FLOATS)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=shapes(), fused=st.booleans())
def test_any_shape(both: tuple[CpuOps, CpuOps], name: str, shape: tuple[int, int, int], fused: bool) -> None:
    """Close to float64, and bit for bit what plain C gives each token alone."""
    rows, columns, tokens = shape
    (tensor, weights), (up, _) = float_tensor(name, rows, columns), float_tensor(name, rows, columns, seed=1)
    x, second = activations(tokens, columns), up if fused else None
    base, ops = both
    got = product(ops, tensor, x, second)
    assert got.tobytes() == np.concatenate([product(base, tensor, x[t : t + 1], second) for t in range(tokens)]).tobytes()
    if not fused:
        exact, magnitude = x.astype(np.float64) @ weights.T.astype(np.float64), np.abs(x) @ np.abs(weights).T
        assert np.all(np.abs(got - exact) <= ROUNDING * magnitude)


@pytest.mark.parametrize("name", sorted(set(QUANT_TYPES) - set(FLOATS)))
@pytest.mark.parametrize("tokens", [1, 6, 40])
def test_packed_types(make_ops: MakeOps, level: str, name: str, tokens: int) -> None:
    """What the dequantized matrix as F32 gives, bit for bit: packed weights are rounded to nothing else on the way."""
    tensor, x = packed_tensor(name, 37, 768), activations(tokens, 768)
    values = quant_type(name).dequantize(tensor.data).reshape(37, 768)
    ops = make_ops(2, level)
    exact = product(ops, GgufTensor("weights", (37, 768), "F32", values.view(np.uint8)), x)
    assert np.isfinite(exact).all()
    assert product(ops, tensor, x).tobytes() == exact.tobytes()


@pytest.mark.parametrize("name", FLOATS)
def test_weights_at_an_odd_address(make_ops: MakeOps, level: str, name: str) -> None:
    """Files align tensors as they like, and rows of an odd length follow each other without a gap."""
    tensor, _ = float_tensor(name, 19, 333)
    moved = np.zeros(tensor.data.size + 1, np.uint8)[1:].reshape(tensor.data.shape)
    moved[:] = tensor.data
    for tokens in (1, 2, 30):
        x, ops = activations(tokens, 333), make_ops(1, level)
        got = product(ops, GgufTensor("weights", (19, 333), name, moved), x)
        assert got.tobytes() == product(ops, tensor, x).tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_stays_alone(make_ops: MakeOps, level: str, bad: float) -> None:
    """A token's NaN or infinity, in the last column too, reaches no other token."""
    tensor, _ = float_tensor("F16", 33, 300)
    x = activations(23, 300)
    clean = product(make_ops(1, level), tensor, x)
    x[5, 299] = bad
    got = product(make_ops(1, level), tensor, x)
    others = [t for t in range(23) if t != 5]
    assert not np.isfinite(got[5]).any()
    assert got[others].tobytes() == clean[others].tobytes()
