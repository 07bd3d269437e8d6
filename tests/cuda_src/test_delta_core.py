"""The DeltaNet kernels against float64, token by token: outputs, live rows and captured snapshots, and nothing else written."""

from dataclasses import replace

import numpy as np
import pytest

from svc.compute.cuda.delta_chunks import ALL_STEPS, STEP_TOKENS
from svc.compute.cuda.device import Device
from tests.cuda_src.delta_case import DeltaCase, Piece, Shape, assert_close

TOLERANCE = 5e-6  # of the largest magnitude: float32 sums of up to 130 tokens and 128 dimensions
CHUNKED = 0  # step_tokens: everything through chunks

# Where numbers matter and the order of threads does not, or where each case compiles its own kernels.
one_device = pytest.mark.parametrize("device", ["forward"], indirect=True)
both_forms = pytest.mark.parametrize("step_tokens", [STEP_TOKENS, CHUNKED, ALL_STEPS])

SMALL = Shape(2, 6, 32, 32, grouped=True)
ODD = Shape(1, 5, 48, 48, taps=2)  # blocks with columns beyond the head
SHAPES = [SMALL, Shape(2, 4, 64, 64), Shape(1, 2, 128, 128), ODD, Shape(2, 4, 16, 80, taps=3)]
PIECES = {
    "one token": [Piece(3, 1)],
    "one with a past, captured": [Piece(3, 1, ((1, 2),), start=5)],
    "two, three and padding": [Piece(1, 2, ((1, 0), (2, 3))), Piece(-1, 1), Piece(0, 3, start=40), Piece(-1, 1)],
    "63": [Piece(2, 63, ((5, 1),))],
    "64": [Piece(2, 64, ((64, 1),))],
    "65 off the grid": [Piece(2, 65, ((64, 1), (65, 4)), start=17)],
    "130, one token, 9": [Piece(2, 130, ((1, 0), (66, 3), (66, 5)), start=64), Piece(4, 1, ((1, 1),), start=9), Piece(6, 9)],
}


@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
def test_pieces(device: Device, pieces: list[Piece]) -> None:
    """Any mix of lengths, pasts, captures and padding rows, by the kernels that a step picks for itself."""
    case = DeltaCase(SMALL, pieces)
    assert_close(case.run(device), case.expected(), TOLERANCE)


@pytest.mark.parametrize(
    ("shape", "device"), [(ODD, "checked"), (SMALL, "checked reverse"), (SHAPES[2], "random")], ids=str, indirect=["device"]
)
def test_any_number_one_by_one(device: Device, shape: Shape) -> None:
    """No chunks at all: pieces of many tokens, captured anywhere, padding between them."""
    pieces = [Piece(2, 21, ((1, 0), (8, 3), (9, 5), (21, 2)), start=61), Piece(-1, 1), Piece(0, 8, start=7), Piece(5, 17)]
    case = DeltaCase(shape, pieces)
    assert_close(case.run(device, ALL_STEPS), case.expected(), TOLERANCE)


@pytest.mark.parametrize(
    ("shape", "device"), [(ODD, "checked"), *((shape, "random") for shape in SHAPES)], ids=str, indirect=["device"]
)
def test_shapes(device: Device, shape: Shape) -> None:
    """Both head maps, several head sizes and taps; a sequence token by token and one of two chunks, both captured midway."""
    case = DeltaCase(shape, [Piece(2, 67, ((3, 0),), start=61), Piece(0, 5, ((2, 4), (5, 1)), start=7), Piece(5, 1)])
    assert_close(case.run(device), case.expected(), TOLERANCE)


@one_device
@pytest.mark.parametrize("num_tokens", [1, 2, 3, STEP_TOKENS])
def test_both_forms_agree(device: Device, num_tokens: int) -> None:
    """Few tokens through chunks give what they give token by token."""
    case = DeltaCase(SMALL, [Piece(2, num_tokens, ((num_tokens, 3),), start=num_tokens % 2)], seed=num_tokens)
    expected = case.expected()
    assert_close(case.run(device), expected, TOLERANCE)
    assert_close(case.run(device, CHUNKED), expected, TOLERANCE)


@one_device
@both_forms
def test_strong_decay(device: Device, step_tokens: int) -> None:
    """Log decays of -101 a token among weak ones: forgotten values underflow to 0, weak decays that follow keep their digits."""
    case = DeltaCase(SMALL, [Piece(1, 90, ((40, 2),), start=3), Piece(0, 7, start=1)])
    case.vectors["a"][:] = -77
    case.vectors["dt_bias"][:] = 0
    alpha = case.numbers["alpha"]
    alpha[:] = -8  # log decay -0.026
    alpha[case.random.random(alpha.shape) < 0.3] = 1.0  # -101
    assert_close(case.run(device, step_tokens), case.expected(), TOLERANCE)


@one_device
@both_forms
def test_saturated_gates(device: Device, step_tokens: int) -> None:
    """Logits in the hundreds, both ways: gates are 0, 1 or linear, never NaN."""
    case = DeltaCase(SMALL, [Piece(1, 70, start=3), Piece(0, 2)])
    for name in ("beta", "alpha", "gate"):
        case.numbers[name] *= 300
    assert_close(case.run(device, step_tokens), case.expected(), TOLERANCE)


