"""What rounding to 8 bits costs a model: files with weights in Q8_0, and the divergence between two sets of logits."""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

from svc.gguf.gguf_file import GgufFile
from svc.gguf.writer import write_gguf


def as_q8_0(source: Path, target: Path) -> None:
    """Every bfloat16 matrix of a file quantized by the gguf package."""
    file = GgufFile.open(source)
    kind = GGMLQuantizationType.Q8_0
    tensors = {
        name: (quants.quantize(tensor.dequantize().astype(np.float32), kind), "Q8_0")
        if tensor.type == "BF16"
        else (tensor.data, tensor.type)
        for name, tensor in file.tensors.items()
    }
    write_gguf(target, dict(file.metadata), tensors)


def divergence(wanted: NDArray[np.float32], found: NDArray[np.float32]) -> NDArray[np.float64]:
    """KL(wanted || found) of each row of logits."""
    p, q = log_softmax(wanted), log_softmax(found)
    return np.asarray((np.exp(p) * (p - q)).sum(-1))


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(float) - logits.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))
