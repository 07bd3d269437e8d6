"""The architectures that can be served: one file and one line of this table each."""

from svc.compute.arch import qwen3, qwen3moe, qwen3next, qwen35, qwen35moe
from svc.compute.arch.architecture import Architecture, assemble
from svc.compute.arch.model import Model
from svc.compute.layers.loading import Progress, WeightLoader
from svc.compute.model_config import ModelConfig
from svc.compute.ops import Ops
from svc.compute.weights.gguf_file import GgufFile
from svc.compute.weights.tensors import WeightSource
from svc.errors import ModelFileError

__all__ = ["ARCHITECTURES", "Model", "load_model", "read_config"]

ARCHITECTURES: dict[str, Architecture] = {
    "qwen3next": qwen3next.ARCHITECTURE,
    "qwen35": qwen35.ARCHITECTURE,
    "qwen35moe": qwen35moe.ARCHITECTURE,
    "qwen3": qwen3.ARCHITECTURE,
    "qwen3moe": qwen3moe.ARCHITECTURE,
}


def read_config(file: GgufFile) -> ModelConfig:
    """ModelFileError for an architecture that is not in the table, and for missing or impossible numbers."""
    architecture = ARCHITECTURES.get(file.architecture)
    if architecture is None:
        raise ModelFileError(
            f"{file.path}: the architecture {file.architecture!r} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    return ModelConfig.read(file, architecture.traits)


def load_model(source: WeightSource, config: ModelConfig, ops: Ops, progress: Progress | None = None) -> Model:
    """Hands every tensor of the file to `ops`. ModelFileError naming a missing or misshapen one.

    `progress(bytes_done, bytes_in_all)` is called on the way, the last time with both equal.
    """
    return assemble(WeightLoader(source, ops, progress), config, ARCHITECTURES[config.architecture].load_layer)
