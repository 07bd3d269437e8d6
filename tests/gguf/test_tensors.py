"""Taking tensors from a file by name and expected shape."""

from pathlib import Path

import numpy as np
import pytest

from svc.errors import ModelFileError
from svc.gguf.gguf_file import GgufFile
from svc.gguf.tensors import WeightSource
from svc.gguf.writer import write_gguf


@pytest.fixture
def source(tmp_path: Path) -> WeightSource:
    tensors = {
        "wide": (np.zeros((3, 5), np.float32), "F32"),
        "gate": (np.zeros((1, 5), np.float32), "F32"),
        "norm": (np.arange(5, dtype=np.float32), "F32"),
    }
    write_gguf(tmp_path / "model.gguf", {"general.architecture": "toy"}, tensors)
    return WeightSource(GgufFile.open(tmp_path / "model.gguf"))


def test_a_tensor_of_the_right_shape_is_handed_out(source: WeightSource) -> None:
    """Shapes are rows first, and the tensor is the file's own."""
    assert source.take("wide", (3, 5)) is source.file.tensors["wide"]


def test_a_wrong_shape_is_named(source: WeightSource) -> None:
    """Tensor, found and expected shape are in the sentence; the transposed shape is wrong too."""
    with pytest.raises(ModelFileError, match=r"model\.gguf: the tensor wide has the shape \[3, 5\] instead of \[5, 3\]$"):
        source.take("wide", (5, 3))


def test_a_missing_tensor_is_named(source: WeightSource) -> None:
    """Tensor and expected shape are in the sentence."""
    with pytest.raises(ModelFileError, match=r"model\.gguf: the tensor absent is missing \(expected shape \[7\]\)"):
        source.take("absent", (7,))


def test_alternative_shapes(source: WeightSource) -> None:
    """A one-row matrix and a vector may be the same weight; the message has both when neither fits."""
    assert source.take("gate", [(5,), (1, 5)]).shape == (1, 5)
    assert source.take("norm", [(5,), (1, 5)]).shape == (5,)
    with pytest.raises(ModelFileError, match=r"instead of \[5\] or \[1, 5\]"):
        source.take("wide", [(5,), (1, 5)])


def test_a_tensor_with_several_names(source: WeightSource) -> None:
    """The first name that the file has; the first of all where it has none, which is then missing. Asking takes nothing."""
    assert source.first_of("absent", "norm", "wide") == "norm"
    assert source.first_of("absent", "gone") == "absent"
    assert source.unused() == ["wide", "gate", "norm"]


def test_forgotten_tensors_are_listed_in_file_order(source: WeightSource) -> None:
    """Looking is not taking, and neither is failing to take."""
    assert source.has("wide")
    assert not source.has("absent")
    with pytest.raises(ModelFileError):
        source.take("wide", (1,))
    assert source.unused() == ["wide", "gate", "norm"]
    source.take("gate", (1, 5))
    assert source.unused() == ["wide", "norm"]
    source.take("norm", (5,))
    source.take("wide", (3, 5))
    assert source.unused() == []
