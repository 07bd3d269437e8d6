"""Routing, order by expert and the weighted sum."""

import numpy as np
import pytest

from svc.compute.cuda.device import Device
from svc.compute.cuda.moe import RoutedParts, SharedPart, combine, route, sort_by_expert, sort_workspace
from svc.compute.reference.math import sigmoid, softmax
from tests.cuda_emulator.build import have_compiler
from tests.cuda_emulator.device import EmulatedDevice
from tests.tolerances import KERNEL


@pytest.fixture
def plain() -> Device:
    if not have_compiler():
        pytest.skip("the CUDA emulator needs g++")
    return EmulatedDevice()


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def routed(
    device: Device, logits: np.ndarray, used: int, scale: float, rows: list[int] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    shape = (len(logits), used)
    experts, weights = device.empty(shape, np.int32), device.empty(shape, np.float32)
    listed = None if rows is None else device.from_host(np.array(rows, np.int32))
    route(device, experts, weights, device.from_host(logits), scale, listed)
    return device.to_host(experts), device.to_host(weights)


def check_routing(device: Device, logits: np.ndarray, used: int, scale: float = 1.0) -> None:
    experts, weights = routed(device, logits, used, scale)
    expected = np.argsort(-logits, axis=1, kind="stable")[:, :used]
    np.testing.assert_array_equal(experts, expected)
    with np.errstate(invalid="ignore"):
        shares = softmax(np.take_along_axis(logits, expected, axis=1)) * np.float32(scale)
    np.testing.assert_allclose(weights, shares, rtol=KERNEL, atol=KERNEL)


SHAPES = [(1, 1), (6, 1), (6, 3), (64, 8), (130, 10), (512, 10), (32, 32)]


@pytest.mark.parametrize("tokens", [1, 2, 9, 33])
@pytest.mark.parametrize(("count", "used"), SHAPES)
def test_route(plain: Device, count: int, used: int, tokens: int) -> None:
    """Any number of experts and tokens: best first, softmax over the chosen, scaled."""
    check_routing(plain, normal(tokens, tokens, count), used, 2.5)


@pytest.mark.parametrize("kind", ["ties", "equal", "extreme", "infinite", "nan"])
def test_route_corners(device: Device, kind: str) -> None:
    """Equal logits by lower index, both zeros being equal; -inf and NaN come last and spoil weights only where taken."""
    logits = normal(3, 5, 70)
    if kind == "ties":
        logits = np.random.default_rng(1).choice(np.array([-1, -0.0, 0.0, 1], np.float32), (5, 70))
    elif kind == "equal":
        logits[:] = -0.25
    elif kind == "extreme":
        logits *= np.float32(1e38)
    elif kind == "infinite":
        logits[:, ::3] = -np.inf
        logits[1], logits[2, 5:] = -np.inf, -np.inf
    else:
        logits[:, 1::2] = np.nan
        logits[1], logits[2, 5:] = np.nan, np.nan
    check_routing(device, logits, 8)


def test_route_padding(device: Device) -> None:
    """No expert and no weight for padding tokens; the others have the bits they have alone."""
    logits = normal(3, 6, 64)
    experts, weights = routed(device, logits, 8, 1.0, [3, -1, 0, 1, 2, -1])
    all_experts, all_weights = routed(device, logits, 8, 1.0)
    all_experts[[1, 5]], all_weights[[1, 5]] = -1, 0
    np.testing.assert_array_equal(experts, all_experts)
    np.testing.assert_array_equal(weights, all_weights)


def check_order(device: Device, experts: np.ndarray, count: int) -> None:
    pairs = experts.size
    offsets, order, positions = (device.empty((size,), np.int32) for size in (count + 1, pairs, pairs))
    workspace = device.empty((sort_workspace(pairs, count),), np.int32)
    sort_by_expert(device, offsets, order, positions, device.from_host(experts), workspace)
    flat = experts.ravel()
    used = np.flatnonzero(flat >= 0)
    expected = used[np.argsort(flat[used], kind="stable")]
    inverse = np.full(pairs, -1)
    inverse[expected] = np.arange(len(expected))
    np.testing.assert_array_equal(device.to_host(offsets), np.searchsorted(flat[expected], np.arange(count + 1)))
    np.testing.assert_array_equal(device.to_host(order), np.r_[expected, np.full(pairs - len(expected), -1)])
    np.testing.assert_array_equal(device.to_host(positions), inverse)


@pytest.mark.parametrize("tokens", [1, 2, 9, 33])
@pytest.mark.parametrize(("count", "used"), SHAPES)
def test_sort(plain: Device, count: int, used: int, tokens: int) -> None:
    """Stable, with experts that no token chose and with all pairs at one expert."""
    random = np.random.default_rng(tokens)
    check_order(plain, np.array([random.permutation(count)[:used] for _ in range(tokens)], np.int32), count)


@pytest.mark.parametrize("pairs", [2048, 2049, 5000])
@pytest.mark.parametrize("count", [6, 130])
def test_sort_of_many(plain: Device, pairs: int, count: int) -> None:
    """More pairs than one block takes, the last chunk not full; padding among them and whole chunks of one expert."""
    experts = np.random.default_rng(pairs).integers(-1, count, (pairs, 1)).astype(np.int32)
    experts[1000:2040] = count - 1
    check_order(plain, experts, count)


def test_sort_in_all_orders(device: Device) -> None:
    random = np.random.default_rng(7)
    check_order(device, random.integers(-1, 6, (33, 3)).astype(np.int32), 6)
    check_order(device, random.integers(-1, 6, (700, 3)).astype(np.int32), 6)
    check_order(device, np.full((4, 2), -1, np.int32), 6)


@pytest.mark.parametrize("with_shared", [False, True])
@pytest.mark.parametrize(("tokens", "used", "columns"), [(1, 10, 600), (2, 1, 40), (9, 3, 257), (600, 2, 8)])
def test_combine(plain: Device, tokens: int, used: int, columns: int, with_shared: bool) -> None:
    """Weighted parts at any positions, the gated shared expert, and the previous values; padding tokens stay."""
    hidden, parts, weights = normal(0, tokens, columns), normal(1, tokens * used, columns), normal(2, tokens, used)
    shared, x, router = normal(3, tokens, columns), normal(4, tokens, columns), normal(5, columns) / np.float32(np.sqrt(columns))
    positions = np.random.default_rng(6).permutation(tokens * used).astype(np.int32)
    experts = np.zeros((tokens, used), np.int32)
    experts[tokens // 2 + 1 :: 4] = -1
    out = plain.from_host(hidden)
    routed = RoutedParts(*(plain.from_host(array) for array in (parts, experts, weights, positions)))
    gated = SharedPart(*(plain.from_host(array) for array in (shared, x, router)))
    combine(plain, out, routed, gated if with_shared else None)
    added = np.einsum("tr,trc->tc", weights, parts[positions].reshape(tokens, used, columns))
    if with_shared:
        added += sigmoid(x @ router)[:, None] * shared
    expected = np.where(experts[:, :1] < 0, hidden, hidden + added)
    np.testing.assert_allclose(plain.to_host(out), expected, rtol=KERNEL, atol=KERNEL)


def test_combine_keeps_bits_in_company(device: Device) -> None:
    """A token alone and among others, its parts in their own places: the same bits."""
    hidden, parts, weights = normal(0, 5, 300), normal(1, 15, 300), normal(2, 5, 3)
    shared, x, router = normal(3, 5, 300), normal(4, 5, 300), device.from_host(normal(5, 300))
    experts = np.zeros((5, 3), np.int32)

    def run(span: slice) -> np.ndarray:
        out = device.from_host(hidden[span])
        pairs = slice(3 * span.start, 3 * span.stop)
        routed = RoutedParts(*(device.from_host(array) for array in (parts[pairs], experts[span], weights[span])))
        combine(device, out, routed, SharedPart(device.from_host(shared[span]), device.from_host(x[span]), router))
        return device.to_host(out)

    np.testing.assert_array_equal(run(slice(0, 5))[3:4], run(slice(3, 4)))
