"""pending.cu: tokens from one step to the next without the host."""

import numpy as np

from svc.compute.cuda.device import Device
from svc.compute.cuda.pending import note_pending, resolve_pending

NUM_ROWS = 300


def int32(values: object) -> np.ndarray:
    return np.asarray(values, np.int32)


def test_from_sample_to_piece(device: Device) -> None:
    """Random samples and sequences, more than a block: each pending token is what its row sampled; where that is a stop id or not
    finite, the sequence becomes padding; known tokens, longer sequences and padding stay as they are."""
    rng = np.random.default_rng(5)
    count = 131
    rows = int32(rng.permutation(NUM_ROWS)[:count])
    tokens = int32(rng.integers(0, 50, count))
    tokens[rng.random(count) < 0.1] = -1
    stops = [int32(rng.integers(0, 50, rng.integers(0, 40))) for _ in range(count)]
    noted = np.where(rng.random(count) < 0.8, rows, -1)
    latest = device.from_host(int32(np.full(NUM_ROWS, 77)))
    lists = (int32(noted), np.concatenate(stops), int32(np.cumsum([0, *map(len, stops)])))
    note_pending(device, latest, device.from_host(tokens), *map(device.from_host, lists))

    expected = np.full(NUM_ROWS, 77)
    for row, token, ends in zip(noted, tokens, stops, strict=True):
        if row >= 0:
            expected[row] = -1 if token in ends else token
    np.testing.assert_array_equal(device.to_host(latest), expected)

    lengths = np.where(rng.random(count) < 0.2, 3, 1)
    cu_seqlens = int32(np.cumsum([0, *lengths]))
    step_tokens = int32(rng.integers(0, 50, cu_seqlens[-1]))
    pending = (lengths == 1) & (rng.random(count) < 0.7)
    step_tokens[cu_seqlens[:-1][pending]] = -1
    step_rows = np.where(rng.random(count) < 0.9, rows, -1)
    there = device.from_host(step_tokens), device.from_host(int32(step_rows))
    resolve_pending(device, *there, device.from_host(cu_seqlens), latest)

    for index in np.flatnonzero(pending & (step_rows >= 0)):
        step_tokens[cu_seqlens[index]] = expected[rows[index]]
        step_rows[index] = -1 if expected[rows[index]] < 0 else step_rows[index]
    np.testing.assert_array_equal(device.to_host(there[0]), step_tokens)
    np.testing.assert_array_equal(device.to_host(there[1]), step_rows)
