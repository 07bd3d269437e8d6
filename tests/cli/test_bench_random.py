"""Random weights: finite, of sensible size, in a file's types, and in places of their own where the device needs them."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from svc import model_loading
from svc.cli import main
from svc.cli.bench.random_weights import HALVES, TYPES, apart, matrix_type, random_file, random_rows
from svc.cli.bench.shapes import SHAPES
from svc.compute.cuda import cupy_device
from svc.compute.cuda.weight_upload import WeightUploader
from svc.compute.cuda.weights import Codebooks, upload_weight
from svc.compute.model_file import open_model
from svc.gguf.gguf_file import GgufFile, GgufTensor
from svc.gguf.quant import QUANT_TYPES
from tests.cuda_emulator.build import have_compiler
from tests.cuda_emulator.device import EmulatedDevice

GGUF = Path(__file__).parent.parent / "data" / "gguf"
EMULATED = pytest.mark.skipif(not have_compiler(), reason="the CUDA emulator needs g++")


@pytest.mark.parametrize("name", [*HALVES, "Q8_0", "BF16"])
def test_rows(name: str) -> None:
    """Mean 0 and deviation columns^-1/2: what is multiplied with them keeps its size, layer after layer."""
    quant = QUANT_TYPES[name]
    values = quant.dequantize(random_rows(np.random.default_rng(3), quant, 96, 1024)) * 1024**0.5
    assert np.isfinite(values).all()
    assert values.std() == pytest.approx(1, rel=0.05)
    assert abs(values.mean()) < 0.15


@pytest.mark.parametrize("file", ["tiny-qwen3next-Q4_K_M", "tiny-qwen35moe-Q4_K_M"])
def test_tensors_of_a_real_file(file: str) -> None:
    """For the sizes of a file: its names and shapes, and nothing else."""
    real = GgufFile.open(GGUF / f"{file}.gguf")
    config, _ = open_model(real)
    made = random_file(config, "Q4_K_M")
    shapes = {name: tensor.shape for name, tensor in made.tensors.items()}
    wanted = {name: tensor.shape for name, tensor in real.tensors.items() if not name.startswith(f"blk.{config.num_layers}.")}
    assert {name: shape for name, shape in shapes.items() if wanted.get(name) != shape} == {}
    assert set(wanted) - set(shapes) == set()


def test_the_mix() -> None:
    """More bits for the head, and for some layers' second matrices, first and last ones among them; routers stay float32."""
    config = SHAPES["35b-a3b"]
    types = [matrix_type(f"blk.{layer}.ffn_down_exps.weight", 512, "Q4_K_M", config.num_layers) for layer in range(40)]
    assert types[:5] == ["Q6_K"] * 5
    assert types[35:] == ["Q6_K"] * 5
    assert 12 < types.count("Q6_K") < 24
    assert matrix_type("blk.3.ffn_gate_inp.weight", 2048, "Q4_K_M", 40) == "F32"
    assert matrix_type("output.weight", 2048, "Q4_K_M", 40) == "Q6_K"
    assert matrix_type("blk.0.ffn_up.weight", 96, "Q4_K_M", 40) == "Q8_0"
    assert matrix_type("blk.0.ffn_up.weight", 20, "Q4_K_M", 40) == "F16"


@pytest.mark.parametrize("types", TYPES)
def test_apart(types: str) -> None:
    """As many bytes as the tensors say, no byte shared."""
    file = apart(random_file(SHAPES["tiny"], types))
    places = sorted((tensor.data.ctypes.data, tensor.nbytes) for tensor in file.tensors.values())
    assert all(tensor.data.flags.c_contiguous for tensor in file.tensors.values())
    assert all(start + size <= following for (start, size), (following, _) in pairwise(places))
    assert file.file_bytes == sum(size for _, size in places)


@EMULATED
@pytest.mark.parametrize("count", [1, 2, 5])
def test_one_matrix_over_and_over(count: int) -> None:
    """A stack of views of one matrix stands whole on the device."""
    device = EmulatedDevice()
    matrix = np.random.default_rng(0).integers(0, 256, (3, 34), np.uint8)
    stack = np.broadcast_to(matrix, (count, 3, 34))
    weight = upload_weight(device, Codebooks(device), WeightUploader(device), GgufTensor("stack", (count, 3, 32), "Q8_0", stack))
    np.testing.assert_array_equal(device.to_host(weight.blocks).reshape(count, 3, 34), stack)


@EMULATED
@pytest.mark.slow
def test_on_the_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A named shape on the (emulated) GPU: named in the header, finite answers, no file."""
    monkeypatch.setattr(cupy_device, "open_cupy_device", lambda index=0: EmulatedDevice())
    monkeypatch.setattr(model_loading, "find_spec", lambda name: name)
    arguments: list[Any] = ["--random", "tiny", "--device", "cuda", "-p", "3", "-n", "2", "-b", "1,2", "-d", "0", "-r", "1"]
    assert main(["bench", *arguments, "--max-step-tokens", "16"]) == 0
    printed = capsys.readouterr().out
    assert "cuda, " in printed
    assert "generate 2 x 2" in printed
