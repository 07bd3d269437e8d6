"""Weights in device memory: the blocks of the file, and the codebooks that some formats need."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from svc.compute.cuda.device import Device, DeviceArray
from svc.compute.cuda.weight_upload import WeightUploader
from svc.gguf.gguf_file import GgufTensor
from svc.gguf.grids import grid
from svc.gguf.quant import QUANT_TYPES

# Kernels assemble unaligned words from aligned ones and so read up to 4 bytes after the last block.
PADDING_BYTES = 16
FLOAT_TYPES = ("F32", "F16", "BF16")
# The codebook of a type.
CODEBOOKS = {name: name for name in ("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")} | {"IQ1_M": "IQ1_S"}


@dataclass(frozen=True, slots=True, eq=False)
class CudaWeight:
    """A matrix [rows, columns], or a stack of them [num_experts, rows, columns] (None: a matrix), of GGUF type `type`.

    `data` holds the blocks and PADDING_BYTES more; `codebook` is the grid of IQ1, IQ2 and IQ3 types in the form of
    cuda_src/quant/codebooks.cuh.
    """

    name: str
    type: str
    rows: int
    columns: int
    num_experts: int | None
    data: DeviceArray
    codebook: DeviceArray | None

    @property
    def is_float(self) -> bool:
        """Whether products take float activations; other types take quantized ones."""
        return self.type in FLOAT_TYPES

    @property
    def blocks(self) -> DeviceArray:
        """The part of `data` for the file's bytes, uint8 [n]."""
        return self.data.view((self.data.nbytes - PADDING_BYTES,))

    def __repr__(self) -> str:
        stack = "" if self.num_experts is None else f"{self.num_experts} x "
        return f"CudaWeight({self.name}, {self.type}, {stack}{self.rows} x {self.columns})"


class Codebooks:
    """Owner of the codebooks on one device. Each is uploaded for the first weight that needs it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._arrays: dict[str, DeviceArray] = {}

    def of(self, quant: str) -> DeviceArray | None:
        """The codebook of a type; None for most types."""
        name = CODEBOOKS.get(quant)
        if name is None:
            return None
        if name not in self._arrays:
            self._arrays[name] = self._device.from_host(codebook_bytes(name))
        return self._arrays[name]


def codebook_bytes(name: str) -> NDArray[np.uint8]:
    """uint8 [entries, values]: magnitudes, or 8 (value + 1) of the ternary one, to which a shift of an eighth can be added."""
    entries = grid(name)
    return (8 * (entries + 1) if name == "IQ1_S" else entries).astype(np.uint8)


def allocate_weight(device: Device, codebooks: Codebooks, tensor: GgufTensor) -> CudaWeight:
    """Device memory for a tensor [rows, columns] or [experts, rows, columns], not filled yet."""
    *stack, rows, columns = tensor.shape
    assert len(stack) <= 1, f"{tensor.name} has shape {tensor.shape}"
    num_matrices = stack[0] if stack else 1
    num_bytes = num_matrices * rows * QUANT_TYPES[tensor.type].row_bytes(columns)
    data = device.empty((num_bytes + PADDING_BYTES,), np.uint8)
    return CudaWeight(tensor.name, tensor.type, rows, columns, stack[0] if stack else None, data, codebooks.of(tensor.type))


def upload_weight(
    device: Device, codebooks: Codebooks, uploads: WeightUploader, tensor: GgufTensor, progress: Callable[[int], None] | None = None
) -> CudaWeight:
    """Copies a tensor to the device, ahead of later work on the main stream.

    A stack that repeats one matrix (stride 0: random weights) is copied once, and then from matrix to matrix on the device.
    """
    weight = allocate_weight(device, codebooks, tensor)
    whole = weight.blocks
    once = replace(tensor, data=tensor.data[:1]) if tensor.data.strides[0] == 0 else tensor
    uploads.upload(whole.rows(0, once.nbytes), once.pieces(uploads.piece_bytes), progress)
    done = once.nbytes
    while done < whole.nbytes:
        more = min(done, whole.nbytes - done)
        device.copy(whole.rows(done, done + more), whole.rows(0, more))
        done += more
    return weight
