"""Rows of a matrix as floats."""

from svc.compute.cuda.device import Device, DeviceArray, Stream
from svc.compute.cuda.weights import CudaWeight

THREADS = 256
MAX_GRID = 8192


def embed(device: Device, out: DeviceArray, table: CudaWeight, tokens: DeviceArray, stream: Stream | None = None) -> None:
    """out[t] = table[tokens[t]], dequantized exactly; out float32 [T, C], tokens int32 [T]. Zeros for a negative token."""
    assert table.num_experts is None
    assert out.shape == (*tokens.shape, table.columns)
    _gather(device, out, table, tokens, tokens.shape[0], stream)


def dequantize(device: Device, out: DeviceArray, weight: CudaWeight, stream: Stream | None = None) -> None:
    """Dequantizes a whole matrix or stack exactly; out float32 [(experts,) rows, columns]."""
    stack = () if weight.num_experts is None else (weight.num_experts,)
    assert out.shape == (*stack, weight.rows, weight.columns)
    _gather(device, out, weight, None, (weight.num_experts or 1) * weight.rows, stream)


def _gather(
    device: Device, out: DeviceArray, table: CudaWeight, tokens: DeviceArray | None, num_rows: int, stream: Stream | None
) -> None:
    if num_rows:
        groups = num_rows * -(-table.columns // (4 if table.is_float else 32))
        grid = max(1, min(MAX_GRID, -(-groups // THREADS)))
        kernel = device.module("embed", {"QUANT": table.type}).kernel("embed")
        device.launch(
            kernel, (grid,), (THREADS,), (table.data, table.codebook, tokens, out, num_rows, table.columns), stream=stream
        )
