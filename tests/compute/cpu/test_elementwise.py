"""Dequantization against svc/gguf/quant bit for bit, and the functions that replace libm against float64."""

import numpy as np
import pytest
from numpy.typing import NDArray

from svc.compute.cpu.structs import address
from svc.gguf.quant import QUANT_TYPES
from tests.compute.cpu.conftest import MakeOps

Float32 = NDArray[np.float32]
EXP, SIGMOID, SILU, SOFTPLUS, HALF = range(5)


def same_bits(a: Float32, b: Float32) -> bool:
    """NaN equals NaN with any payload."""
    return bool(np.all((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))))


@pytest.mark.parametrize("name", QUANT_TYPES)
def test_dequantization_is_exact(make_ops: MakeOps, level: str, name: str) -> None:
    """Random blocks of every type, at an odd address: the same bits as the numpy definition; infinite and NaN scales too."""
    quant = QUANT_TYPES[name]
    ops = make_ops(1, level)
    num_blocks = 301
    packed = np.random.default_rng(quant.ggml_id).integers(0, 256, num_blocks * quant.block_bytes + 1, np.uint8)[1:]
    ops._kernels.need_codebook(name)
    out = np.empty(num_blocks * quant.block_size, np.float32)
    assert ops._kernels.library.hr_dequantize(ops._kernels.handle, quant.ggml_id, address(packed), address(out), len(out)) == 0
    assert same_bits(out, quant.dequantize(packed))


def apply(make_ops: MakeOps, level: str, function: int, x: Float32) -> Float32:
    out = np.empty_like(x)
    make_ops(1, level)._kernels.library.hr_elementwise(function, address(x), address(out), len(x))
    return out


def spread(low: float, high: float) -> Float32:
    """Even over a range, and small numbers of both signs."""
    tiny = np.geomspace(1e-38, 1, 1001)
    return np.concatenate([np.linspace(low, high, 40001), tiny, -tiny]).astype(np.float32)


def ulps(got: Float32, exact: NDArray[np.float64]) -> float:
    return float(np.max(np.abs(got - exact) / np.spacing(np.abs(exact).astype(np.float32))))


def test_exp(make_ops: MakeOps, level: str) -> None:
    x = spread(-87, 88.7)
    assert ulps(apply(make_ops, level, EXP, x), np.exp(x.astype(np.float64))) < 1.1
    special = np.array([-np.inf, -1e30, -104.0, 0.0, -0.0, 88.73, 1e30, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(apply(make_ops, level, EXP, special), [0, 0, 0, 1, 1, np.inf, np.inf, np.inf, np.nan])
    subnormal = np.linspace(-103, -88, 999, dtype=np.float32)
    assert ulps(apply(make_ops, level, EXP, subnormal), np.exp(subnormal.astype(np.float64))) <= 1.0


def test_sigmoid_and_silu(make_ops: MakeOps, level: str) -> None:
    x = spread(-80, 80)
    exact = 1 / (1 + np.exp(-x.astype(np.float64)))
    assert ulps(apply(make_ops, level, SIGMOID, x), exact) < 2.6
    assert ulps(apply(make_ops, level, SILU, x), exact * x) < 2.6
    special = np.array([-200.0, -0.0, 200.0, np.nan], np.float32)
    np.testing.assert_array_equal(apply(make_ops, level, SIGMOID, special), [0, 0.5, 1, np.nan])
    np.testing.assert_array_equal(apply(make_ops, level, SILU, special), [0, 0, 200, np.nan])


def test_softplus(make_ops: MakeOps, level: str) -> None:
    """log(1 + e^x) with full relative accuracy where it is tiny, and x itself where it is large."""
    x = spread(-85, 85)
    assert ulps(apply(make_ops, level, SOFTPLUS, x), np.logaddexp(0, x.astype(np.float64))) < 3
    special = np.array([-200.0, 4096.0, np.nan], np.float32)
    np.testing.assert_array_equal(apply(make_ops, level, SOFTPLUS, special), [0, 4096, np.nan])


def test_all_halves(make_ops: MakeOps, level: str) -> None:
    """Every half survives the way through float and back, also those between which numbers have to be rounded."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    assert same_bits(apply(make_ops, level, HALF, halves), halves)


def test_rounding_to_half(make_ops: MakeOps, level: str) -> None:
    """To nearest, ties to even, over the whole range of floats; numpy is the oracle."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, 100001, dtype=np.uint32)
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (halves[:-1] + halves[1:]) / 2
    ends = np.array([65519.996, 65520.0], np.float32)
    x = np.concatenate([bits.view(np.float32), ties, -ties, np.nextafter(ties, np.float32(9e9)), ends])
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(np.float16).astype(np.float32)
    assert same_bits(apply(make_ops, level, HALF, x), expected)


def test_functions_give_the_same_bits_on_every_level(make_ops: MakeOps, level: str) -> None:
    x = np.concatenate([spread(-110, 110), np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], np.float32)])
    for function in range(5):
        assert same_bits(apply(make_ops, level, function, x), apply(make_ops, "base", function, x)), function
