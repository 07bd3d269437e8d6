"""Models split into several files: the same model as in one file, and every way in which a part can be the wrong one."""

import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from svc.errors import ModelFileError
from svc.gguf.gguf_file import GgufFile
from svc.gguf.parts import stem
from svc.gguf.writer import write_gguf
from tests.compute.rig import GGUF, Rig, prompt
from tests.gguf.test_damaged_files import ARCHITECTURE, STRING, entry, gguf_bytes, key, string
from tests.model.arch.test_layouts import parts

MODEL = "tiny-qwen35moe-Q4_K_M"
U16, I32 = 2, 5


def named(number: int, count: int = 3, name: str = "toy") -> str:
    return f"{name}-{number:05}-of-{count:05}.gguf"


def part_bytes(
    number: int, *, count: int = 3, total: int = 3, tensors: tuple[str, ...] = (), keys: tuple[bytes, ...] = ()
) -> bytes:
    """A part as gguf-split writes it, with vectors of eight values; by hand, so that everything about it can be wrong."""
    split = [
        key("split.no", U16, struct.pack("<H", number - 1)),
        key("split.count", U16, struct.pack("<H", count)),
        key("split.tensors.count", I32, struct.pack("<i", total)),
    ]
    entries = [entry(name, [8], offset=32 * index) for index, name in enumerate(tensors)]
    data = np.arange(8 * len(tensors), dtype="<f4").tobytes()
    return gguf_bytes([*keys, *split], entries, data)


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """The directory of a sound model in three parts: metadata alone, two tensors, one tensor."""
    (tmp_path / named(1)).write_bytes(part_bytes(1, keys=(ARCHITECTURE,)))
    (tmp_path / named(2)).write_bytes(part_bytes(2, tensors=("a", "b")))
    (tmp_path / named(3)).write_bytes(part_bytes(3, tensors=("c",)))
    return tmp_path


@pytest.mark.parametrize("number", [1, 2, 3])
def test_any_part_opens_the_whole(toy: Path, number: int) -> None:
    """Metadata from the first part and tensors from all, whichever part is named; the first part may have no tensor."""
    file = GgufFile.open(toy / named(number))
    assert (file.path, file.architecture) == (toy / named(1), "toy")
    assert file.paths == tuple(toy / named(part) for part in (1, 2, 3))
    assert {name: tensor.dequantize()[0] for name, tensor in file.tensors.items()} == {"a": 0.0, "b": 8.0, "c": 0.0}
    assert file.file_bytes == sum(path.stat().st_size for path in file.paths)


