"""The writer of small files, read back by the stock reader of the `gguf` package."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import quants

from svc.gguf.writer import write_gguf

WEIGHTS = np.random.default_rng(1).normal(0, 1, (6, 2, 512)).astype(np.float32)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4"])
def test_values_are_quantized(tmp_path: Path, name: str) -> None:
    """The stock reader finds the tensor with its type, shape and the bytes that gguf.quants makes."""
    kind = gguf.GGMLQuantizationType[name]
    write_gguf(tmp_path / "w.gguf", {"general.architecture": "toy"}, {"t": (WEIGHTS, name)})
    (tensor,) = gguf.GGUFReader(tmp_path / "w.gguf").tensors
    assert tensor.tensor_type == kind
    assert tensor.shape.tolist() == [512, 2, 6]
    expected = quants.quantize(WEIGHTS, kind)
    np.testing.assert_array_equal(tensor.data.view(np.uint8).ravel(), expected.view(np.uint8).ravel())


def test_packed_rows_are_written_as_they_are(tmp_path: Path) -> None:
    """Types without a quantizer in Python can be written from their blocks."""
    blocks = np.random.default_rng(2).integers(0, 256, (3, 2 * 144), np.uint8)
    write_gguf(tmp_path / "w.gguf", {"general.architecture": "toy"}, {"t": (blocks, "Q4_K")})
    (tensor,) = gguf.GGUFReader(tmp_path / "w.gguf").tensors
    assert tensor.shape.tolist() == [512, 3]
    np.testing.assert_array_equal(tensor.data, blocks)


@pytest.mark.parametrize(
    ("value", "types"),
    [
        ("text", ["STRING"]),
        ("", ["STRING"]),
        (True, ["BOOL"]),
        (5, ["UINT32"]),
        (-5, ["INT32"]),
        (1 << 33, ["UINT64"]),
        (-(1 << 33), ["INT64"]),
        (0.5, ["FLOAT32"]),
        (np.float64(0.5), ["FLOAT64"]),
        (np.uint16(5), ["UINT16"]),
        (["a", "b"], ["ARRAY", "STRING"]),
        ([1, -1], ["ARRAY", "INT32"]),
        ([1, 1 << 33], ["ARRAY", "UINT64"]),
        ([True, False], ["ARRAY", "BOOL"]),
        ([0.5], ["ARRAY", "FLOAT32"]),
        (np.array([1, 2], np.int32), ["ARRAY", "INT32"]),
    ],
)
def test_metadata_types(tmp_path: Path, value: object, types: list[str]) -> None:
    """The stock reader finds the value under the type the docstring promises."""
    write_gguf(tmp_path / "w.gguf", {"general.architecture": "toy", "k": value}, {})
    field = gguf.GGUFReader(tmp_path / "w.gguf").fields["k"]
    assert [kind.name for kind in field.types] == types
    assert field.contents() == (value.tolist() if isinstance(value, np.ndarray | np.generic) else value)
