"""The architectures that can be served: one file and one line of this table each."""

from svc.errors import ModelFileError
from svc.gguf.gguf_file import GgufFile
from svc.gguf.tensors import WeightSource
from svc.model.arch import llama, qwen2, qwen3, qwen3moe, qwen3next, qwen35, qwen35moe
from svc.model.arch.architecture import Architecture, assemble
from svc.model.arch.model import Model
from svc.model.layers.loading import Progress, WeightLoader, WeightStore
from svc.model.model_config import ModelConfig

__all__ = ["ARCHITECTURES", "Model", "load_model", "read_config"]

ARCHITECTURES: dict[str, Architecture] = {
    "qwen3next": qwen3next.ARCHITECTURE,
    "qwen35": qwen35.ARCHITECTURE,
    "qwen35moe": qwen35moe.ARCHITECTURE,
    "llama": llama.ARCHITECTURE,
    "qwen2": qwen2.ARCHITECTURE,
    "qwen3": qwen3.ARCHITECTURE,
    "qwen3moe": qwen3moe.ARCHITECTURE,
    # The text part of Qwen3-VL: the three components of a position are equal for text, which makes the rotation the plain one, and
    # the additions of image tokens to the first layers are absent.
    "qwen3vl": qwen3.ARCHITECTURE,
    "qwen3vlmoe": qwen3moe.ARCHITECTURE,
}


def read_config(file: GgufFile) -> ModelConfig:
    """Reads the configuration. ModelFileError for an architecture that is not in the table, and for missing or invalid numbers."""
    _refuse_other_files(file)
    architecture = ARCHITECTURES.get(file.architecture)
    if architecture is None:
        raise ModelFileError(
            f"{file.path}: the architecture {file.architecture!r} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    return ModelConfig.read(file, architecture.traits)


def _refuse_other_files(file: GgufFile) -> None:
    """Refuses GGUF files that accompany a model. `general.type` is missing in older files."""
    kind = file.get_str("general.type", "model")
    if file.architecture == "clip" or kind == "mmproj":
        raise ModelFileError(
            f"{file.path}: this is the part of a model that sees or hears (mmproj), which is not supported; give the model file"
        )
    if kind != "model":
        raise ModelFileError(f"{file.path}: this is a file of the type {kind!r}, not a model")


def load_model(
    source: WeightSource, config: ModelConfig, store: WeightStore, progress: Progress | None = None, *, read_in: bool = True
) -> Model:
    """Passes every tensor of the file to `store`, a backend's ops. ModelFileError naming a missing or misshapen tensor.

    `progress(bytes_done, bytes_in_all)` is called on the way, the last time with both equal; an exception from it ends the load.
    `read_in`: read the weights from the disk now, not in the first steps. Only for a file that fits into memory; of a larger one
    the beginning would have been dropped by the end.
    """
    with source.file.being_read(whole=read_in):
        loader = WeightLoader(source, store, progress, read_in)
        return assemble(loader, config, ARCHITECTURES[config.architecture])
