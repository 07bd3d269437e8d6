"""Reading sound model files: against the reader of the `gguf` package, and against the written values."""

import shutil
import struct
import time
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import quants

from svc.errors import ModelFileError
from svc.gguf import gguf_file
from svc.gguf.gguf_file import GgufFile
from svc.gguf.writer import write_gguf

MODELS = sorted((Path(__file__).parents[1] / "data" / "gguf").glob("*.gguf"))
BF16_MODEL = next(path for path in MODELS if path.name == "tiny-qwen35-hd128-bf16.gguf")

METADATA = {
    "general.architecture": "toy",
    "toy.name": "Zoë",
    "toy.empty": "",
    "toy.small": 7,
    "toy.negative": -7,
    "toy.large": 1 << 40,
    "toy.eps": 0.5,
    "toy.double": np.float64(0.1),
    "toy.byte": np.uint8(255),
    "toy.short": np.int16(-300),
    "toy.yes": True,
    "toy.no": False,
    "toy.words": ["a", "", "ö b"],
    "toy.sections": [11, 11, 10, 0],
    "toy.mixed": [-1, 3],
    "toy.scores": [0.25, -1.5],
    "toy.flags": [True, False, True],
    "toy.wide": np.array([1 << 50, -1], np.int64),
}


@pytest.fixture
def toy(tmp_path: Path) -> GgufFile:
    matrix = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    tensors = {"cube": (matrix, "F32"), "halves": (matrix[0], "F16"), "vector": (matrix[0, 0], "F32")}
    write_gguf(tmp_path / "toy.gguf", METADATA, tensors)
    return GgufFile.open(tmp_path / "toy.gguf")


def test_there_are_models_to_test_with() -> None:
    """The loops below are over real files of four architectures."""
    assert {GgufFile.open(path).architecture for path in MODELS} >= {"qwen35", "qwen35moe", "qwen3next", "qwen3"}


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_tensors_are_those_the_stock_reader_finds(path: Path) -> None:
    """Names in order, shapes, types and bytes agree with gguf.GGUFReader."""
    ours, stock = GgufFile.open(path), gguf.GGUFReader(path)
    assert list(ours.tensors) == [tensor.name for tensor in stock.tensors]
    for expected in stock.tensors:
        tensor = ours.tensors[expected.name]
        assert tensor.name == expected.name
        assert tensor.type == expected.tensor_type.name
        assert tensor.shape == tuple(reversed(expected.shape.tolist()))
        assert tensor.nbytes == expected.n_bytes
        assert tensor.data.shape[:-1] == tensor.shape[:-1]
        np.testing.assert_array_equal(tensor.data.ravel(), expected.data.view(np.uint8).ravel())


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_metadata_is_what_the_stock_reader_finds(path: Path) -> None:
    """Every key has the value gguf.GGUFReader gives it."""
    ours, stock = GgufFile.open(path), gguf.GGUFReader(path)
    fields = {key: field for key, field in stock.fields.items() if not key.startswith("GGUF.")}
    assert list(ours.metadata) == list(fields)
    for key, field in fields.items():
        value = ours.metadata[key]
        plain = value.tolist() if isinstance(value, np.ndarray) else value
        assert plain == field.contents(), key


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_every_tensor_decodes_as_the_oracle_decodes_it(path: Path) -> None:
    """All weights of all models, bit for bit."""
    for tensor in GgufFile.open(path).tensors.values():
        expected = quants.dequantize(tensor.data, gguf.GGMLQuantizationType[tensor.type])
        values = tensor.dequantize()
        assert values.shape == tensor.shape
        np.testing.assert_array_equal(values.view(np.uint32), expected.view(np.uint32), err_msg=tensor.name)


def test_metadata_values_have_python_types(toy: GgufFile) -> None:
    """What was written comes back, with the type a caller expects: bool is not int, numbers in arrays stay numpy."""
    for key, written in METADATA.items():
        value = toy.metadata[key]
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, written)
            assert not value.flags.writeable or value.dtype.kind == "b"
        else:
            assert value == written, key
            assert type(value) in (str, bool, int, float, list), key
    assert toy.metadata["toy.yes"] is True
    assert toy.metadata["toy.sections"].dtype == np.uint32  # type: ignore[union-attr]
    assert (toy.version, toy.architecture) == (3, "toy")


