"""Rows of a matrix of any type, dequantized."""

from typing import Any

import numpy as np
import pytest

from svc.compute.cuda.device import Device
from svc.compute.cuda.embed import dequantize, embed
from svc.compute.cuda.weight_upload import WeightUploader
from svc.compute.cuda.weights import Codebooks, upload_weight
from svc.gguf.gguf_file import GgufTensor
from svc.gguf.quant import QUANT_TYPES
from tests.cuda_emulator.build import have_compiler
from tests.cuda_emulator.device import EmulatedDevice
from tests.cuda_src.matrices import TYPES, Matrix, some_columns


@pytest.fixture(scope="module")
def one_device() -> Any:
    """For tests of every type: threads are independent here."""
    if not have_compiler():
        pytest.skip("the CUDA emulator needs g++")
    return EmulatedDevice()


@pytest.mark.parametrize("name", TYPES)
def test_any_bits_decode_exactly(one_device: Device, name: str) -> None:
    """Each byte of a block takes all 256 values: no bit is ignored or misplaced. NaN and infinite scales included."""
    quant = QUANT_TYPES[name]
    blocks = np.random.default_rng(5).integers(0, 256, (quant.block_bytes, 256, quant.block_bytes), np.uint8)
    for place in range(quant.block_bytes):
        blocks[place, :, place] = np.arange(256)
    rows = 8 if quant.block_size == 1 else 2
    packed = blocks.reshape(rows, -1)
    shape = (rows, packed.shape[1] // quant.block_bytes * quant.block_size)
    weight = upload_weight(one_device, Codebooks(one_device), WeightUploader(one_device), GgufTensor("bits", shape, name, packed))
    out = one_device.empty(shape, np.float32)
    dequantize(one_device, out, weight)
    np.testing.assert_array_equal(one_device.to_host(out), quant.dequantize(packed))


@pytest.mark.parametrize("name", ["Q6_K", "MXFP4", "IQ3_S", "F16"])
def test_rows_by_token(device: Device, name: str) -> None:
    """In any order and repeated, the last row too; a negative token gives zeros."""
    table, tokens = Matrix(device, name, 11, some_columns(name, 9)), [10, 3, -1, 3, 0, -7]
    out = device.empty((len(tokens), table.weight.columns), np.float32)
    embed(device, out, table.weight, device.from_host(np.array(tokens, np.int32)))
    expected = table.values[tokens]
    expected[[2, 5]] = 0
    np.testing.assert_array_equal(device.to_host(out), expected)


@pytest.mark.parametrize("columns", [1, 7, 30, 257])
@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_any_number_of_float_columns(one_device: Device, name: str, columns: int) -> None:
    stack = Matrix(one_device, name, 2, 3, columns)
    out = one_device.empty((2, 3, columns), np.float32)
    dequantize(one_device, out, stack.weight)
    np.testing.assert_array_equal(one_device.to_host(out), stack.values)
