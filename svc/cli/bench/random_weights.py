"""A model without a file: the tensors of an architecture with random weights, in the types of a usual file.

Matrices of equal shape and type share their memory, and the experts of a layer are one matrix repeated: 50 GB of weights take less
than 1 GB. A GPU gets a copy of each. A device that uses weights in place would find the shared ones in its cache, so `apart` gives
each tensor memory of its own.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from svc.gguf.gguf_file import GgufFile, GgufTensor
from svc.gguf.quant import QUANT_TYPES, QuantType
from svc.gguf.tensors import Shape, WeightSource, allowed_shapes
from svc.model.arch import ARCHITECTURES
from svc.model.arch.architecture import assemble
from svc.model.layers.loading import NoStore, WeightLoader
from svc.model.model_config import ModelConfig

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

MIX = "Q4_K_M"
# The float16 scales of a block: offset -> multiple of the block's scale. Minima (a second scale) bring the mean to 0.
HALVES: Mapping[str, Mapping[int, float]] = {
    "Q4_0": {0: 1.0},
    "Q4_K": {0: 1.0, 2: 7.5},
    "Q5_K": {0: 1.0, 2: 15.5},
    "Q6_K": {208: 1.0},
    "IQ4_XS": {0: 1.0},
}
TYPES = (MIX, *HALVES, "Q8_0", "BF16", "F16", "F32")
NARROW_TYPE = "Q8_0"  # for rows that are not a whole number of blocks of the wanted type
NARROWEST_TYPE = "F16"
SAMPLE_BLOCKS = 256  # enough to estimate the deviation of random bits
MOST_RANDOM_ROWS = 4096  # of a matrix; further rows (of a vocabulary) repeat these


def random_file(config: ModelConfig, types: str) -> GgufFile:
    """A GgufFile of `config`'s tensors, in memory only. `types`: one of TYPES, for all matrices but the float32 routers."""
    tensors: dict[str, GgufTensor] = {}
    metadata = {"general.architecture": config.architecture, "general.name": config.name}
    file = GgufFile((Path(f"{config.name}, random {types}"),), 3, metadata, tensors, ())
    loader = WeightLoader(_Inventor(file, tensors, config, types), NoStore(), read_in=False)
    assemble(loader, config, ARCHITECTURES[config.architecture])
    file.file_bytes = sum(tensor.nbytes for tensor in tensors.values())
    return file


def apart(file: GgufFile) -> GgufFile:
    """A copy with separate memory for each tensor: `file_bytes` in all."""
    copies = {name: GgufTensor(name, t.shape, t.type, np.array(t.data, order="C")) for name, t in file.tensors.items()}
    whole = GgufFile(file.paths, file.version, file.metadata, copies, ())
    whole.file_bytes = file.file_bytes
    return whole


class _Inventor(WeightSource):
    """Makes each tensor when it is taken. The model has separate, not fused, tensors and an output head of its own."""

    def __init__(self, file: GgufFile, tensors: dict[str, GgufTensor], config: ModelConfig, types: str) -> None:
        super().__init__(file)
        self._tensors = tensors
        self._num_layers = config.num_layers
        self._types = types
        self._random = np.random.default_rng(0)
        self._matrices: dict[tuple[str, Shape], Bytes] = {}

    def has(self, name: str) -> bool:
        return name == "output.weight"

    def take(self, name: str, shape: Shape | Sequence[Shape]) -> GgufTensor:
        chosen = allowed_shapes(shape)[0]
        if len(chosen) == 1 or name.endswith("ssm_conv1d.weight"):
            kind, data = "F32", self._parameters(name, chosen)
        else:
            kind = matrix_type(name, chosen[-1], self._types, self._num_layers)
            if (kind, chosen[-2:]) not in self._matrices:
                *_, num_rows, columns = chosen
                some = random_rows(self._random, QUANT_TYPES[kind], min(num_rows, MOST_RANDOM_ROWS), columns)
                self._matrices[kind, chosen[-2:]] = np.resize(some, (num_rows, some.shape[1]))
            rows = self._matrices[kind, chosen[-2:]]
            data = np.broadcast_to(rows, (*chosen[:-2], *rows.shape))
        tensor = self._tensors[name] = GgufTensor(name, chosen, kind, data)
        return tensor

    def unused(self) -> list[str]:
        """No tensor: each is made when it is taken."""
        return []

    def _parameters(self, name: str, shape: Shape) -> Bytes:
        """Norm weights around 1, decays below 1, the rest around 0."""
        values = self._random.normal(0, 0.1 if len(shape) == 1 else 0.5, shape)
        if name.endswith("norm.weight"):
            values += 1
        elif name.endswith("ssm_a"):
            values = -self._random.uniform(0.1, 2, shape)
        return values.astype(np.float32).view(np.uint8)


def matrix_type(name: str, columns: int, types: str, num_layers: int) -> str:
    """The type that a file of `types` stores the matrix `name` in.

    The mix: the head in Q6_K, values and the second feed-forward matrix too in every third layer and in all of the first and the
    last eighth; everything else in Q4_K.
    """
    if "ffn_gate_inp" in name:
        return "F32"
    kind = types
    if types == MIX:
        layer = int(name.split(".")[1]) if name.startswith("blk.") else None
        eighth = num_layers // 8
        careful = layer is not None and (layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2)
        kind = "Q6_K" if name == "output.weight" or (careful and ("attn_v" in name or "ffn_down" in name)) else "Q4_K"
    return next(kind for kind in (kind, NARROW_TYPE, NARROWEST_TYPE) if columns % QUANT_TYPES[kind].block_size == 0)


def random_rows(random: np.random.Generator, quant: QuantType, rows: int, columns: int) -> Bytes:
    """Packed rows [rows, bytes per row] with deviation columns^-1/2, so that products keep the size of their input."""
    deviation = columns**-0.5
    if quant.encode is not None:
        return quant.quantize(random.normal(0, deviation, (rows, columns)).astype(np.float32))
    packed = np.frombuffer(random.bytes(rows * quant.row_bytes(columns)), np.uint8).copy()
    blocks = packed.reshape(-1, quant.block_bytes)
    _set_halves(blocks[:SAMPLE_BLOCKS], quant, 1.0)
    _set_halves(blocks, quant, deviation / float(quant.dequantize(blocks[:SAMPLE_BLOCKS]).std()))
    return packed.reshape(rows, -1)


def _set_halves(blocks: Bytes, quant: QuantType, scale: float) -> None:
    for at, times in HALVES[quant.name].items():
        blocks[:, at : at + 2] = np.frombuffer(np.float16(times * scale).tobytes(), np.uint8)