def test_views_show_the_written_values(toy: GgufFile) -> None:
    """Shapes are in numpy order; the bytes of F32 and F16 are the values."""
    np.testing.assert_array_equal(toy.tensors["cube"].dequantize(), np.arange(24).reshape(2, 3, 4))
    assert toy.tensors["cube"].data.shape == (2, 3, 16)
    halves = toy.tensors["halves"].data.view(np.float16)
    np.testing.assert_array_equal(halves, np.arange(12).reshape(3, 4))
    assert toy.tensors["vector"].shape == (4,)


def test_the_file_is_mapped_not_copied() -> None:
    """Opening a 10 MB model allocates a small part of that, and nothing can write to the weights."""
    tracemalloc.start()
    try:
        model = GgufFile.open(BF16_MODEL)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < model.file_bytes / 10
    for tensor in model.tensors.values():
        assert not tensor.data.flags.writeable
        assert not tensor.data.flags.owndata


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux says what of a map is in memory")
def test_reading_in_brings_everything_into_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the map is ours before, all of it is after every tensor was read in; and it tells so a little at a time."""
    monkeypatch.setattr(gguf_file, "READ_BYTES", 100_000)
    path = tmp_path / "model.gguf"  # a file of its own: another test may still have a map of the shared one
    shutil.copyfile(BF16_MODEL, path)
    model = GgufFile.open(path)
    before = _resident_bytes(path)
    for tensor in model.tensors.values():
        done = [0, *tensor.read_in()]
        assert done[-1] == tensor.nbytes
        assert all(0 < step <= 100_000 for step in np.diff(done))
    first = min(tensor.data.ctypes.data for tensor in model.tensors.values())
    weights = max(tensor.data.ctypes.data + tensor.nbytes for tensor in model.tensors.values()) - first
    assert before < weights < model.file_bytes
    assert _resident_bytes(path) >= weights


def _resident_bytes(path: Path) -> int:
    """Of the largest map of a file: what this process has touched since it was made."""
    found, ours = [0], False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if not line.split()[0].endswith(":"):
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            found.append(int(line.split()[1]) * 1024)
    return found[-1]


def test_a_slice_of_every_expert_is_read_in_without_a_copy() -> None:
    """Parts of a stack are not contiguous: each is read for itself."""
    stack = np.arange(3 * 8 * 1000, dtype=np.uint32).view(np.uint8).reshape(3, 8, 4000)
    tensor = gguf_file.GgufTensor("part", (3, 4, 1000), "F32", stack[:, 2:6])
    tracemalloc.start()
    try:
        done = list(tensor.read_in())
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert done == [16_000, 32_000, 48_000]
    assert peak_bytes < 10_000


def test_arrays_outlive_the_file_object() -> None:
    """A tensor keeps the map alive by itself."""
    tensor = GgufFile.open(BF16_MODEL).tensors["output_norm.weight"]
    assert np.isfinite(tensor.dequantize()).all()


def test_a_large_vocabulary_opens_in_well_under_a_second(tmp_path: Path) -> None:
    """A vocabulary-only file with 250k tokens and as many merges: no tensors, and no half minute of waiting."""
    words = [f"tok{number}" for number in range(250_000)]
    write_gguf(tmp_path / "vocab.gguf", {"general.architecture": "toy", "tokenizer.ggml.tokens": words, "m": words}, {})
    before = time.process_time()
    file = GgufFile.open(tmp_path / "vocab.gguf")
    seconds = time.process_time() - before
    assert file.get_strs("tokenizer.ggml.tokens") == words
    assert len(file.tensors) == 0
    assert seconds < 1.0


def test_version_2_is_read_too(tmp_path: Path, toy: GgufFile) -> None:
    """Version 2 has the same layout."""
    content = bytearray(toy.path.read_bytes())
    content[4:8] = struct.pack("<I", 2)
    older = tmp_path / "older.gguf"
    older.write_bytes(content)
    file = GgufFile.open(older)
    assert file.version == 2
    np.testing.assert_array_equal(file.tensors["cube"].data, toy.tensors["cube"].data)


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_other_alignments_are_obeyed(tmp_path: Path, alignment: int) -> None:
    """Data starts where general.alignment says (tensor sizes here are no multiple of any of them)."""
    values = {name: np.full((3,), index, np.float32) for index, name in enumerate("abc")}
    metadata = {"general.architecture": "toy", "general.alignment": alignment}
    write_gguf(tmp_path / "aligned.gguf", metadata, {name: (array, "F32") for name, array in values.items()})
    tensors = GgufFile.open(tmp_path / "aligned.gguf").tensors
    for name, array in values.items():
        np.testing.assert_array_equal(tensors[name].dequantize(), array)


def test_a_description_in_another_encoding_does_no_harm(tmp_path: Path, toy: GgufFile) -> None:
    """Invalid UTF-8 in a plain string is replaced, not refused."""
    content = toy.path.read_bytes().replace("Zoë".encode(), b"Zo\xeb!")
    (tmp_path / "latin.gguf").write_bytes(content)
    assert GgufFile.open(tmp_path / "latin.gguf").get_str("toy.name") == "Zo\ufffd!"


def test_getters_return_the_value(toy: GgufFile) -> None:
    """Each getter returns its kind of value; numbers may be integers; one value may replace one per layer."""
    assert toy.get_int("toy.large") == 1 << 40
    assert toy.get_float("toy.eps") == 0.5
    assert toy.get_float("toy.small") == 7.0
    assert toy.get_bool("toy.yes") is True
    assert toy.get_str("toy.empty") == ""
    assert toy.get_strs("toy.words") == ["a", "", "ö b"]
    assert toy.get_ints("toy.sections", length=4) == [11, 11, 10, 0]
    assert toy.get_ints("toy.small", length=3) == [7, 7, 7]
    assert toy.get_bools("toy.flags") == [True, False, True]
    assert toy.get_bools("toy.no", length=2) == [False, False]


@pytest.mark.parametrize("getter", ["get_int", "get_float", "get_bool", "get_str", "get_ints", "get_bools", "get_strs"])
def test_a_missing_key_is_named_or_replaced_by_the_default(toy: GgufFile, getter: str) -> None:
    """Without a default the message names file and key; with one, None included, it is returned."""
    with pytest.raises(ModelFileError, match=r"toy\.gguf: the metadata key toy\.absent is missing"):
        getattr(toy, getter)("toy.absent")
    assert getattr(toy, getter)("toy.absent", None) is None


@pytest.mark.parametrize(
    ("getter", "key"),
    [
        ("get_int", "toy.yes"),
        ("get_int", "toy.eps"),
        ("get_int", "toy.sections"),
        ("get_float", "toy.name"),
        ("get_float", "toy.no"),
        ("get_bool", "toy.small"),
        ("get_str", "toy.words"),
        ("get_ints", "toy.scores"),
        ("get_ints", "toy.flags"),
        ("get_ints", "toy.small"),
        ("get_bools", "toy.sections"),
        ("get_strs", "toy.name"),
    ],
)
def test_a_wrong_type_is_named_even_with_a_default(toy: GgufFile, getter: str, key: str) -> None:
    """A key that is there but of another type is never silently replaced."""
    with pytest.raises(ModelFileError, match=rf"toy\.gguf: the metadata key {key} is .*, not "):
        getattr(toy, getter)(key, None)


def test_a_wrong_length_is_named(toy: GgufFile) -> None:
    """One entry per layer means exactly that."""
    with pytest.raises(ModelFileError, match=r"toy\.sections has 4 entries instead of 5"):
        toy.get_ints("toy.sections", length=5)


def resident_kib(path: Path) -> int:
    """Of the maps of a file."""
    found, here = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            here = line.endswith(path.name)
        elif here and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


def test_a_file_without_its_vocabulary(tmp_path: Path) -> None:
    """Short values stay, arrays with an entry per token go, the header's pages are given back; tensors are the same bytes."""
    path, tokens = tmp_path / "words.gguf", [f"a token of some length {i}" for i in range(20000)]
    long = {"toy.tokens": tokens, "toy.types": np.arange(20000, dtype=np.int32), "toy.title": "x" * 5000}
    matrix = np.arange(2**16, dtype=np.float32).reshape(16, -1)
    write_gguf(path, METADATA | long, {"matrix": (matrix, "F32")})
    file = GgufFile.open(path)
    assert file.tensors["matrix"].data.sum(dtype=np.int64) >= 0  # its pages are in memory too
    before = resident_kib(path) if Path("/proc/self/smaps").exists() else 0
    kept = file.without_vocabulary()
    assert set(kept.metadata) == set(file.metadata) - {"toy.tokens", "toy.types"}
    assert kept.metadata["toy.sections"] is file.metadata["toy.sections"]
    if before:
        assert before - resident_kib(path) > 500  # of about 700 KiB
    assert kept.tensors["matrix"].dequantize().tobytes() == matrix.tobytes()
    np.testing.assert_array_equal(file.metadata["toy.types"], np.arange(20000))  # where somebody has it still
