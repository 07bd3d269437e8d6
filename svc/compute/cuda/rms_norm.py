"""RMS norm of rows, into rows that may be part of larger ones."""

from svc.compute.cuda.device import Device, DeviceArray, Stream


def rms_norm(
    device: Device,
    out: DeviceArray,
    x: DeviceArray,
    weight: DeviceArray,
    epsilon: float,
    *,
    from_rows: DeviceArray | None = None,
    to_rows: DeviceArray | None = None,
    to_offset: int = 0,
    stream: Stream | None = None,
) -> None:
    """out[to_rows[i]][to_offset : to_offset + C] = norm(x[from_rows[i]]) * weight; x [T, C], out [N, >= C], weight [C], float32.

    Row lists are int32 of equal length; None means row i itself.
    """
    columns = x.shape[1]
    lists = [rows for rows in (from_rows, to_rows) if rows is not None]
    num_rows = lists[0].shape[0] if lists else x.shape[0]
    assert all(rows.shape == (num_rows,) for rows in lists)
    assert to_offset + columns <= out.shape[1]
    if num_rows:
        kernel = device.module("rms_norm").kernel("rms_norm")
        args = (x, from_rows, weight, out, to_rows, out.shape[1], to_offset, columns, epsilon)
        device.launch(kernel, (num_rows,), (_threads(columns),), args, stream=stream)


def _threads(columns: int) -> int:
    """Whole warps, about four elements a thread. Independent of the number of rows, as the bits of a row must be."""
    warps = -(-columns // (4 * 32))
    return 32 * max(1, min(32, warps))
