"""Files that cannot be used: one sentence that names the culprit, never another exception, never a huge allocation."""

import os
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from svc.errors import ModelFileError
from svc.gguf.gguf_file import GgufFile
from svc.gguf.writer import write_gguf

HUGE = 1 << 60
F32, Q4_K, Q8_1 = 0, 12, 9
U32, BOOL, STRING, ARRAY, U64 = 4, 7, 8, 9, 10


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def key(name: str | bytes, type_id: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", type_id) + value


def entry(name: str | bytes, dimensions: list[int], type_id: int = F32, offset: int = 0) -> bytes:
    """One line of the tensor directory; dimensions as ggml orders them, fastest first."""
    return string(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, type_id, offset)


ARCHITECTURE = key("general.architecture", STRING, string("toy"))


def gguf_bytes(
    keys: list[bytes] | None = None,
    entries: list[bytes] | None = None,
    data: bytes = b"",
    *,
    version: bytes = struct.pack("<I", 3),
    num_tensors: int | None = None,
    num_keys: int | None = None,
) -> bytes:
    """A file made by hand; the counts can be made to lie."""
    keys = [ARCHITECTURE] if keys is None else keys
    entries = [] if entries is None else entries
    counts = struct.pack("<QQ", len(entries) if num_tensors is None else num_tensors, len(keys) if num_keys is None else num_keys)
    header = b"GGUF" + version + counts + b"".join(keys) + b"".join(entries)
    return header + bytes(-len(header) % 32) + data


Refused = Callable[[bytes], str]


@pytest.fixture
def refused(tmp_path: Path) -> Refused:
    """Opens the bytes as a file, expects ModelFileError and little memory, and returns the message without the path."""

    def message_of(content: bytes) -> str:
        path = tmp_path / "bad.gguf"
        path.write_bytes(content)
        tracemalloc.start()
        try:
            with pytest.raises(ModelFileError) as caught:
                GgufFile.open(path)
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak_bytes < 200_000 + 16 * len(content)
        message = str(caught.value)
        assert message.startswith(f"{path}: ")
        assert "\n" not in message
        return message.removeprefix(f"{path}: ")

    return message_of


def test_the_hand_made_file_is_sound(tmp_path: Path) -> None:
    """The builder makes a file that opens, so that the refusals below are for the reason each test gives."""
    path = tmp_path / "good.gguf"
    path.write_bytes(gguf_bytes(entries=[entry("t", [4, 2])], data=np.arange(8, dtype="<f4").tobytes()))
    np.testing.assert_array_equal(GgufFile.open(path).tensors["t"].dequantize(), [[0, 1, 2, 3], [4, 5, 6, 7]])


def test_a_scalar_entry_becomes_a_vector_of_one(tmp_path: Path) -> None:
    """A tensor with no dimensions holds one value, as in ggml."""
    path = tmp_path / "scalar.gguf"
    path.write_bytes(gguf_bytes(entries=[entry("t", [])], data=struct.pack("<f", 2.5)))
    assert GgufFile.open(path).tensors["t"].dequantize().tolist() == [2.5]


# -- the path itself -------------------------------------------------------------------------------------------


def test_a_missing_file(tmp_path: Path) -> None:
    """The path is named."""
    with pytest.raises(ModelFileError, match=r"nowhere\.gguf: there is no such file"):
        GgufFile.open(tmp_path / "nowhere.gguf")


def test_a_directory(tmp_path: Path) -> None:
    """A directory is called one."""
    with pytest.raises(ModelFileError, match="is a directory"):
        GgufFile.open(str(tmp_path))


def test_a_pipe(tmp_path: Path) -> None:
    """A pipe is refused at once; opening it would wait for a writer forever."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="not a regular file"):
        GgufFile.open(tmp_path / "pipe")


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's refusal becomes a sentence. (Simulated: the tests may run as root, whom nothing is refused.)"""
    (tmp_path / "secret.gguf").write_bytes(gguf_bytes())

    def refuse(self: Path, *arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ModelFileError, match=r"secret\.gguf: no permission"):
        GgufFile.open(tmp_path / "secret.gguf")


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000])
def test_an_impossible_path(path: str) -> None:
    """A path the system does not accept at all."""
    with pytest.raises(ModelFileError, match="cannot be opened"):
        GgufFile.open(path)


