"""`--random SHAPE[:TYPE]`: a named shape opened as if it were a file."""

from svc.cli.bench.random_weights import MIX, TYPES, apart, random_file
from svc.cli.bench.render import size
from svc.cli.bench.shapes import SHAPES
from svc.compute.model_file import OpenedModel
from svc.config import Config
from svc.errors import ConfigError, MemoryBudgetError
from svc.gguf.tensors import WeightSource
from svc.machine import available_memory_bytes


def list_shapes() -> str:
    return f"shapes: {', '.join(SHAPES)}\ntypes: {', '.join(TYPES)} (default: {MIX})"


def open_random(wanted: str, config: Config, *, has_own_memory: bool) -> OpenedModel:
    """`has_own_memory`: the device copies the weights; other devices use them in place.

    ConfigError for an unknown name, MemoryBudgetError if the weights do not fit into this machine's memory.
    """
    name, _, types = wanted.partition(":")
    shape, types = SHAPES.get(name.lower()), types.upper() or MIX
    if shape is None or types not in TYPES:
        raise ConfigError(
            f"--random must be a shape ({', '.join(SHAPES)}) with or without :TYPE ({', '.join(TYPES)}), not {wanted!r}"
        )
    file = random_file(shape, types)
    if not has_own_memory:
        free_bytes = available_memory_bytes()
        if file.file_bytes > free_bytes:
            raise MemoryBudgetError(
                f"--random {wanted} needs {size(file.file_bytes)} of memory for weights, but {size(free_bytes)} are free: "
                "take a smaller shape, or a GPU"
            )
        file = apart(file)
    return OpenedModel(file, shape, WeightSource(file), config.ctx or shape.full_context, ())


def _names() -> str:
    return f"the shapes {', '.join(SHAPES)} and the types {', '.join(TYPES)}"
