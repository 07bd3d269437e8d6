"""Products of weights of every type with rows of activations, against float64 on activations quantized alike."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from svc.compute.cuda.device import Device
from svc.compute.cuda.matmul import ExpertRows, gate_up, matmul
from svc.compute.cuda.quantize import Activations
from tests.cuda_emulator.build import have_compiler
from tests.cuda_emulator.device import EmulatedDevice
from tests.cuda_src.matrices import (
    TYPES,
    Float32,
    Float64,
    Matrix,
    assert_close,
    normal,
    prepared,
    seen,
    some_columns,
)

# One of each kind: a scale for 32 values, for 16, with a minimum, by a codebook, floats.
KINDS = ["Q8_0", "Q6_K", "Q4_K", "Q2_K", "IQ3_S", "BF16"]


@pytest.fixture(scope="module")
def one_device() -> Any:
    """For tests of every type or size; a few of them run in all orders of threads."""
    if not have_compiler():
        pytest.skip("the CUDA emulator needs g++")
    return EmulatedDevice()


def product(device: Device, x: Activations, matrix: Matrix, *, exact: bool = False) -> Float32:
    out = device.empty((x.num_rows, matrix.weight.rows), np.float32)
    matmul(device, out, x, matrix.weight, exact=exact)
    return device.to_host(out)


def silu(x: Float64) -> Float64:
    value: Float64 = x * 0.5 * (1 + np.tanh(x / 2))
    return value


@pytest.mark.parametrize("tokens", [1, 3, 9])
@pytest.mark.parametrize("name", TYPES)
def test_every_type(one_device: Device, name: str, tokens: int) -> None:
    """Rows are no multiple of any tile, columns several blocks."""
    matrix = Matrix(one_device, name, 37, some_columns(name, 24))
    x = normal(1, tokens, matrix.weight.columns)
    assert_close(product(one_device, prepared(one_device, x, matrix), matrix), matrix.dot(x))


@pytest.mark.parametrize("tokens", [1, 2, 3, 8, 9, 16, 17, 33, 65, 130])
@pytest.mark.parametrize("name", ["Q4_0", "Q6_K", "F16"])
def test_number_of_rows(one_device: Device, name: str, tokens: int) -> None:
    """Around the tiles and past several of them."""
    matrix = Matrix(one_device, name, 67, 256)
    x = normal(1, tokens, 256)
    assert_close(product(one_device, prepared(one_device, x, matrix), matrix), matrix.dot(x))


@pytest.mark.parametrize("tokens", [1, 9])
@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("Q8_0", 32),
        ("Q5_1", 96),
        ("Q4_1", 1088),
        ("NVFP4", 192),
        ("Q4_K", 256),
        ("Q5_K", 2048),
        ("F32", 1),
        ("F32", 30),
        ("BF16", 255),
    ],
)
def test_number_of_columns(one_device: Device, name: str, columns: int, tokens: int) -> None:
    """Less than a warp shares, and no multiple of what it shares."""
    matrix = Matrix(one_device, name, 5, columns)
    x = normal(1, tokens, columns)
    assert_close(product(one_device, prepared(one_device, x, matrix), matrix), matrix.dot(x))


@pytest.mark.parametrize("tokens", [1, 5, 10, 40])
@pytest.mark.parametrize("name", KINDS)
def test_orders_of_threads(device: Device, name: str, tokens: int) -> None:
    """Every build and order of the emulator, and a real GPU: few rows, many, and a residual added in place."""
    matrix = Matrix(device, name, 35, some_columns(name, 9))
    x, residual = normal(1, tokens, matrix.weight.columns), normal(2, tokens, 35)
    out = device.from_host(residual)
    matmul(device, out, prepared(device, x, matrix), matrix.weight, add=out)
    assert_close(device.to_host(out), matrix.dot(x) + residual)


@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 9, 20, 70])
@pytest.mark.parametrize(
    "kinds", [("Q4_K", "Q4_K"), ("Q8_0", "Q8_0"), ("Q6_K", "Q4_K"), ("F16", "F16"), ("F32", "Q8_0")], ids="-".join
)
def test_gate_and_up(one_device: Device, kinds: tuple[str, str], tokens: int) -> None:
    """Together when both have one type, one after the other when not."""
    gate, up = (Matrix(one_device, name, 43, 256, seed=seed) for seed, name in enumerate(kinds))
    x = normal(2, tokens, 256) * np.float32(0.2)
    out = one_device.empty((tokens, 43), np.float32)
    gate_up(one_device, out, prepared(one_device, x, gate, up), gate.weight, up.weight)
    assert_close(one_device.to_host(out), silu(gate.dot(x)) * up.dot(x))


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "F32"])
def test_exact(one_device: Device, name: str) -> None:
    """A row has the same bits alone, among eight and among many."""
    matrix = Matrix(one_device, name, 33, 512)
    x = normal(1, 21, 512)
    together = product(one_device, prepared(one_device, x, matrix), matrix, exact=True)
    for rows in (slice(4, 5), slice(4, 6), slice(3, 6), slice(2, 10)):
        alone = product(one_device, prepared(one_device, x[rows], matrix), matrix, exact=True)
        np.testing.assert_array_equal(alone, together[rows])


def test_no_rows(one_device: Device) -> None:
    matrix = Matrix(one_device, "Q8_0", 5, 32)
    assert product(one_device, prepared(one_device, np.empty((0, 32), np.float32), matrix), matrix).shape == (0, 5)


def test_zero_rows_between_garbage(one_device: Device) -> None:
    """A row of NaN (padding of a graph) stays where it is."""
    matrix = Matrix(one_device, "Q4_K", 19, 256)
    for tokens in (4, 12):
        x = normal(1, tokens, 256)
        x[2] = np.nan
        out = product(one_device, prepared(one_device, x, matrix), matrix)
        others = np.arange(tokens) != 2
        assert np.isnan(out[2]).all()
        assert_close(out[others], matrix.dot(x[others]))


# ---- stacks of experts


def routed(device: Device, experts: NDArray[np.int32], num_experts: int, is_sorted: bool) -> ExpertRows:
    """`experts` [T, k]; negative: skipped."""
    flat = experts.reshape(-1).astype(np.int32)
    if not is_sorted:
        return ExpertRows(device.from_host(flat))
    skipped = int((flat < 0).sum())
    by_expert = np.argsort(flat, kind="stable").astype(np.int32)[skipped:]
    offsets = np.searchsorted(flat[by_expert], np.arange(num_experts + 1)).astype(np.int32)
    pairs = np.append(by_expert, np.full(skipped, 1 << 30, np.int32))  # what lies behind the last offset is never looked at
    return ExpertRows(device.from_host(flat), device.from_host(pairs), device.from_host(offsets))


def expected_pairs(stack: Matrix, x: Float32, experts: NDArray[np.int32]) -> Float64:
    """[T, k] experts, x [T, K] or [T k, K] -> [T k, rows], zeros where skipped."""
    flat, per_row, activations = experts.reshape(-1), experts.size // len(x), seen(stack.weight.type, x)
    rows = [activations[p // per_row] @ stack.values[max(int(e), 0)].T * float(e >= 0) for p, e in enumerate(flat)]
    return np.stack(rows)


def random_experts(tokens: int, ranks: int, num_experts: int, seed: int = 0) -> NDArray[np.int32]:
    """[T, k], different ones for a token; no token chooses the last expert and the second."""
    rng = np.random.default_rng(seed)
    allowed = [e for e in range(num_experts) if e not in (1, num_experts - 1)]
    return np.stack([rng.choice(allowed, ranks, replace=False) for _ in range(tokens)]).astype(np.int32)


@pytest.mark.parametrize("is_sorted", [False, True], ids=["listed", "sorted"])
@pytest.mark.parametrize("name", ["Q4_K", "MXFP4", "F16"])
def test_experts(device: Device, name: str, is_sorted: bool) -> None:
    """x with a row a token (gate, up) and with a row a pair (down); padding rows are skipped: zeros, or left alone when sorted."""
    stack, experts = Matrix(device, name, 7, 21, 256), random_experts(9, 3, 7)
    experts[[2, 8]] = -1
    rows = routed(device, experts, 7, is_sorted)
    for x in (normal(1, 9, 256), normal(2, 27, 256)):
        before = normal(3, 27, 21)
        out = device.from_host(before)
        matmul(device, out, prepared(device, x, stack), stack.weight, experts=rows)
        expected = expected_pairs(stack, x, experts)
        if is_sorted:
            expected[experts.reshape(-1) < 0] = before[experts.reshape(-1) < 0]
        assert_close(device.to_host(out), expected)


@pytest.mark.parametrize("is_sorted", [False, True], ids=["listed", "sorted"])
@pytest.mark.parametrize("kinds", [("Q5_K", "Q5_K"), ("Q4_K", "Q6_K"), ("F32", "F32")], ids="-".join)
def test_gate_and_up_of_experts(one_device: Device, kinds: tuple[str, str], is_sorted: bool) -> None:
    gate, up = (Matrix(one_device, name, 6, 35, 256, seed=seed) for seed, name in enumerate(kinds))
    experts, x = random_experts(11, 2, 6), normal(2, 11, 256) * np.float32(0.2)
    out = one_device.empty((22, 35), np.float32)
    rows = routed(one_device, experts, 6, is_sorted)
    gate_up(one_device, out, prepared(one_device, x, gate, up), gate.weight, up.weight, experts=rows)
    assert_close(one_device.to_host(out), silu(expected_pairs(gate, x, experts)) * expected_pairs(up, x, experts))


@pytest.mark.parametrize("name", ["Q4_K", "F32"])
def test_an_expert_that_everybody_chose(one_device: Device, name: str) -> None:
    """Far more rows than an average expert: several tiles, one after the other. The others have none, or one."""
    stack, x = Matrix(one_device, name, 8, 19, 256), normal(1, 90, 256)
    experts = np.full((90, 1), 3, np.int32)
    experts[[0, 50]] = [[0], [7]]
    out = one_device.empty((90, 19), np.float32)
    matmul(one_device, out, prepared(one_device, x, stack), stack.weight, experts=routed(one_device, experts, 8, True))
    assert_close(one_device.to_host(out), expected_pairs(stack, x, experts))
