"""Weights on their way to the device: two pinned buffers in turn, the file read while a copy is under way."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from svc.compute.cuda import weight_upload
from svc.compute.cuda.ops import CudaOps
from svc.compute.cuda.weight_upload import WeightUploader
from svc.compute.model_file import open_model
from svc.gguf.gguf_file import GgufTensor
from svc.model.arch import load_model
from svc.model.layers.loading import row_slice
from tests.compute.rig import GGUF
from tests.cuda_emulator.build import have_compiler
from tests.cuda_emulator.device import EmulatedDevice

needs_compiler = pytest.mark.skipif(not have_compiler(), reason="the CUDA emulator needs g++")
PIECE = 1000  # bytes
MODEL = GGUF / "tiny-qwen3next-Q4_K_M.gguf"


def random_bytes(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize("lazy", [False, True], ids=["eager", "lazy"])
@pytest.mark.parametrize("sizes", [(1,), (PIECE,), (3 * PIECE + 1, 5, 2 * PIECE)], ids=str)
def test_all_bytes_arrive(lazy: bool, sizes: tuple[int, ...]) -> None:
    """Tensors of any size one after the other, also where a copy reads its buffer as late as it may."""
    device = EmulatedDevice(lazy=lazy)
    upload, there = WeightUploader(device, PIECE), []
    tensors = [random_bytes(size) for size in sizes]
    for data in tensors:
        there.append(device.empty(data.shape, np.uint8))
        upload.upload(there[-1], GgufTensor("t", data.shape, "F32", data).pieces(PIECE))
    for data, array in zip(tensors, there, strict=True):
        np.testing.assert_array_equal(device.to_host(array), data)


def test_experts_of_a_slice() -> None:
    """A part of every matrix of a stack lies in as many places as there are matrices."""
    device, data = EmulatedDevice(lazy=True), random_bytes(5, 6, 700)
    tensor = row_slice(GgufTensor("stack", (5, 6, 175), "F32", data), 1, 4)
    target = device.empty((5 * 3 * 700,), np.uint8)
    WeightUploader(device, PIECE).upload(target, tensor.pieces(PIECE))
    np.testing.assert_array_equal(device.to_host(target), data[:, 1:4].reshape(-1))


def test_a_piece_is_read_while_the_one_before_is_copied() -> None:
    """Only a piece that needs the buffer waits for its copy: two copies are in flight when the third piece comes."""
    device, waiting = EmulatedDevice(lazy=True), []
    target = device.empty((4 * PIECE,), np.uint8)
    WeightUploader(device, PIECE).upload(
        target, np.split(random_bytes(4 * PIECE), 4), lambda done: waiting.append(len(device.main.queue))
    )
    assert waiting == [1, 2, 2, 2]


def test_interrupted() -> None:
    """An exception of progress is passed on, and no copy still reads a buffer that is freed."""
    device = EmulatedDevice(lazy=True)

    def interrupt(done: int) -> None:
        if done == 2 * PIECE:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        WeightUploader(device, PIECE).upload(device.empty((3 * PIECE,), np.uint8), np.split(random_bytes(3 * PIECE), 3), interrupt)
    assert not device.main.queue


@needs_compiler
def test_progress_of_a_whole_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes done never fall and end at all of the file's; large tensors are told of on the way; every weight is right."""
    monkeypatch.setattr(weight_upload, "PIECE_BYTES", 1 << 14)
    ops = CudaOps(EmulatedDevice(lazy=True))
    config, source = open_model(MODEL)
    seen: list[tuple[int, int]] = []
    model = load_model(source, config, ops, lambda done, total: seen.append((done, total)))  # type: ignore[arg-type]
    total = sum(tensor.nbytes for tensor in source.file.tensors.values())
    assert {each for _, each in seen} == {total}
    steps = [done for done, _ in seen]
    assert steps == sorted(steps)
    assert steps[-1] == total
    assert max(after - before for before, after in itertools.pairwise(steps)) <= 1 << 14
    table = source.file.tensors["token_embd.weight"]
    np.testing.assert_array_equal(ops.device.to_host(model.embedding.blocks), table.data.reshape(-1))
