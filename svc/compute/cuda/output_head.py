"""Final hidden rows: out of the residual stream into live rows and snapshots, and to where logits are wanted; and logits."""

from svc.compute.cuda.device import Device, DeviceArray, Stream
from svc.compute.cuda.matmul import matmul
from svc.compute.cuda.quantize import activations
from svc.compute.cuda.weights import CudaWeight


def final_hidden(
    device: Device,
    rows_slab: DeviceArray,
    snapshots_slab: DeviceArray,
    hidden: DeviceArray,
    weight: DeviceArray,
    epsilon: float,
    cu_seqlens: DeviceArray,
    rows: DeviceArray,
    capture_tokens: DeviceArray,
    capture_snapshots: DeviceArray,
    hidden_offset: int,
    stream: Stream | None = None,
) -> None:
    """norm(hidden) of each sequence's last token into its live row, of each captured token into its snapshot.

    Slabs [n, state_elements] and hidden [T, C] float32, the rest int32 as in StepInputs. Negative rows and snapshots are padding.
    """
    columns, sequences, captures = hidden.shape[1], rows.shape[0], capture_snapshots.shape[0]
    stride = rows_slab.shape[1]
    assert snapshots_slab.shape[1] == stride
    assert hidden_offset + columns <= stride
    assert cu_seqlens.shape == (sequences + 1,)
    assert capture_tokens.shape == (captures,)
    if sequences + captures:
        args = (
            *(rows_slab, snapshots_slab, hidden, weight, cu_seqlens, rows, capture_tokens, capture_snapshots),
            *(sequences, stride, hidden_offset, columns, epsilon),
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
    """out[i] = output . vectors[i]; out [n, V], vectors [n, C] float32, workspace uint8 as quantize.py wants it.

    `exact`: the same bits for a row whatever the number of rows beside it.
    """
    matmul(device, out, activations(device, vectors, workspace, [output], stream), output, exact=exact, stream=stream)


def _threads(columns: int) -> int:
    """As rms_norm has it, so that a token's row has the same bits wherever it goes."""
    warps = -(-columns // (4 * 32))
    return 32 * max(1, min(32, warps))
