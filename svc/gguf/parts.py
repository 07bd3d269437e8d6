"""The parts of a split model: NAME-00001-of-00003.gguf and so on, as llama.cpp's gguf-split makes them.

Part 1 has the model's metadata. Every part has `split.no` (from 0), `split.count` and `split.tensors.count` (tensors in all
parts together), its own tensor directory and its own data; no tensor spans two parts. Nothing in the format says which
model a part belongs to: a part of the same model in another quantization cannot be told from the right one.
"""

import mmap
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from svc.errors import ModelFileError
from svc.gguf.header import Header, TensorEntry, read_header, shown
from svc.gguf.metadata import TypedMetadata

PART_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL | re.ASCII)
NUMBER, COUNT, TENSORS = "split.no", "split.count", "split.tensors.count"


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One mapped file with its header. An unsplit model has one part."""

    path: Path
    data: mmap.mmap
    header: Header

    def number(self, key: str, default: int) -> int:
        return TypedMetadata(self.path, self.header.metadata).get_int(key, default)


def stem(path: Path) -> str:
    """The model's part of a file name: without `.gguf`, and without the part's number."""
    match = PART_NAME.fullmatch(path.name)
    return match[1] if match else path.stem


def read_parts(path: Path) -> list[Part]:
    """The file or, if it is a part of a split model, all parts in order. ModelFileError naming the file at fault."""
    given = _read_part(path)
    count = given.number(COUNT, 0)
    if count <= 1:
        return [given]
    paths = _fellows(given, count)
    parts = [given if fellow == path else _read_fellow(fellow, index, given) for index, fellow in enumerate(paths)]
    for index, part in enumerate(parts):
        _check_keys(part, index, parts[0])
    _check_total(parts)
    return parts


def entries(parts: list[Part]) -> Iterator[tuple[Part, TensorEntry]]:
    """All lines of all directories; ModelFileError for a tensor that occurs twice."""
    owners: dict[str, Part] = {}
    for part in parts:
        for entry in part.header.entries:
            owner = owners.get(entry.name)
            if owner is not None:
                where = "occurs twice" if owner is part else f"is in {owner.path.name} already"
                raise ModelFileError(f"{part.path}: the tensor {shown(entry.name)} {where}")
            owners[entry.name] = part
            yield part, entry


def _fellows(given: Part, count: int) -> list[Path]:
    """The paths of all parts, derived from the name of one. (Links are not resolved: caches link to files without names.)"""
    match = PART_NAME.fullmatch(given.path.name)
    if match is None:
        raise ModelFileError(
            f"{given.path}: this is one part of a model split into {count} files, "
            f"but its name does not end in -00001-of-{count:05}.gguf, so that the others cannot be found"
        )
    if int(match[3]) != count:
        raise ModelFileError(f"{given.path}: the file says that it is one part of {count}, and its name something else")
    if not 1 <= int(match[2]) <= count:
        raise ModelFileError(f"{given.path}: there is no part {int(match[2])} of {count}")
    return [given.path.with_name(f"{match[1]}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]


def _read_fellow(path: Path, index: int, given: Part) -> Part:
    if not path.exists():
        count = given.number(COUNT, 0)
        raise ModelFileError(f"{path}: there is no such file, and {given.path.name} needs it: part {index + 1} of {count}")
    return _read_part(path)


def _check_keys(part: Part, index: int, first: Part) -> None:
    """Checks that the part's own keys agree with its name, and with the first part about the model."""
    count = first.number(COUNT, 0)
    other = part.number(COUNT, 0)
    if other != count:
        belongs = f"is one part of {other}" if other > 1 else "is not a part of a split model"
        raise ModelFileError(f"{part.path}: the file {belongs}, where part {index + 1} of {count} should be")
    number = part.number(NUMBER, -1)
    if number != index:
        raise ModelFileError(f"{part.path}: the file is part {number + 1} of {count}, but its name says part {index + 1}")
    architecture = "general.architecture"
    same = part.header.metadata.get(architecture, first.header.metadata.get(architecture))
    if part.number(TENSORS, 0) != first.number(TENSORS, 0) or same != first.header.metadata.get(architecture):
        raise ModelFileError(f"{part.path}: the file is part {index + 1} of another model than {first.path.name}")


def _check_total(parts: list[Part]) -> None:
    found = sum(len(part.header.entries) for part in parts)
    total = parts[0].number(TENSORS, found)
    if found != total:
        raise ModelFileError(
            f"{parts[0].path}: the {len(parts)} parts of the model have {found} tensors together instead of {total}; "
            "one of them belongs to another model"
        )


def _read_part(path: Path) -> Part:
    data = _map(path)
    return Part(path, data, read_header(path, data))


def _map(path: Path) -> mmap.mmap:
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ModelFileError(f"{path}: this is a directory, not a GGUF file")
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for a writer
            raise ModelFileError(f"{path}: this is not a regular file")
        if status.st_size == 0:
            raise ModelFileError(f"{path}: the file is empty")
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelFileError(f"{path}: there is no such file") from None
    except PermissionError:
        raise ModelFileError(f"{path}: no permission to read the file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path, or a file emptied just now
        raise ModelFileError(f"{path}: the file cannot be opened: {getattr(error, 'strerror', None) or error}") from None
