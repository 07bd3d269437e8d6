"""Products of weights in any GGUF type with rows of activations.

Float weights meet float activations, all others activations in blocks of 32 signed bytes (quantize.py). Few rows take a kernel that
reads every weight once (gemv.cu), many rows one that works on tiles (gemm.cu, gemm_float.cu).
"""

from dataclasses import dataclass

from svc.compute.cuda.device import Device, DeviceArray, Stream
from svc.compute.cuda.quantize import Activations
from svc.compute.cuda.weights import CudaWeight

GEMV_THREADS = 128
GEMM_THREADS = 256
MOST_GEMV_ROWS = 8
_STORE, _ADD, _GATE = 0, 1, 2  # cuda_src/include/matmul.cuh


@dataclass(frozen=True, slots=True, eq=False)
class ExpertRows:
    """Which matrix of a stack each of P output rows (pairs of token and rank, token * ranks + rank) is for. All int32.

    `experts` [P]: negative for a row to be skipped. `pairs` [P] and `offsets` [E + 1]: the pairs that are not skipped sorted by
    expert, those of e from offsets[e] to offsets[e + 1]. None of the two where there are too few rows to sort.
    """

    experts: DeviceArray
    pairs: DeviceArray | None = None
    offsets: DeviceArray | None = None


def matmul(
    device: Device,
    out: DeviceArray,
    x: Activations,
    weight: CudaWeight,
    *,
    add: DeviceArray | None = None,
    experts: ExpertRows | None = None,
    exact: bool = False,
    stream: Stream | None = None,
) -> None:
    """out[t] = weight . x[t] (+ add[t]); out, add float32 [T, rows]. `add` may be `out` itself: a residual.

    With `experts` the weight is a stack and output row p is weight[experts[p]] . x[p // (P // T)], so x has a row for each token or
    for each pair. A skipped row gets zeros (plus `add`) from the kernel for few rows and is left alone by the one for many.

    `exact`: the same bits for a row whatever the number of rows beside it.
    """
    _product(device, out, x, weight, add, _STORE if add is None else _ADD, experts, exact, stream)


