"""The types we can write: same bytes as the format's own implementation."""

import gguf
import numpy as np
import pytest
from gguf import quants
from numpy.typing import NDArray

from svc.gguf.quant import quant_type

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 65504.0, 65520.0, 1e-8, 1e-40, 3.3895e38, np.inf, -np.inf, np.nan]
# 1 + 2^-8 lies exactly between two bf16 numbers, 1 + 3 * 2^-8 too: ties go to the even one.
TIES = [1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 1 + 2**-11, 1 + 3 * 2**-11]


def weights() -> NDArray[np.float32]:
    values = np.random.default_rng(3).normal(0, 2, (65, 96)).astype(np.float32)
    values[7] = 0
    values[8, ::3] = values[8, 0]
    return values


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0"])
def test_weights_are_written_as_the_oracle_writes_them(name: str) -> None:
    """Ordinary weights, rows of zeros and equal values included, give the oracle's bytes."""
    with np.errstate(divide="ignore"):
        expected = quants.quantize(weights(), gguf.GGMLQuantizationType[name]).view(np.uint8)
    ours = quant_type(name).quantize(weights())
    assert ours.dtype == np.uint8
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_special_numbers_are_rounded_as_the_oracle_rounds_them(name: str) -> None:
    """Infinities, NaN, subnormals, overflow and ties to even give the oracle's bytes."""
    values = np.array([SPECIAL + TIES], np.float32)
    with np.errstate(all="ignore"):
        expected = quants.quantize(values, gguf.GGMLQuantizationType[name]).view(np.uint8)
    np.testing.assert_array_equal(quant_type(name).quantize(values), expected)


def test_q8_0_halves_go_away_from_zero() -> None:
    """With a scale of exactly 1, the values 0.5, 1.5, 2.5 and -0.5 become 1, 2, 3 and -1."""
    values = np.zeros((1, 32), np.float32)
    values[0, :5] = [127, 0.5, 1.5, 2.5, -0.5]
    block = quant_type("Q8_0").quantize(values)
    np.testing.assert_array_equal(block[0, 2:7].view(np.int8), [127, 1, 2, 3, -1])


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0"])
def test_what_was_decoded_is_written_back_unchanged(name: str) -> None:
    """Numbers the type can hold exactly survive writing and reading."""
    kind = quant_type(name)
    held = kind.dequantize(kind.quantize(weights()))
    np.testing.assert_array_equal(kind.dequantize(kind.quantize(held)), held)


def test_a_type_we_cannot_write_says_so() -> None:
    """Q4_K is read-only here."""
    with pytest.raises(NotImplementedError, match="Q4_K"):
        quant_type("Q4_K").quantize(np.zeros((1, 256), np.float32))
