"""The output head: final hidden rows, kept in live rows and snapshots or gathered for logits, and the product with lm_head."""

from dataclasses import dataclass

from svc.compute.cuda.device import Device, DeviceArray, Stream
from svc.compute.cuda.matmul import matmul
from svc.compute.cuda.quantize import activations
from svc.compute.cuda.weights import CudaWeight


@dataclass(frozen=True, slots=True)
class HiddenSlabs:
    """Live rows [n, state_elements] and snapshots [n, snapshot_elements], with the offsets of their final hidden rows, in words."""

    rows: DeviceArray
    snapshots: DeviceArray
    offset: int
    snapshot_offset: int
    journal: tuple[DeviceArray | None, int, int] = (None, 0, 0)  # from the first entry's hidden row on: DeltaStates.journal_part


@dataclass(frozen=True, slots=True)
class KeptTokens:
    """The tokens whose final hidden row is kept: the last of each sequence and every captured one. int32, as in StepInputs.

    A negative row or snapshot is padding.
    """

    cu_seqlens: DeviceArray
    rows: DeviceArray
    capture_tokens: DeviceArray
    capture_snapshots: DeviceArray
    modes: DeviceArray | None = None  # of each sequence, with `positions` [T]; None: none uses the journal
    positions: DeviceArray | None = None


def final_hidden(
    device: Device,
    slabs: HiddenSlabs,
    hidden: DeviceArray,
    weight: DeviceArray,
    epsilon: float,
    kept: KeptTokens,
    stream: Stream | None = None,
) -> None:
    """norm(hidden) of each sequence's last token into its live row, of each captured token into its snapshot; by its mode, of each
    of its tokens into the journal. hidden [T, C]."""
    columns, sequences, captures = hidden.shape[1], kept.rows.shape[0], kept.capture_snapshots.shape[0]
    stride = slabs.rows.shape[1]
    snapshot_stride = slabs.snapshots.shape[1]
    assert slabs.offset + columns <= stride
    assert slabs.snapshot_offset + columns <= snapshot_stride
    assert kept.cu_seqlens.shape == (sequences + 1,)
    assert kept.capture_tokens.shape == (captures,)
    if sequences + captures:
        args = (
            *(slabs.rows, slabs.snapshots, hidden, weight),
            *(kept.cu_seqlens, kept.rows, kept.capture_tokens, kept.capture_snapshots),
            *(sequences, stride, slabs.offset, snapshot_stride, slabs.snapshot_offset),
            *(kept.modes, kept.positions, *slabs.journal, columns, epsilon),
        )
        kernel = device.module("output_head").kernel("final_hidden")
        device.launch(kernel, (sequences + captures,), (_threads(columns),), args, stream=stream)


def hidden_rows(
    device: Device,
    out: DeviceArray,
    hidden: DeviceArray,
    weight: DeviceArray,
    epsilon: float,
    tokens: DeviceArray,
    stream: Stream | None = None,
) -> None:
    """out[i] = norm(hidden[tokens[i]]), zeros for negative tokens; out [n, C], hidden [T, C] float32, tokens [n] int32."""
    count, columns = tokens.shape[0], hidden.shape[1]
    assert out.shape == (count, columns)
    if count:
        kernel = device.module("output_head").kernel("hidden_rows")
        device.launch(kernel, (count,), (_threads(columns),), (out, hidden, weight, tokens, columns, epsilon), stream=stream)


def live_hidden(
    device: Device, out: DeviceArray, rows_slab: DeviceArray, rows: DeviceArray, hidden_offset: int, stream: Stream | None = None
) -> None:
    """out[i] = the final hidden row in live row rows[i], zeros for negative ones; out [n, C], rows [n] int32."""
    count, columns = out.shape
    assert rows.shape == (count,)
    assert hidden_offset + columns <= rows_slab.shape[1]
    if count:
        kernel = device.module("output_head").kernel("live_hidden")
        args = (out, rows_slab, rows, rows_slab.shape[1], hidden_offset, columns)
        device.launch(kernel, (count,), (_threads(columns),), args, stream=stream)


def logits(
    device: Device,
    out: DeviceArray,
    output: CudaWeight,
    vectors: DeviceArray,
    workspace: DeviceArray,
    *,
    exact: bool = False,
    stream: Stream | None = None,
) -> None:
    """out[i] = output . vectors[i]; out [n, V], vectors [n, C] float32, workspace uint8 (quantize.workspace_bytes).

    `exact`: a row has the same bits for any number of rows beside it.
    """
    matmul(device, out, activations(device, vectors, workspace, [output], stream), output, exact=exact, stream=stream)


def _threads(columns: int) -> int:
    """As in rms_norm.py, so that a token's hidden row has the same bits everywhere."""
    warps = -(-columns // (4 * 32))
    return 32 * max(1, min(32, warps))
