"""Activations for the matrix kernels: float rows, and the same rows as blocks of 32 signed bytes for quantized weights."""

from collections.abc import Iterable
from dataclasses import dataclass

from svc.compute.cuda.device import Device, DeviceArray, Stream
from svc.compute.cuda.weights import CudaWeight

GROUP = 32
BLOCK_BYTES = 40  # of Q8Block, cuda_src/include/quant.cuh
THREADS = 256
LANES = 8  # threads for a block of 32 values
MAX_GRID = 8192


@dataclass(frozen=True, slots=True, eq=False)
class Activations:
    """`values` float32 [T, K]; `blocks` uint8 [T, K / 32 * BLOCK_BYTES], if a weight they meet is quantized."""

    values: DeviceArray
    blocks: DeviceArray | None

    @property
    def num_rows(self) -> int:
        return self.values.shape[0]

    @property
    def columns(self) -> int:
        return self.values.shape[1]


def activations(
    device: Device, x: DeviceArray, workspace: DeviceArray, weights: Iterable[CudaWeight], stream: Stream | None = None
) -> Activations:
    """`x` float32 [T, K] for multiplication with each of `weights`, quantized into `workspace` (uint8) if one of them is.

    The workspace belongs to the result until the last product is queued.
    """
    if all(weight.is_float for weight in weights):
        return Activations(x, None)
    rows, columns = x.shape
    blocks = workspace.view((rows, columns // GROUP * BLOCK_BYTES))
    quantize(device, blocks, x, stream)
    return Activations(x, blocks)


def workspace_bytes(rows: int, columns: int) -> int:
    """Bytes of the workspace for rows [T, K] up to this size."""
    return rows * -(-columns // GROUP) * BLOCK_BYTES


def quantize(device: Device, blocks: DeviceArray, x: DeviceArray, stream: Stream | None = None) -> None:
    """blocks uint8 [T, K / 32 * BLOCK_BYTES] of x float32 [T, K], K a multiple of 32: scale = amax / 127, to nearest even."""
    rows, columns = x.shape
    assert columns % GROUP == 0
    assert blocks.shape == (rows, columns // GROUP * BLOCK_BYTES)
    num_blocks = rows * columns // GROUP
    if num_blocks:
        grid = max(1, min(MAX_GRID, -(-num_blocks * LANES // THREADS)))
        device.launch(device.module("quantize").kernel("quantize"), (grid,), (THREADS,), (x, blocks, num_blocks), stream=stream)