def gate_up(
    device: Device,
    out: DeviceArray,
    x: Activations,
    gate: CudaWeight,
    up: CudaWeight,
    *,
    experts: ExpertRows | None = None,
    exact: bool = False,
    stream: Stream | None = None,
) -> None:
    """out[t] = silu(gate . x[t]) * (up . x[t]); out float32 [T, rows]. As `matmul` otherwise."""
    assert (gate.rows, gate.columns, gate.num_experts) == (up.rows, up.columns, up.num_experts)
    few = _few_rows(out.shape[0], gate, experts, exact)
    if gate.type != up.type or (gate.is_float and not few):
        _product(device, out, x, gate, None, _STORE, experts, exact, stream)
        _product(device, out, x, up, out, _GATE, experts, exact, stream)
        return
    per_row = _pairs_per_row(out, x, gate, experts)
    if not out.size:
        return
    if few:
        tokens, lanes = _gemv_tokens(out.shape[0], experts), gemv_lanes(gate)
        grid = (-(-gate.rows // (GEMV_THREADS // lanes)), -(-out.shape[0] // tokens))
        head = (gate.data, up.data, gate.codebook, _operand(x, gate))
        if tokens == 1:
            args = (*head, experts and experts.experts, out, gate.rows, gate.columns, out.shape[0], per_row, lanes)
        else:
            args = (*head, out, gate.rows, gate.columns, out.shape[0], lanes)
        kernel = device.module("gemv", {"QUANT": gate.type}).kernel(f"gate_up_{tokens}")
        device.launch(kernel, grid, (GEMV_THREADS,), args, stream=stream)
        return
    tokens = gemm_tokens(out.shape[0], gate)
    grid = _gemm_grid(tokens, out.shape[0], gate, rows_per_block=_gemm_rows(tokens) // 2)
    pairs, offsets = (experts.pairs, experts.offsets) if experts else (None, None)
    tail = (out, gate.rows, gate.columns, out.shape[0], per_row)
    kernel = device.module("gemm", {"QUANT": gate.type}).kernel(f"gemm_gate_up_{tokens}")
    device.launch(
        kernel, grid, (GEMM_THREADS,), (gate.data, up.data, gate.codebook, x.blocks, pairs, offsets, *tail), stream=stream
    )


# ---- tuning: nothing here has been measured on a GPU yet


def gemv_lanes(weight: CudaWeight) -> int:
    """Lanes that share a row: a power of two, a piece of the row or more for each. Of K alone, or bits would depend on company."""
    pieces = -(-weight.columns // (4 if weight.is_float else 32))
    return min(32, 1 << pieces.bit_length() - 1)


def gemm_tokens(num_out: int, weight: CudaWeight) -> int:
    """Rows of activations in a tile: what one matrix gets on average, rounded up to a tile that there is."""
    average = -(-num_out // (weight.num_experts or 1))
    return 16 if average <= 16 else 32 if average <= 32 else 64


def _few_rows(num_out: int, weight: CudaWeight, experts: ExpertRows | None, exact: bool) -> bool:
    """Whether weights are read once a few rows rather than once a tile. Of pairs, half as many as experts rarely share one."""
    if experts is None:
        return exact or num_out <= MOST_GEMV_ROWS
    return exact or experts.pairs is None or num_out <= max(MOST_GEMV_ROWS, (weight.num_experts or 1) // 2)


def _gemv_tokens(num_out: int, experts: ExpertRows | None) -> int:
    """Output rows of a thread block."""
    if experts is not None or num_out == 1:
        return 1
    return 2 if num_out == 2 else 4 if num_out <= 4 else 8


def _gemm_rows(tokens: int) -> int:
    """Rows of weights in a tile: few tokens need many blocks more than they need reuse."""
    return 64 if tokens == 64 else 32


# ---- launches


def _product(
    device: Device,
    out: DeviceArray,
    x: Activations,
    weight: CudaWeight,
    other: DeviceArray | None,
    mode: int,
    experts: ExpertRows | None,
    exact: bool,
    stream: Stream | None,
) -> None:
    per_row, num_out = _pairs_per_row(out, x, weight, experts), out.shape[0]
    assert other is None or other.shape == out.shape
    if not out.size:
        return
    sizes = (weight.rows, weight.columns, num_out)
    if _few_rows(num_out, weight, experts, exact):
        tokens, lanes = _gemv_tokens(num_out, experts), gemv_lanes(weight)
        rows_per_block = GEMV_THREADS // lanes * (2 if tokens <= 2 else 1)
        grid: tuple[int, ...] = (-(-weight.rows // rows_per_block), -(-num_out // tokens))
        head = (weight.data, weight.codebook, _operand(x, weight))
        if tokens == 1:
            args: tuple[object, ...] = (*head, experts and experts.experts, other, out, *sizes, per_row, lanes, mode)
        else:
            args = (*head, other, out, *sizes, lanes, mode)
        kernel = device.module("gemv", {"QUANT": weight.type}).kernel(f"gemv_{tokens}")
        device.launch(kernel, grid, (GEMV_THREADS,), args, stream=stream)
        return
    tokens = gemm_tokens(num_out, weight)
    grid = _gemm_grid(tokens, num_out, weight, rows_per_block=_gemm_rows(tokens))
    pairs, offsets = (experts.pairs, experts.offsets) if experts else (None, None)
    head = (weight.data, x.values) if weight.is_float else (weight.data, weight.codebook, x.blocks)
    args = (*head, pairs, offsets, other, out, *sizes, per_row, mode)
    kernel = device.module("gemm_float" if weight.is_float else "gemm", {"QUANT": weight.type}).kernel(f"gemm_{tokens}")
    device.launch(kernel, grid, (GEMM_THREADS,), args, stream=stream)


def _gemm_grid(tokens: int, num_out: int, weight: CudaWeight, rows_per_block: int) -> tuple[int, int, int]:
    """Row tiles, experts, token tiles of an expert with an average share; a block with more takes several, one after the other."""
    num_matrices = weight.num_experts or 1
    average = -(-num_out // num_matrices)
    return -(-weight.rows // rows_per_block), num_matrices, max(1, min(65535, -(-average // tokens)))


def _operand(x: Activations, weight: CudaWeight) -> DeviceArray | None:
    return x.values if weight.is_float else x.blocks


def _pairs_per_row(out: DeviceArray, x: Activations, weight: CudaWeight, experts: ExpertRows | None) -> int:
    """Output rows of a row of x: 1, or the ranks of a token."""
    assert (experts is None) == (weight.num_experts is None), weight
    assert out.shape[1] == weight.rows, (out, weight)
    assert x.columns == weight.columns, (x.values, weight)
    assert weight.is_float or x.blocks is not None, weight
    assert experts is None or experts.experts.shape == out.shape[:1]
    if not x.num_rows:
        return 1
    assert out.shape[0] % x.num_rows == 0 if experts else out.shape[0] == x.num_rows
    return out.shape[0] // x.num_rows
