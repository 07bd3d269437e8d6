"""Products with activations rounded to 8 bits: right, and the same bits on every level, for one token and for many."""

from ctypes import byref

import numpy as np
import pytest
from numpy.typing import NDArray

from svc.compute.cpu import CpuOps
from svc.compute.cpu.ops import CpuWeight
from svc.compute.cpu.structs import address
from svc.gguf.gguf_file import GgufTensor
from svc.gguf.quant import quant_type
from tests.compute.cpu.conftest import MakeInt8Ops
from tests.tolerances import INT8_PRODUCT

# type -> (columns with one scale of the activations, places of float16 scales in a block of weights)
TYPES: dict[str, tuple[int, list[int]]] = {
    "Q8_0": (32, [0]),
    "Q4_K": (256, [0, 2]),
    "Q5_K": (256, [0, 2]),
    "Q6_K": (256, [208]),
    "Q4_0": (32, [0]),
    "Q5_0": (32, [0]),
    "IQ4_NL": (32, [0]),
    "IQ4_XS": (256, [0]),
    "MXFP4": (32, []),
}
Float32 = NDArray[np.float32]


def random_tensor(name: str, rows: int, cols: int, seed: int = 0) -> GgufTensor:
    """Random bytes, so that every code of the type occurs, with scales in the order of 0.01."""
    random, quant = np.random.default_rng(seed), quant_type(name)
    blocks = random.integers(0, 256, (rows, cols // quant.block_size, quant.block_bytes), np.uint8)
    for place in TYPES[name][1]:
        scales = random.uniform(-0.01, 0.01, blocks.shape[:2]).astype(np.float16)
        blocks[:, :, place : place + 2] = scales[..., None].view(np.uint8)
    if name == "MXFP4":
        blocks[:, :, 0] = random.integers(115, 123, blocks.shape[:2])  # exponents
    return GgufTensor("weights", (rows, cols), name, blocks.reshape(rows, -1))


def filled_tensor(name: str, fill: int) -> GgufTensor:
    """16 rows by 512 columns, all codes and scales of a block alike but the float16 scale, which is 0.01."""
    tensor = random_tensor(name, 16, 512)
    data = np.full_like(tensor.data.reshape(16, -1, quant_type(name).block_bytes), fill)
    for place in TYPES[name][1]:
        data[:, :, place : place + 2] = np.full((16, data.shape[1], 1), 0.01, np.float16).view(np.uint8)
    if name == "MXFP4":
        data[:, :, 0] = 120
    return GgufTensor("weights", (16, 512), name, data.reshape(16, -1))


def rounded(x: Float32, block: int) -> NDArray[np.float64]:
    """Activations as int8 times a float32 scale per block, ties to even, from the definition."""
    parts = x.reshape(len(x), -1, block)
    most = np.abs(parts).max(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.where(most > 0, np.rint(parts * (np.float32(127) / most)), 0)
    return np.asarray(q.astype(np.float64) * (most / np.float32(127))).reshape(x.shape)


def product(ops: CpuOps, tensor: GgufTensor, x: Float32, up: CpuWeight | None = None) -> Float32:
    weight = ops.weight(tensor)
    out = ops.empty((len(x), tensor.shape[0]))
    second = byref(up.matrix) if up else None
    ops._kernels.call("hr_matmul", address(out), byref(weight.matrix), second, address(x), len(x))
    return out


def activations(tokens: int, cols: int) -> Float32:
    """Blocks of very different size, one of zeros, and values that lie between two steps."""
    random = np.random.default_rng(tokens)
    x = random.normal(0, 1, (tokens, cols)).astype(np.float32) * 10.0 ** random.integers(-3, 2, (tokens, 1)).astype(np.float32)
    x[0, :256] = 0
    x[-1, :256] = np.arange(256) % 128 + 0.5 * (np.arange(256) % 3)
    return x.astype(np.float32)


@pytest.mark.parametrize("tokens", [1, 2, 7, 300])
@pytest.mark.parametrize("name", TYPES)
def test_products_of_rounded_activations(make_int8_ops: MakeInt8Ops, level: str, name: str, tokens: int) -> None:
    """Each row within float32's rounding of the float64 product of dequantized weights and rounded activations."""
    tensor, x = random_tensor(name, 37, 768), activations(tokens, 768)
    expected = rounded(x, TYPES[name][0]) @ quant_type(name).dequantize(tensor.data).reshape(37, 768).astype(np.float64).T
    got = product(make_int8_ops(2, level), tensor, x)
    error = np.abs(got - expected).max(-1) / np.abs(expected).max(-1)
    assert error.max() < INT8_PRODUCT, error.max()


@pytest.mark.parametrize("name", TYPES)
def test_same_bits_on_every_level_and_for_any_company(make_int8_ops: MakeInt8Ops, level: str, name: str) -> None:
    """Plain C, one token at a time, one thread, gives the bits that many tokens together give on any level and threads."""
    tensor, x = random_tensor(name, 83, 1280), activations(263, 1280)
    oracle = make_int8_ops(1, "base")
    expected = np.concatenate([product(oracle, tensor, x[t : t + 1]) for t in range(len(x))])
    for threads in (1, 3):
        ops = make_int8_ops(threads, level)
        assert product(ops, tensor, x).tobytes() == expected.tobytes()
        for first, count in ((0, 1), (5, 2), (8, 3), (100, 7), (262, 1)):
            part = x[first : first + count].copy()
            assert product(ops, tensor, part).tobytes() == expected[first : first + count].tobytes()


@pytest.mark.parametrize("cols", [8448, 17408, 1184])
@pytest.mark.parametrize("name", TYPES)
def test_same_bits_in_long_rows_and_in_a_short_last_unit(make_int8_ops: MakeInt8Ops, level: str, name: str, cols: int) -> None:
    """Rows longer than what kernels keep at once, units with fewer than eight blocks, each number of tokens up to nine."""
    block = TYPES[name][0]
    tensor, x = random_tensor(name, 19, cols // block * block), activations(9, cols // block * block)
    oracle, ops = make_int8_ops(1, "base"), make_int8_ops(1, level)
    expected = np.concatenate([product(oracle, tensor, x[t : t + 1]) for t in range(len(x))])
    for count in range(1, len(x) + 1):
        assert product(ops, tensor, x[:count].copy()).tobytes() == expected[:count].tobytes(), count


@pytest.mark.parametrize("name", TYPES)
def test_largest_values_stay_in_range(make_int8_ops: MakeInt8Ops, level: str, name: str) -> None:
    """The largest activations, all of one sign or with the signs of the weights, overflow no partial sum on any level."""
    for fill in (0x00, 0x7F, 0x80, 0xFF):
        full = filled_tensor(name, fill)
        x = np.stack([np.ones(512), -np.ones(512), np.tile([1, -1], 256)]).astype(np.float32)
        expected = x.astype(np.float64) @ quant_type(name).dequantize(full.data).reshape(16, 512).astype(np.float64).T
        np.testing.assert_allclose(
            product(make_int8_ops(1, level), full, x), expected, rtol=1e-5, atol=INT8_PRODUCT * np.abs(expected).max()
        )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", TYPES)
def test_what_is_no_number_stays_so_and_stays_alone(make_int8_ops: MakeInt8Ops, level: str, name: str, bad: float) -> None:
    """NaN or infinity in a token makes all its results NaN, and those of no other token."""
    tensor, x = random_tensor(name, 20, 512), activations(6, 512)
    clean = product(make_int8_ops(1, level), tensor, x)
    x[2, 300] = bad
    got = product(make_int8_ops(1, level), tensor, x)
    assert np.isnan(got[2]).all()
    others = [0, 1, 3, 4, 5]
    assert got[others].tobytes() == clean[others].tobytes()


@pytest.mark.parametrize("name", TYPES)
def test_gate_and_up_in_one(make_int8_ops: MakeInt8Ops, level: str, name: str) -> None:
    """SiLU(gate x) * up x from the two products that are tested above."""
    gate, up, x = random_tensor(name, 37, 512), random_tensor(name, 37, 512, seed=1), activations(5, 512)
    ops = make_int8_ops(2, level)
    g, u = (product(ops, tensor, x).astype(np.float64) for tensor in (gate, up))
    with np.errstate(over="ignore"):
        expected = g / (1 + np.exp(-g)) * u
    np.testing.assert_allclose(product(ops, gate, x, ops.weight(up)), expected, rtol=1e-5, atol=1e-30)


def test_types_without_an_integer_kernel_are_computed_in_floats(make_int8_ops: MakeInt8Ops, level: str) -> None:
    values = np.random.default_rng(1).normal(size=(20, 64)).astype(np.float32)
    x = activations(3, 512)[:, 256:320].copy()
    got = product(make_int8_ops(1, level), GgufTensor("floats", values.shape, "F32", values.view(np.uint8)), x)
    expected = x.astype(np.float64) @ values.T.astype(np.float64)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