def test_a_split_model_is_the_same_model(tmp_path: Path) -> None:
    """Split by the `gguf` package's writer: the same keys and tensors as in one file, and the same logits bit for bit."""
    metadata, tensors = parts(MODEL)
    write_gguf(tmp_path / "model.gguf", metadata, tensors, split_tensors=-(-len(tensors) // 3))
    first = tmp_path / named(1, name="model")
    split, whole = GgufFile.open(first), GgufFile.open(GGUF / f"{MODEL}.gguf")
    assert len(split.paths) == 3
    assert set(split.metadata) - set(whole.metadata) == {"split.no", "split.count", "split.tensors.count"}
    assert list(split.tensors) == list(whole.tensors)
    for name, tensor in whole.tensors.items():
        np.testing.assert_array_equal(split.tensors[name].data, tensor.data)
    tokens = prompt("s2")
    np.testing.assert_array_equal(
        Rig(first).prefill(tokens).view(np.uint32), Rig(GGUF / f"{MODEL}.gguf").prefill(tokens).view(np.uint32)
    )


def test_parts_behind_links(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A download cache has links with the right names to files without: the names of the links count."""
    cache = tmp_path_factory.mktemp("cache")
    for number in (1, 2, 3):
        (toy / named(number)).rename(cache / f"blob{number}")
        (toy / named(number)).symlink_to(cache / f"blob{number}")
    assert list(GgufFile.open(toy / named(2)).tensors) == ["a", "b", "c"]


def test_one_part_of_one_is_a_whole_file(tmp_path: Path) -> None:
    """gguf-split makes such a file of a small model; it may have any name."""
    for name in (named(1, 1), "renamed.gguf"):
        (tmp_path / name).write_bytes(part_bytes(1, count=1, total=1, tensors=("a",), keys=(ARCHITECTURE,)))
        assert list(GgufFile.open(tmp_path / name).tensors) == ["a"]


def test_stem() -> None:
    """The model's name in a file name has no part number."""
    assert stem(Path("/m/Qwen3-Next-Q4_K_M-00002-of-00005.gguf")) == "Qwen3-Next-Q4_K_M"
    assert stem(Path("/m/of-00001.v2.gguf")) == "of-00001.v2"


def rewrite(number: int, content: bytes) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        (directory / named(number)).write_bytes(content)

    return damage


def remove(directory: Path) -> None:
    (directory / named(2)).unlink()


def swap(directory: Path) -> None:
    (directory / named(2)).rename(directory / "x")
    (directory / named(3)).rename(directory / named(2))
    (directory / "x").rename(directory / named(3))


def duplicate(directory: Path) -> None:
    shutil.copy(directory / named(2), directory / named(3))


def cut(directory: Path) -> None:
    content = (directory / named(3)).read_bytes()
    (directory / named(3)).write_bytes(content[:-1])


def make_directory(directory: Path) -> None:
    remove(directory)
    (directory / named(2)).mkdir()


WHOLE_FILE = gguf_bytes([ARCHITECTURE], [entry("a", [8])], np.zeros(8, "<f4").tobytes())
OTHER_MODEL = key("general.architecture", STRING, string("other"))


@pytest.mark.parametrize(
    ("damage", "culprit", "reason"),
    [
        (remove, 2, "there is no such file.*part 2 of 3"),
        (make_directory, 2, "directory"),
        (swap, 2, "is part 3 of 3, but its name says part 2"),
        (duplicate, 3, "is part 2 of 3, but its name says part 3"),
        (cut, 3, "the tensor c ends 1 bytes after the end"),
        (rewrite(2, b""), 2, "empty"),
        (rewrite(2, b"GGUF"), 2, "truncated"),
        (rewrite(2, WHOLE_FILE), 2, "is not a part of a split model.*part 2 of 3"),
        (rewrite(2, part_bytes(2, count=4, tensors=("a", "b"))), 2, "is one part of 4.*part 2 of 3"),
        (rewrite(2, part_bytes(2, total=9, tensors=("a", "b"))), 2, "part 2 of another model"),
        (rewrite(2, part_bytes(2, tensors=("a", "b"), keys=(OTHER_MODEL,))), 2, "part 2 of another model"),
        (rewrite(3, part_bytes(3, tensors=("b",))), 3, f"the tensor b is in {re.escape(named(2))} already"),
        (rewrite(3, part_bytes(3)), 1, "2 tensors together instead of 3"),
        (rewrite(3, part_bytes(3, tensors=("c", "d"))), 1, "4 tensors together instead of 3"),
        (rewrite(1, part_bytes(1)), 1, "general.architecture is missing"),
    ],
)
def test_a_wrong_part_is_named(toy: Path, damage: Callable[[Path], None], culprit: int, reason: str) -> None:
    """For any fault of one part, one line names that file; the file asked for is the first."""
    damage(toy)
    with pytest.raises(ModelFileError) as caught:
        GgufFile.open(toy / named(1))
    message = str(caught.value)
    assert message.startswith(f"{toy / named(culprit)}: ")
    assert re.search(reason, message)
    assert "\n" not in message


@pytest.mark.parametrize("number", [1, 2, 3])
def test_every_truncation_of_a_part_names_it(toy: Path, number: int) -> None:
    """Cut anywhere, in its header or in its data, a part is refused by name; nothing else is ever raised."""
    path, content = toy / named(number), (toy / named(number)).read_bytes()
    needed = len(content.rstrip(b"\0")) if number == 1 else len(content)  # without tensors the padding may be missing
    for size in range(needed):
        path.write_bytes(content[:size])
        with pytest.raises(ModelFileError) as caught:
            GgufFile.open(toy / named(1))
        assert str(caught.value).startswith(f"{path}: "), size


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("toy.gguf", "one part of a model split into 3 files, but its name does not end in -00001-of-00003.gguf"),
        (named(1, 4), "says that it is one part of 3, and its name something else"),
        (named(7), "there is no part 7 of 3"),
        (named(0), "there is no part 0 of 3"),
        (named(3), "is part 1 of 3, but its name says part 3"),
    ],
)
def test_a_renamed_part(toy: Path, name: str, reason: str) -> None:
    """A part whose own name does not lead to the others, or to itself."""
    (toy / named(1)).rename(toy / name)
    (toy / named(1)).write_bytes(part_bytes(1, keys=(ARCHITECTURE,)))
    with pytest.raises(ModelFileError, match=re.escape(reason)) as caught:
        GgufFile.open(toy / name)
    assert str(caught.value).startswith(f"{toy / name}: ")


def test_a_damaged_number_is_named(toy: Path) -> None:
    """The keys of a part are checked like all others."""
    rewrite(2, gguf_bytes([key("split.no", STRING, string("one")), key("split.count", U16, struct.pack("<H", 3))]))(toy)
    with pytest.raises(ModelFileError, match=r"00002-of-00003\.gguf: the metadata key split\.no is a string, not an integer"):
        GgufFile.open(toy / named(1))


def test_many_parts_that_are_not_there(tmp_path: Path) -> None:
    """A count out of thin air costs one sentence, not sixty thousand look-ups."""
    path = tmp_path / named(1, 65535)
    path.write_bytes(part_bytes(1, count=65535, keys=(ARCHITECTURE,)))
    with pytest.raises(ModelFileError, match=r"00002-of-65535\.gguf: there is no such file"):
        GgufFile.open(path)
