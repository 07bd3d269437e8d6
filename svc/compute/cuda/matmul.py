"""Products of weights in any GGUF type with rows of activations.

Float weights take float activations, all other weights take activations in blocks of 32 signed bytes (quantize.py). Few rows use a
kernel that reads every weight once (gemv.cu), many rows one that works on tiles (gemm.cu, gemm_float.cu).
"""

from dataclasses import dataclass

from svc.compute.cuda.device import Device, DeviceArray, Stream
from svc.compute.cuda.quantize import Activations
from svc.compute.cuda.weights import CudaWeight

GEMV_THREADS = 128
GEMM_THREADS = 256
MOST_GEMV_ROWS = 8
_Args = tuple[object, ...]
_STORE, _ADD, _GATE = 0, 1, 2  # cuda_src/include/matmul.cuh


@dataclass(frozen=True, slots=True, eq=False)
class ExpertRows:
    """The matrix of a stack for each of P output rows (pairs of token and rank, token * ranks + rank). All int32.

    `experts` [P]: negative for a skipped row. `pairs` [P] and `offsets` [E + 1]: the other pairs sorted by expert, those of
    expert e from offsets[e] to offsets[e + 1]. Both are None if there are too few rows to sort.
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
    for each pair. The kernel for few rows writes zeros (plus `add`) to a skipped row; the one for many does not write it.

    `exact`: a row has the same bits for any number of rows beside it.
    """
    plan = _plan(out, x, weight, experts, exact)
    _queue_plain(device, plan, out, add, _STORE if add is None else _ADD, stream)


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
    """out[t] = silu(gate . x[t]) * (up . x[t]); out float32 [T, rows]. As `matmul` otherwise.

    One launch for matrices of one type, which is the usual case. Two if the types differ, since a kernel knows one format, and for
    many rows of floats: the second then reads the output of the first, 8 bytes for each element of `out`.
    """
    assert (gate.rows, gate.columns, gate.num_experts) == (up.rows, up.columns, up.num_experts)
    plan = _plan(out, x, gate, experts, exact)
    if gate.type != up.type or (gate.is_float and not plan.is_few):
        _queue_plain(device, plan, out, None, _STORE, stream)
        _queue_plain(device, _plan(out, x, up, experts, exact), out, out, _GATE, stream)
    else:
        _queue(device, plan, "gate_up", (gate.data, up.data), (out,), (), stream)


# ---- tuning: nothing here has been measured on a GPU yet


