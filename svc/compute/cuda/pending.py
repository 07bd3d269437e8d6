"""Tokens that one step samples and the next evaluates, without the host in between (backend.py, PENDING)."""

from svc.compute.cuda.device import Device, DeviceArray, Stream

THREADS = 64


def note_pending(
    device: Device,
    latest: DeviceArray,
    tokens: DeviceArray,
    rows: DeviceArray,
    stops: DeviceArray,
    cu_stops: DeviceArray,
    stream: Stream | None = None,
) -> None:
    """latest[rows[i]] = tokens[i], or -1 where that is among stops[cu_stops[i]:cu_stops[i + 1]]; all int32, negative rows are left
    out. No row twice."""
    count = tokens.shape[0]
    assert rows.shape == (count,)
    assert cu_stops.shape == (count + 1,)
    _launch(device, "pending_note", count, (latest, tokens, rows, stops, cu_stops, count), stream)


def resolve_pending(
    device: Device,
    tokens: DeviceArray,
    rows: DeviceArray,
    cu_seqlens: DeviceArray,
    latest: DeviceArray,
    stream: Stream | None = None,
) -> None:
    """Each sequence that begins with a token of -1 gets latest[its row] instead; where that is negative its row becomes -1."""
    count = rows.shape[0]
    assert cu_seqlens.shape == (count + 1,)
    _launch(device, "pending_resolve", count, (tokens, rows, cu_seqlens, latest, count), stream)


def _launch(device: Device, name: str, count: int, args: tuple[DeviceArray | int, ...], stream: Stream | None) -> None:
    if count:
        device.launch(device.module("pending").kernel(name), (-(-count // THREADS),), (THREADS,), args, stream=stream)
