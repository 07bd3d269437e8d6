"""Takes tensors from a model file by name and expected shape, and knows which were not taken."""

from collections.abc import Sequence

from svc.errors import ModelFileError
from svc.gguf.gguf_file import GgufFile, GgufTensor
from svc.gguf.header import shown

Shape = tuple[int, ...]


class WeightSource:
    """The tensors of one file and which of them have been taken.

    Shapes are in numpy order (rows first). Where files disagree about a shape, pass a list of the allowed ones.
    """

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self._taken: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether the file has the tensor. Does not take it."""
        return name in self.file.tensors

    def take(self, name: str, shape: Shape | Sequence[Shape]) -> GgufTensor:
        """The tensor `name`; ModelFileError naming it if it is missing or has none of the allowed shapes."""
        allowed = allowed_shapes(shape)
        tensor = self.file.tensors.get(name)
        if tensor is None:
            raise ModelFileError(f"{self.file.path}: the tensor {name} is missing (expected shape {_listed(allowed)})")
        if tensor.shape not in allowed:
            raise ModelFileError(
                f"{self.file.path}: the tensor {name} has the shape {_text(tensor.shape)} instead of {_listed(allowed)}"
            )
        self._taken.add(name)
        return tensor

    def first_of(self, *names: str) -> str:
        """The first of `names` that the file has, for tensors with several names; the very first if it has none."""
        return next((name for name in names if self.has(name)), names[0])

    def unused(self) -> list[str]:
        """Names of the tensors never taken, in the file's order."""
        return [name for name in self.file.tensors if name not in self._taken]

    def __repr__(self) -> str:
        return f"<WeightSource {shown(str(self.file.path))}: {len(self._taken)} of {len(self.file.tensors)} tensors taken>"


def allowed_shapes(shape: Shape | Sequence[Shape]) -> list[Shape]:
    """One shape or a sequence of shapes, as a list of shapes."""
    sizes = tuple(size for size in shape if isinstance(size, int))
    if sizes:
        assert len(sizes) == len(shape), f"{shape} mixes sizes and shapes"
        return [sizes]
    return [tuple(alternative) for alternative in shape if not isinstance(alternative, int)]


def _text(shape: Shape) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _listed(shapes: list[Shape]) -> str:
    return " or ".join(map(_text, shapes))