# -- the first bytes -----------------------------------------------------------------------------------------------


def test_an_empty_file(refused: Refused) -> None:
    """Zero bytes cannot be mapped, and say so."""
    assert refused(b"") == "the file is empty"


@pytest.mark.parametrize("content", [b"G", b"GGU", b"PK\3\4" + bytes(100), b"ggjt" + bytes(100), b"<html>404</html>"])
def test_another_kind_of_file(refused: Refused, content: bytes) -> None:
    """Anything that does not begin with GGUF."""
    assert "not a GGUF file" in refused(content)


def test_a_big_endian_file(refused: Refused) -> None:
    """Big-endian files are refused by that name."""
    assert "big-endian" in refused(gguf_bytes(version=struct.pack(">I", 3)))


@pytest.mark.parametrize("version", [0, 1, 4, 70000])
def test_another_version(refused: Refused, version: int) -> None:
    """The version is named."""
    assert f"version {version} " in refused(gguf_bytes(version=struct.pack("<I", version)))


# -- metadata ------------------------------------------------------------------------------------------------------


def test_no_architecture(refused: Refused) -> None:
    """Every model file says what it is."""
    assert refused(gguf_bytes(keys=[])) == "the metadata key general.architecture is missing"
    assert "general.architecture is an integer" in refused(gguf_bytes([key("general.architecture", U32, bytes(4))]))


def test_a_key_twice(refused: Refused) -> None:
    """Which one would count?"""
    assert refused(gguf_bytes([ARCHITECTURE, ARCHITECTURE])) == "the metadata key general.architecture occurs twice"


def test_unknown_value_types(refused: Refused) -> None:
    """Types outside the table, alone or in an array, and arrays of arrays."""
    assert "the metadata key k has the unknown value type 13" in refused(gguf_bytes([key("k", 13, bytes(8))]))
    assert "k has the unknown value type 99" in refused(gguf_bytes([key("k", ARRAY, struct.pack("<IQ", 99, 1))]))
    assert "k is an array of arrays" in refused(gguf_bytes([key("k", ARRAY, struct.pack("<IQ", ARRAY, 1))]))


@pytest.mark.parametrize("count", [3, 1 << 32, HUGE, (1 << 64) - 1])
def test_counts_that_lie(refused: Refused, count: int) -> None:
    """Numbers of keys, tensors, array elements, and lengths of strings, larger than the file could hold."""
    assert "damaged" in refused(gguf_bytes([ARCHITECTURE], num_keys=count))
    assert "damaged" in refused(gguf_bytes(entries=[entry("t", [1])], num_tensors=count))
    for element_type in (U32, STRING, U64, BOOL):
        array = key("liar", ARRAY, struct.pack("<IQ", element_type, max(count, 1000)))
        assert "inside the metadata key liar" in refused(gguf_bytes([ARCHITECTURE, array]))
    text = struct.pack("<Q", max(count, 1000))
    assert "inside the metadata key liar" in refused(gguf_bytes([ARCHITECTURE, key("liar", STRING, text)]))
    words = key("liar", ARRAY, struct.pack("<IQ", STRING, 2) + string("good") + text + bytes(64))
    assert "inside the metadata key liar" in refused(gguf_bytes([ARCHITECTURE, words]))
    assert "inside metadata key number 1 of 1" in refused(gguf_bytes([text + bytes(64)]))