@one_device
@both_forms
def test_near_zero_vectors(device: Device, step_tokens: int) -> None:
    """The epsilon of the L2 norm is inside the root: a vector of 1e-4 is not blown up to length 1, and zeros stay zeros."""
    case = DeltaCase(SMALL, [Piece(1, 20, start=3), Piece(0, 4)])
    case.numbers["raw"][:12] *= 1e-4
    case.numbers["raw"][12:] = 0
    for part in case.parts(case.rows[1]):
        part *= 1e-4
    assert_close(case.run(device, step_tokens), case.expected(), 3 * TOLERANCE)


@one_device
@both_forms
def test_equal_keys(device: Device, step_tokens: int) -> None:
    """The same key over and over with beta near 1 and no decay, the hardest system a chunk can be given."""
    case = DeltaCase(SMALL, [Piece(1, 64, start=64)])
    case.numbers["raw"][:, : 4 * 32] = case.numbers["raw"][:1, : 4 * 32]
    case.numbers["beta"][:], case.numbers["alpha"][:] = 8, -20
    assert_close(case.run(device, step_tokens), case.expected(), 3 * TOLERANCE)


@one_device
def test_tokens_behind_the_last_sequence(device: Device) -> None:
    """A step padded to more tokens: their outputs are zero."""
    case = DeltaCase(SMALL, [Piece(1, 3), Piece(0, 10)], spare_tokens=4)
    assert_close(case.run(device), case.expected(), TOLERANCE)


@one_device
def test_skipped_captures(device: Device) -> None:
    """A negative snapshot is written nowhere, and the captures after it still are."""
    case = DeltaCase(SMALL, [Piece(1, 3, ((1, -1), (2, 2))), Piece(0, 20, ((4, -1), (4, 3), (9, 0)))])
    assert_close(case.run(device), case.expected(), TOLERANCE)


@pytest.mark.parametrize("device", ["random", "reverse"], indirect=True)
def test_company_changes_no_bit(device: Device) -> None:
    """A sequence gives the same bits alone and among others."""
    pieces = [Piece(2, 70, ((30, 0),), start=64), Piece(1, 3, start=2), Piece(4, 12)]
    case = DeltaCase(SMALL, pieces)
    out, rows, snapshots = case.run(device)
    for sequence, piece in enumerate(pieces):
        alone = DeltaCase(SMALL, [piece])
        alone.vectors, alone.rows = case.vectors, case.rows
        alone.numbers = {name: numbers[case.span(sequence)] for name, numbers in case.numbers.items()}
        its_out, its_rows, its_snapshots = alone.run(device)
        np.testing.assert_array_equal(its_out, out[case.span(sequence)])
        np.testing.assert_array_equal(its_rows[piece.row], rows[piece.row])
        for _, snapshot_id in piece.captures:
            np.testing.assert_array_equal(its_snapshots[snapshot_id], snapshots[snapshot_id])


@one_device
@pytest.mark.parametrize(("step_tokens", "cut"), [(STEP_TOKENS, 44), *((ALL_STEPS, cut) for cut in (1, 7, 8, 44, 45, 95))])
def test_cuts_change_no_bit(device: Device, step_tokens: int, cut: int) -> None:
    """A prefill cut in two ends in the same bits as one in a single piece: on the grid of chunks, and anywhere without chunks."""
    case = DeltaCase(SMALL, [Piece(2, 96, start=20)])
    out, rows, _ = case.run(device, step_tokens)
    first, second = (DeltaCase(SMALL, [Piece(2, n, start=at)]) for n, at in ((cut, 20), (96 - cut, 20 + cut)))
    for part, numbers in ((first, slice(0, cut)), (second, slice(cut, 96))):
        part.vectors = case.vectors
        part.numbers = {name: array[numbers] for name, array in case.numbers.items()}
    first.rows = case.rows
    first_out, second.rows, _ = first.run(device, step_tokens)
    second_out, second_rows, _ = second.run(device, step_tokens)
    np.testing.assert_array_equal(second_rows, rows)
    np.testing.assert_array_equal(np.concatenate([first_out, second_out]), out)


@one_device
def test_captures_change_no_bit(device: Device) -> None:
    """Without chunks a captured state equals the row of a text that ends there, and nothing else changes."""
    case = DeltaCase(SMALL, [Piece(2, 30, start=5)])
    out, rows, _ = case.run(device, ALL_STEPS)
    case.pieces[0] = Piece(2, 30, ((3, 1), (8, 0), (30, 4)), start=5)
    captured_out, captured_rows, snapshots = case.run(device, ALL_STEPS)
    np.testing.assert_array_equal(captured_out, out)
    np.testing.assert_array_equal(captured_rows, rows)
    np.testing.assert_array_equal(snapshots[4], rows[2])
    for done, snapshot_id in ((3, 1), (8, 0)):
        short = DeltaCase(SMALL, [Piece(2, done, start=5)])
        short.vectors, short.rows = case.vectors, case.rows
        short.numbers = {name: array[:done] for name, array in case.numbers.items()}
        np.testing.assert_array_equal(short.run(device, ALL_STEPS)[1][2], snapshots[snapshot_id])


@one_device
def test_more_columns_change_no_bit(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """How delta_decode shares out columns is a matter of speed alone."""
    case = DeltaCase(replace(SHAPES[2], num_value_heads=1), [Piece(1, 2, ((1, 3),), start=4)])
    narrow = case.run(device)
    monkeypatch.setattr("svc.compute.cuda.delta_core.WANTED_BLOCKS", 1)
    for one, other in zip(narrow, case.run(device), strict=True):
        np.testing.assert_array_equal(one, other)
