"""Passes tokens from the step that samples them to the step that evaluates them, without the host (backend.py, PENDING)."""

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
    """latest[rows[i]] = tokens[i], or -1 if that is among stops[cu_stops[i]:cu_stops[i + 1]]; all int32. Negative rows are skipped;
    no row occurs twice."""
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
    """Replaces a first token of -1 of a sequence by latest[its row]; if that is negative, the sequence's row becomes -1."""
    count = rows.shape[0]
    assert cu_seqlens.shape == (count + 1,)
    _launch(device, "pending_resolve", count, (tokens, rows, cu_seqlens, latest, count), stream)


def _launch(device: Device, name: str, count: int, args: tuple[DeviceArray | int, ...], stream: Stream | None) -> None:
    if count:
        device.launch(device.module("pending").kernel(name), (-(-count // THREADS),), (THREADS,), args, stream=stream)
