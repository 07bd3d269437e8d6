"""Every block type against the format's own numpy implementation, `gguf.quants` (an independent oracle)."""

from collections.abc import Iterator

import gguf
import numpy as np
import pytest
from gguf import quants
from numpy.typing import NDArray

from svc.errors import ModelFileError
from svc.gguf.quant import QUANT_TYPES, QUANT_TYPES_BY_ID, QuantType, quant_type
from svc.gguf.quant.quant_type import VALUES_PER_PIECE

TYPES = sorted(QUANT_TYPES)
QUANTIZABLE = ["BF16", "F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4"]


def oracle(blocks: NDArray[np.uint8], name: str) -> NDArray[np.float32]:
    with np.errstate(all="ignore"):
        return np.asarray(quants.dequantize(blocks, gguf.GGMLQuantizationType[name]), np.float32)


def assert_same_bits(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> None:
    """Equal bit for bit, -0.0 apart from 0.0, except that any NaN equals any NaN."""
    assert ours.dtype == np.float32
    assert ours.shape == theirs.shape
    both_nan = np.isnan(ours) & np.isnan(theirs)
    different = (ours.view(np.uint32) != theirs.view(np.uint32)) & ~both_nan
    assert not different.any(), f"{different.sum()} of {different.size} values differ"


def random_rows(kind: QuantType, rows: tuple[int, ...], num_blocks: int) -> NDArray[np.uint8]:
    rng = np.random.default_rng(kind.ggml_id * 1000 + num_blocks)
    return rng.integers(0, 256, (*rows, num_blocks * kind.block_bytes), np.uint8)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize(("rows", "num_blocks"), [((), 1), ((1,), 1), ((3,), 7), ((2, 3), 5), ((257,), 3)])
def test_random_blocks_decode_as_the_oracle_decodes_them(name: str, rows: tuple[int, ...], num_blocks: int) -> None:
    """Any bytes, NaN and infinite scales included, give the oracle's bits, for odd numbers of rows and blocks."""
    kind = quant_type(name)
    blocks = random_rows(kind, rows, num_blocks)
    expected = oracle(blocks.reshape(-1, blocks.shape[-1]), name).reshape(*rows, num_blocks * kind.block_size)
    assert_same_bits(kind.dequantize(blocks), expected)


@pytest.mark.parametrize("name", TYPES)
def test_every_byte_value_at_every_place(name: str) -> None:
    """No bit of a block is ignored or misplaced: each byte of a block takes all 256 values once."""
    kind = quant_type(name)
    blocks = np.random.default_rng(5).integers(0, 256, (kind.block_bytes, 256, kind.block_bytes), np.uint8)
    for place in range(kind.block_bytes):
        blocks[place, :, place] = np.arange(256)
    rows = blocks.reshape(-1, kind.block_bytes)
    assert_same_bits(kind.dequantize(rows), oracle(rows, name))


@pytest.mark.parametrize("name", QUANTIZABLE)
def test_quantized_weights_decode_as_the_oracle_decodes_them(name: str) -> None:
    """Weights as they occur (bell-shaped, one row of zeros) quantized by the oracle give the oracle's bits."""
    weights = np.random.default_rng(11).normal(0, 0.05, (63, 768)).astype(np.float32)
    weights[5] = 0
    blocks = quants.quantize(weights, gguf.GGMLQuantizationType[name]).view(np.uint8)
    assert_same_bits(quant_type(name).dequantize(blocks), oracle(blocks, name))


@pytest.mark.parametrize("name", TYPES)
def test_pieces_join_without_a_seam(name: str) -> None:
    """A tensor larger than one working piece is the same as its rows decoded one at a time."""
    kind = quant_type(name)
    blocks = random_rows(kind, (2 * VALUES_PER_PIECE // kind.block_size + 3,), 1)
    middle = VALUES_PER_PIECE // kind.block_size
    whole = kind.dequantize(blocks)
    for row in (0, middle - 1, middle, middle + 1, len(blocks) - 1):
        assert_same_bits(whole[row], oracle(blocks[row : row + 1], name)[0])


def test_no_rows_give_no_values() -> None:
    """An empty selection of rows (an expert that no token chose) decodes to an empty array of the right width."""
    assert quant_type("Q4_K").dequantize(np.empty((0, 288), np.uint8)).shape == (0, 512)


@pytest.mark.parametrize("name", TYPES)
def test_strided_and_read_only_input(name: str) -> None:
    """Rows picked out of a larger read-only array decode as their contiguous copies do, and stay unchanged."""
    kind = quant_type(name)
    blocks = random_rows(kind, (9,), 3)
    blocks.setflags(write=False)
    assert_same_bits(kind.dequantize(blocks[::2]), oracle(np.ascontiguousarray(blocks[::2]), name))


def test_a_result_is_a_new_array() -> None:
    """A caller may write into what it got without reaching the file."""
    blocks = np.zeros((1, 8), np.uint8)
    values = quant_type("F32").dequantize(blocks)
    values[:] = 1
    assert not blocks.any()


def supported_by_the_oracle() -> Iterator[gguf.GGMLQuantizationType]:
    for kind in gguf.GGMLQuantizationType:
        _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        try:
            quants.dequantize(np.zeros((1, block_bytes), np.uint8), kind)
        except NotImplementedError:
            continue
        yield kind


def test_the_table_is_complete_and_has_the_oracles_sizes() -> None:
    """Every type the oracle can decode is in the table, under its name and number, with its block sizes."""
    for kind in supported_by_the_oracle():
        ours = QUANT_TYPES[kind.name]
        assert QUANT_TYPES_BY_ID[int(kind)] is ours
        assert (ours.name, ours.ggml_id) == (kind.name, int(kind))
        assert (ours.block_size, ours.block_bytes) == gguf.GGML_QUANT_SIZES[kind]
    assert len(QUANT_TYPES_BY_ID) == len(QUANT_TYPES)


def test_an_unknown_type_is_named() -> None:
    """The message of a lookup that fails names the type."""
    with pytest.raises(ModelFileError, match="Q9_Z"):
        quant_type("Q9_Z")


def test_a_row_that_is_no_whole_number_of_blocks_is_named() -> None:
    """300 values cannot be Q4_K rows, and the message says both."""
    with pytest.raises(ModelFileError, match=r"300.*Q4_K.*256"):
        quant_type("Q4_K").row_bytes(300)
    assert quant_type("Q4_K").row_bytes(768) == 3 * 144
