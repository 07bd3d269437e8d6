"""The emulator's intrinsics against numpy: exact where they are exact, and the shared helpers of cuda_src/include with them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cuda_emulator.build import Build, have_compiler
from tests.cuda_emulator.device import EmulatedDevice

pytestmark = pytest.mark.skipif(not have_compiler(), reason="the CUDA emulator needs g++")
LANES = np.arange(32)


@pytest.fixture(params=["fast", "checked"])
def device(request: pytest.FixtureRequest) -> EmulatedDevice:
    build: Build = request.param
    return EmulatedDevice(build=build, order="reverse" if build == "fast" else "random", sources=Path(__file__).parent / "planted")


def run(
    device: EmulatedDevice,
    kernel: str,
    args: tuple[Any, ...],
    outputs: list[tuple[tuple[int, ...], Any]],
    threads: int = 32,
    source: str = "numeric",
) -> Any:
    """Inputs are arrays or numbers; numbers stand behind the outputs."""
    inputs = [device.from_host(arg) for arg in args if isinstance(arg, np.ndarray)]
    outs = [device.empty(shape, dtype) for shape, dtype in outputs]
    numbers = [arg for arg in args if not isinstance(arg, np.ndarray)]
    device.launch(device.module(source).kernel(kernel), (1,), (threads,), (*inputs, *outs, *numbers))
    return [device.to_host(out) for out in outs]


def signed_bytes(x: np.ndarray) -> np.ndarray:
    return x.view(np.int8).reshape(-1, 4).astype(np.int64)


def unsigned_bytes(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint8).reshape(-1, 4).astype(np.int64)


def bits(x: np.ndarray) -> np.ndarray:
    """[n, 32], lowest first."""
    return x[:, None] >> np.arange(32, dtype=np.uint32) & 1


def join(bytes_: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(bytes_.astype(np.uint8)).view(np.uint32)[:, 0]


INTEGERS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "dp4a": lambda a, b: ((signed_bytes(a) * signed_bytes(b)).sum(1) + 7).astype(np.uint32),
    "dp4a unsigned": lambda a, b: ((unsigned_bytes(a) * unsigned_bytes(b)).sum(1) + 7).astype(np.uint32),
    "byte_perm": lambda a, b: join(
        np.stack([unsigned_bytes(a)[:, 1], unsigned_bytes(a)[:, 3], unsigned_bytes(b)[:, 1], unsigned_bytes(b)[:, 3]], 1)
    ),
    "vsubss4": lambda a, b: join(np.clip(signed_bytes(a) - signed_bytes(b), -128, 127).astype(np.int8).view(np.uint8)),
    "vcmpne4": lambda a, b: join((unsigned_bytes(a) != unsigned_bytes(b)) * 255),
    "counts": lambda a, b: np.array(
        [
            int(x).bit_count() | 32 - int(x).bit_length() << 8 | ((int(y) & -int(y)).bit_length()) << 16
            for x, y in zip(a, b, strict=True)
        ],
        np.uint32,
    ),
    "umulhi": lambda a, b: (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32),
    "funnelshift": lambda a, b: (
        ((b.astype(np.uint64) << np.uint64(32) | a) >> np.uint64(5)) ^ ((b.astype(np.uint64) << np.uint64(32) | a) >> np.uint64(23))
    ).astype(np.uint32),
    "brev": lambda a, b: (bits(a)[:, ::-1] << np.arange(32, dtype=np.uint32)).sum(1).astype(np.uint32),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(device: EmulatedDevice, name: str) -> None:
    """Exact, with zero, equal and extreme words among random ones."""
    random = np.random.default_rng(0)
    a, b = random.integers(0, 2**32, (2, 32), np.uint32)
    a[:4], b[2:6] = [0, 0xFFFFFFFF, 0x80808080, 0x7F7F7F7F], [0x7F7F7F7F, 0x80808080, 0, a[5]]
    (out,) = run(device, "integers", (a, b, list(INTEGERS).index(name)), [((32,), np.uint32)])
    np.testing.assert_array_equal(out, INTEGERS[name](a, b))


def fold(x: np.ndarray, width: int) -> np.ndarray:
    """The fixed tree of warp_sum: neighbours width/2 apart first."""
    x = x.reshape(-1, width)
    while x.shape[1] > 1:
        x = x[:, : x.shape[1] // 2] + x[:, x.shape[1] // 2 :]
    return np.repeat(x[:, 0], width)


WARPS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "warp_sum": lambda x: fold(x, 32),
    "warp_max": lambda x: np.full(32, x.max()),
    "group_sum": lambda x: fold(x, 8),
    "shfl_up": lambda x: np.where(LANES < 3, x, np.roll(x, 3)),
    "shfl_down": lambda x: np.where(LANES % 16 >= 13, x, np.roll(x, -3)),
    "shfl": lambda x: np.repeat(x[5::8], 8),
    "ballot": lambda x: np.full(32, (x > 0).sum()),
    "any and all": lambda x: np.full(32, float((x > 2).any()) + 2 * float((x > -9).all())),
    "match_any": lambda x: (x.astype(int)[:, None] == x.astype(int)).sum(1),
}


@pytest.mark.parametrize("name", WARPS)
def test_warps(device: EmulatedDevice, name: str) -> None:
    """Bit for bit: sums in the order that include/warp.cuh promises."""
    x = np.random.default_rng(1).standard_normal(32).astype(np.float32)
    (out,) = run(device, "warps", (x, list(WARPS).index(name)), [((32,), np.float32)])
    np.testing.assert_array_equal(out, WARPS[name](x).astype(np.float32))


@pytest.mark.parametrize("threads", [32, 96, 256])
def test_blocks(device: EmulatedDevice, threads: int) -> None:
    """Every thread gets the result, twice in a row through the same scratch memory."""
    x = np.random.default_rng(2).standard_normal(threads).astype(np.float32)
    sums, maxima, counts = run(device, "blocks", (x,), [((threads,), t) for t in (np.float32, np.float32, np.int32)], threads)
    np.testing.assert_allclose(sums, np.full(threads, x.sum(dtype=np.float64)), rtol=1e-5, atol=1e-5)
    assert len(set(sums)) == 1
    np.testing.assert_array_equal(maxima, np.full(threads, x.max()))
    np.testing.assert_array_equal(counts, np.full(threads, (x > 0).sum() + 1000 * (x > 1).sum()))


def test_conversions(device: EmulatedDevice) -> None:
    """float16 as numpy rounds; bfloat16 to nearest, ties to even; infinity and NaN stay."""
    special = [0.0, -0.0, 1e-8, 6e-8, 65504, 65520, 1e30, -3e38, np.inf, np.nan, 1.00390625, 1.01171875]
    x = np.array([*special, *np.random.default_rng(3).standard_normal(20)], np.float32)
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    half, bf16, back = run(device, "conversions", (x,), [((32,), np.float16), ((32,), np.uint16), ((32,), np.float32)])
    np.testing.assert_array_equal(half, expected)
    np.testing.assert_array_equal(back, expected.astype(np.float32))
    widened = (bf16.astype(np.uint32) << 16).view(np.float32)
    ordinary = np.isfinite(x)
    assert (np.abs(widened[ordinary] - x[ordinary]) <= np.abs(x[ordinary]) / 256).all()
    np.testing.assert_array_equal(widened[8:12], np.array([np.inf, np.nan, 1.0, 1.015625], np.float32))


def test_tensor_cores(device: EmulatedDevice) -> None:
    """A tile of each type, operands laid out as PTX has them."""
    random = np.random.default_rng(4)
    a, b = random.standard_normal((16, 16)).astype(np.float16), random.standard_normal((8, 16)).astype(np.float16)
    (c,) = run(device, "tile_f16", (a, b), [((16, 8), np.float32)])
    np.testing.assert_allclose(c, a.astype(np.float32) @ b.astype(np.float32).T, rtol=1e-5, atol=1e-5)
    wide = [np.ascontiguousarray(m.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for m in (a, b)]
    (c,) = run(device, "tile_bf16", tuple(wide), [((16, 8), np.float32)], source="bfloat16")
    cut_a, cut_b = ((m.astype(np.uint32) << 16).view(np.float32) for m in wide)
    np.testing.assert_allclose(c, cut_a @ cut_b.T, rtol=1e-5, atol=1e-5)
    a8, b8 = random.integers(-128, 128, (16, 32), np.int8), random.integers(-128, 128, (8, 32), np.int8)
    (d,) = run(device, "tile_s8", (a8, b8), [((16, 8), np.int32)])
    np.testing.assert_array_equal(d, a8.astype(np.int32) @ b8.astype(np.int32).T)


def test_transposed_matrices(device: EmulatedDevice) -> None:
    x = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)
    (out,) = run(device, "transposed", (x,), [((4, 8, 8), np.uint16)])
    np.testing.assert_array_equal(out, x.transpose(0, 2, 1))