def gemv_lanes(weight: CudaWeight) -> int:
    """Lanes that share a row: a power of two, with at least one group of columns each. It depends on K alone; otherwise the bits
    of a row would depend on the other rows."""
    groups = -(-weight.columns // (4 if weight.is_float else 32))
    return min(32, 1 << groups.bit_length() - 1)


def gemm_tokens(num_out: int, weight: CudaWeight) -> int:
    """Rows of activations in a tile: the average number for one matrix, rounded up to an existing tile."""
    average = -(-num_out // (weight.num_experts or 1))
    return 16 if average <= 16 else 32 if average <= 32 else 64


def _few_rows(num_out: int, weight: CudaWeight, experts: ExpertRows | None, exact: bool) -> bool:
    """Whether to use gemv.cu. Pairs up to half the number of experts rarely share an expert."""
    if experts is None:
        return exact or num_out <= MOST_GEMV_ROWS
    return exact or experts.pairs is None or num_out <= max(MOST_GEMV_ROWS, (weight.num_experts or 1) // 2)


def _gemv_tokens(num_out: int, experts: ExpertRows | None) -> int:
    """Output rows of a thread block of gemv.cu."""
    if experts is not None or num_out == 1:
        return 1
    return 2 if num_out == 2 else 4 if num_out <= 4 else 8


def _gemm_rows(tokens: int) -> int:
    """Rows of weights in a tile: with few tokens many blocks matter more than reuse."""
    return 64 if tokens == 64 else 32


# ---- launches


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """One product, checked."""

    x: Activations
    weight: CudaWeight
    experts: ExpertRows | None
    num_out: int
    pairs_per_row: int  # output rows per row of x: 1, or the ranks of a token
    is_few: bool

    @property
    def operand(self) -> DeviceArray | None:
        return self.x.values if self.weight.is_float else self.x.blocks


def _plan(out: DeviceArray, x: Activations, weight: CudaWeight, experts: ExpertRows | None, exact: bool) -> _Plan:
    num_out = out.shape[0]
    assert (experts is None) == (weight.num_experts is None), weight
    assert out.shape[1] == weight.rows, (out, weight)
    assert x.columns == weight.columns, (x.values, weight)
    assert weight.is_float or x.blocks is not None, weight
    assert experts is None or experts.experts.shape == (num_out,)
    assert num_out % x.num_rows == 0 if experts and num_out else num_out == x.num_rows
    return _Plan(x, weight, experts, num_out, num_out // max(1, x.num_rows), _few_rows(num_out, weight, experts, exact))


def _queue_plain(
    device: Device, plan: _Plan, out: DeviceArray, other: DeviceArray | None, mode: int, stream: Stream | None
) -> None:
    assert other is None or other.shape == out.shape
    _queue(device, plan, "", (plan.weight.data,), (other, out), (mode,), stream)


def _queue(device: Device, plan: _Plan, prefix: str, matrices: _Args, outs: _Args, tail: _Args, stream: Stream | None) -> None:
    """All kernels, for few and for many rows, plain or with gate and up, take their arguments in one order."""
    if not plan.num_out:
        return
    if plan.is_few:
        _queue_gemv(device, plan, prefix or "gemv", matrices, outs, tail, stream)
    else:
        _queue_gemm(device, plan, f"gemm_{prefix}" if prefix else "gemm", matrices, outs, tail, stream)


def _queue_gemv(device: Device, plan: _Plan, name: str, matrices: _Args, outs: _Args, tail: _Args, stream: Stream | None) -> None:
    weight, tokens, lanes = plan.weight, _gemv_tokens(plan.num_out, plan.experts), gemv_lanes(plan.weight)
    rows_per_block = GEMV_THREADS // lanes * (2 if name == "gemv" and tokens <= 2 else 1)
    grid = (-(-weight.rows // rows_per_block), -(-plan.num_out // tokens))
    one_row: _Args = (plan.experts and plan.experts.experts,) if tokens == 1 else ()
    per_row: _Args = (plan.pairs_per_row,) if tokens == 1 else ()
    sizes = (weight.rows, weight.columns, plan.num_out, *per_row)
    args = (*matrices, weight.codebook, plan.operand, *one_row, *outs, *sizes, lanes, *tail)
    kernel = device.module("gemv", {"QUANT": weight.type}).kernel(f"{name}_{tokens}")
    device.launch(kernel, grid, (GEMV_THREADS,), args, stream=stream)


def _queue_gemm(device: Device, plan: _Plan, name: str, matrices: _Args, outs: _Args, tail: _Args, stream: Stream | None) -> None:
    """Grid: row tiles, experts, token tiles of an average expert; a block takes several if an expert has more."""
    weight, tokens = plan.weight, gemm_tokens(plan.num_out, plan.weight)
    rows_per_block = _gemm_rows(tokens) // len(matrices)
    num_matrices = weight.num_experts or 1
    token_tiles = -(-plan.num_out // (num_matrices * tokens))
    grid = (-(-weight.rows // rows_per_block), num_matrices, min(65535, token_tiles))
    lists = (plan.experts.pairs, plan.experts.offsets) if plan.experts else (None, None)
    codebook: _Args = () if weight.is_float else (weight.codebook,)
    sizes = (weight.rows, weight.columns, plan.num_out, plan.pairs_per_row)
    args = (*matrices, *codebook, plan.operand, *lists, *outs, *sizes, *tail)
    kernel = device.module("gemm_float" if weight.is_float else "gemm", {"QUANT": weight.type}).kernel(f"{name}_{tokens}")
    device.launch(kernel, grid, (GEMM_THREADS,), args, stream=stream)