@pytest.mark.parametrize(
    "lie",
    [
        key("liar", STRING, struct.pack("<Q", 1 << 33)),
        key("liar", ARRAY, struct.pack("<IQ", STRING, 1 << 30)),
        key("liar", ARRAY, struct.pack("<IQQ", STRING, 1, 1 << 33)),
        struct.pack("<Q", 1 << 33),
    ],
)
def test_lengths_that_lie_inside_a_large_file(tmp_path: Path, lie: bytes) -> None:
    """In a file of 16 GiB (sparse) a wrong length need not reach the end; still nothing large is read."""
    path = tmp_path / "large.gguf"
    path.write_bytes(gguf_bytes([ARCHITECTURE, lie]))
    os.truncate(path, 1 << 34)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match=r"large\.gguf: (the metadata key liar|metadata key number 2 of 2) "):
            GgufFile.open(path)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        path.unlink()
    assert peak_bytes < 200_000


def test_names_that_are_no_text(refused: Refused) -> None:
    """Keys, tensor names and vocabulary entries must be UTF-8, and the first two not empty; which one is not is said."""
    assert "metadata key number 2 of 2 has no name" in refused(gguf_bytes([ARCHITECTURE, key("", U32, bytes(4))]))
    assert "tensor number 1 of 1 has no name" in refused(gguf_bytes(entries=[entry("", [1])]))
    assert "metadata key number 2 of 2" in refused(gguf_bytes([ARCHITECTURE, key(b"\xff", U32, bytes(4))]))
    assert "tensor number 1 of 1" in refused(gguf_bytes(entries=[entry(b"\xff", [1])]))
    words = struct.pack("<IQ", STRING, 2) + string("good") + string(b"\xff")
    assert "entry 1 of the metadata key words" in refused(gguf_bytes([ARCHITECTURE, key("words", ARRAY, words)]))


def test_a_name_made_to_spoil_the_message(refused: Refused) -> None:
    """Control characters are escaped and long names cut: the message stays one short line."""
    message = refused(gguf_bytes([key("a\nb\x1b[31m" + "c" * 10_000, 99, b"")]))
    assert r"a\nb\x1b[31m" in message
    assert len(message) < 250


@pytest.mark.parametrize("alignment", [0, 1, 4, 24, 33])
def test_a_bad_alignment(refused: Refused, alignment: int) -> None:
    """Zero would divide by zero; the others are no power of two of at least 8."""
    alignment_key = key("general.alignment", U32, struct.pack("<I", alignment))
    assert "general.alignment" in refused(gguf_bytes([ARCHITECTURE, alignment_key]))
    assert "general.alignment" in refused(gguf_bytes([ARCHITECTURE, key("general.alignment", STRING, string("32"))]))


def test_a_part_without_its_name(refused: Refused) -> None:
    """One part of several is refused for what it is when its name does not lead to the others."""
    assert "split into 3 files" in refused(gguf_bytes([ARCHITECTURE, key("split.count", 2, struct.pack("<H", 3))]))


# -- the tensor directory ------------------------------------------------------------------------------------------


def test_a_tensor_twice(refused: Refused) -> None:
    """The name is given."""
    assert refused(gguf_bytes(entries=[entry("t", [1])] * 2, data=bytes(32))) == "the tensor t occurs twice"


@pytest.mark.parametrize(("type_id", "shown"), [(Q8_1, "Q8_1"), (31, "number 31"), (1 << 31, "number 2147483648")])
def test_a_type_we_do_not_read(refused: Refused, type_id: int, shown: str) -> None:
    """By its name where it has one."""
    message = refused(gguf_bytes(entries=[entry("t", [32], type_id)], data=bytes(64)))
    assert message == f"the tensor t has the type {shown}, which is not supported"


def test_rows_that_are_no_whole_blocks(refused: Refused) -> None:
    """A Q4_K row of 128 values."""
    message = refused(gguf_bytes(entries=[entry("t", [128, 2], Q4_K)], data=bytes(256)))
    assert message.startswith("the tensor t has rows of 128 values")


