"""Random weights of every type with sensible scales, and what they give with activations quantized alike."""

import numpy as np
from numpy.typing import NDArray

from svc.compute.cuda.device import Device
from svc.compute.cuda.quantize import Activations, activations, workspace_bytes
from svc.compute.cuda.weight_upload import WeightUploader
from svc.compute.cuda.weights import FLOAT_TYPES, Codebooks, CudaWeight, upload_weight
from svc.gguf.gguf_file import GgufTensor
from svc.gguf.quant import QUANT_TYPES

Bytes = NDArray[np.uint8]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

TYPES = list(QUANT_TYPES)
QUANTIZED = [name for name in TYPES if name not in FLOAT_TYPES]
# Bytes of a block that are a half: of random bytes some would be NaN or infinite.
HALVES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "TQ1_0": [52],
    "TQ2_0": [64],
} | {name: [0] for name in ("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS")}


def some_columns(name: str, pieces: int) -> int:
    """Whole blocks for about this many groups of 32 columns."""
    size = max(QUANT_TYPES[name].block_size, 32)
    return -(-pieces * 32 // size) * size


def random_blocks(name: str, shape: tuple[int, ...], seed: int = 0) -> Bytes:
    """Packed rows of `shape` values, uint8 [..., bytes of a row]: all bits at random but for scales in the order of 0.1."""
    rng = np.random.default_rng(seed)
    quant = QUANT_TYPES[name]
    row_bytes = quant.row_bytes(shape[-1])
    if name in FLOAT_TYPES:
        return quant.quantize(rng.normal(0, 1, shape).astype(np.float32))
    blocks = rng.integers(0, 256, (*shape[:-1], row_bytes), np.uint8).reshape(-1, quant.block_bytes)
    for at in HALVES.get(name, []):
        blocks[:, at : at + 2] = _halves(rng, len(blocks)).view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":
        blocks[:, 0] = rng.integers(120, 130, len(blocks))
    if name == "IQ1_M":  # a quarter of the half on top of each of four words
        d = _halves(rng, len(blocks)).view(np.uint16)
        for i in range(4):
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | (d >> 4 * i & 15).astype(np.uint8) << 4
    return blocks.reshape(*shape[:-1], row_bytes)


def _halves(rng: np.random.Generator, count: int) -> NDArray[np.float16]:
    sign = rng.choice([-1.0, 1.0], count)
    return (sign * rng.uniform(0.02, 0.2, count)).astype(np.float16)


class Matrix:
    """A matrix or a stack on a device, and its exact values."""

    def __init__(self, device: Device, name: str, *shape: int, seed: int = 0) -> None:
        packed = random_blocks(name, shape, seed)
        self.weight: CudaWeight = upload_weight(
            device, Codebooks(device), WeightUploader(device), GgufTensor("random", shape, name, packed)
        )
        self.values: Float64 = QUANT_TYPES[name].dequantize(packed).astype(np.float64)

    def dot(self, x: Float32) -> Float64:
        """[T, K] -> [T, rows] as the kernels see `x`, without rounding."""
        return seen(self.weight.type, x) @ self.values.T


def seen(name: str, x: Float32) -> Float64:
    """Activations as weights of this type meet them."""
    if name in FLOAT_TYPES:
        return x.astype(np.float64)
    scale, q = quantized(x)
    return (scale.astype(np.float64)[:, :, None] * q).reshape(x.shape)


def quantized(x: Float32) -> tuple[Float32, NDArray[np.int8]]:
    """Scales [T, K / 32] and bytes [T, K / 32, 32]: amax / 127, rounded to nearest even."""
    blocks = x.reshape(len(x), -1, 32)
    amax = np.abs(blocks).max(axis=2)
    inverse = np.divide(np.float32(127), amax, out=np.zeros_like(amax), where=amax > 0)
    return amax / np.float32(127), np.rint(blocks * inverse[:, :, None]).astype(np.int8)


def normal(seed: int, *shape: int) -> Float32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def prepared(device: Device, x: Float32, *matrices: Matrix) -> Activations:
    workspace = device.empty((workspace_bytes(*x.shape),), np.uint8)
    return activations(device, device.from_host(x), workspace, [matrix.weight for matrix in matrices])


def assert_close(ours: Float32, exact: Float64) -> None:
    """Within 1e-4 of the largest magnitude: float32 sums in another order."""
    assert ours.shape == exact.shape
    np.testing.assert_allclose(ours, exact, rtol=0, atol=1e-4 * np.abs(exact).max())