@pytest.mark.parametrize("dimensions", [[0], [4, 0], [1, 1, 1, 1, 1]])
def test_impossible_dimensions(refused: Refused, dimensions: list[int]) -> None:
    """A dimension of zero, and more than four."""
    assert "the tensor t has " in refused(gguf_bytes(entries=[entry("t", dimensions)], data=bytes(64)))


@pytest.mark.parametrize(
    ("dimensions", "offset"),
    [([9], 0), ([8], 32), ([HUGE], 0), ([1 << 32] * 2, 0), ([HUGE] * 4, 0), ([8], HUGE), ([8], (1 << 64) - 8)],
)
def test_a_tensor_behind_the_end(refused: Refused, dimensions: list[int], offset: int) -> None:
    """Sizes and offsets beyond the file, also where 64-bit arithmetic would wrap around to something small."""
    message = refused(gguf_bytes(entries=[entry("t", dimensions, offset=offset)], data=bytes(32)))
    assert message.startswith("the file is truncated or damaged: the tensor t ends ")


def test_an_unaligned_tensor(refused: Refused) -> None:
    """Kernels read whole words; an odd offset is no file any tool writes."""
    assert "unaligned offset 4" in refused(gguf_bytes(entries=[entry("t", [4], offset=4)], data=bytes(64)))


# -- anything at all -----------------------------------------------------------------------------------------------


@pytest.fixture
def small_file(tmp_path: Path) -> Path:
    """A file with every kind of value and two tensors, 1 kB long."""
    metadata = {
        "general.architecture": "toy",
        "general.alignment": 32,
        "toy.words": ["ab", "c"],
        "toy.sections": [1, 2, 3],
        "toy.flag": True,
        "toy.flags": [True, False],
        "toy.eps": 0.5,
        "toy.large": 1 << 40,
    }
    values = np.arange(64, dtype=np.float32).reshape(2, 32)
    write_gguf(tmp_path / "small.gguf", metadata, {"a.weight": (values, "Q8_0"), "b.bias": (values[0], "F32")})
    return tmp_path / "small.gguf"


def open_and_touch(path: Path) -> bool:
    """Whether the file opens; if so, everything in it can be looked at."""
    try:
        file = GgufFile.open(path)
    except ModelFileError:
        return False
    repr(file)
    for tensor in file.tensors.values():
        assert tensor.dequantize().shape == tensor.shape
    return True


def test_every_truncation_is_refused(small_file: Path) -> None:
    """A file cut anywhere, be it by one byte, never opens: the last tensor's data is missing at least."""
    content = small_file.read_bytes()
    used_bytes = len(content) - content[::-1].index(np.float32(31).tobytes()[::-1])
    for length in range(used_bytes):
        small_file.write_bytes(content[:length])
        assert not open_and_touch(small_file), f"opened with {length} of {used_bytes} bytes"


def test_every_flipped_bit_is_survived(small_file: Path) -> None:
    """One flipped bit anywhere in the header: the file opens or is refused in one sentence."""
    content = small_file.read_bytes()
    header_bytes = content.index(b"b.bias") + 40
    outcomes = set()
    for position in range(header_bytes):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[position] ^= 1 << bit
            small_file.write_bytes(damaged)
            outcomes.add(open_and_touch(small_file))
    assert outcomes == {True, False}


def test_random_damage_is_survived(small_file: Path) -> None:
    """Several bytes overwritten at random, extreme ones more often, or the tail replaced by noise (seeded)."""
    content = small_file.read_bytes()
    dice = random.Random(20)
    for _ in range(2000):
        damaged = bytearray(content)
        for _ in range(dice.randint(1, 8)):
            damaged[dice.randrange(len(damaged))] = dice.choice([0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)])
        if dice.random() < 0.2:
            start = dice.randrange(4, len(damaged))
            damaged[start:] = dice.randbytes(len(damaged) - start)
        small_file.write_bytes(damaged)
        open_and_touch(small_file)
