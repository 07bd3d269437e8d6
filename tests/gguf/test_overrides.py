"""Metadata replaced by the operator: the texts that say so, and what the file then seems to have."""

from pathlib import Path

import numpy as np
import pytest

from svc.errors import ConfigError
from svc.gguf.gguf_file import GgufFile
from svc.gguf.header import Scalar
from svc.gguf.overrides import parse_override, parse_overrides
from svc.gguf.writer import write_gguf

METADATA = {
    "general.architecture": "toy",
    "toy.layers": 4,
    "toy.eps": 0.5,
    "toy.name": "first",
    "toy.flag": False,
    "toy.heads": [2, 0, 2],
    "toy.scores": [0.5, 1.5],
    "toy.recurrent": [True, False],
    "toy.words": ["a", "b"],
}


@pytest.fixture
def toy(tmp_path: Path) -> GgufFile:
    write_gguf(tmp_path / "toy.gguf", METADATA, {"t": (np.ones(4, np.float32), "F32")})
    return GgufFile.open(tmp_path / "toy.gguf")


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("toy.layers=int:7", "toy.layers", 7),
        ("toy.layers=int:-7", "toy.layers", -7),
        ("toy.large=int:9223372036854775807", "toy.large", (1 << 63) - 1),
        ("toy.eps=float:0.25", "toy.eps", 0.25),
        ("toy.eps=float:1e-6", "toy.eps", float(np.float32(1e-6))),
        ("toy.eps=float:3", "toy.eps", 3.0),
        ("toy.flag=bool:true", "toy.flag", True),
        ("toy.flag=bool:false", "toy.flag", False),
        ("toy.name=str:", "toy.name", ""),
        ("toy.name=str:a = b: c\nd", "toy.name", "a = b: c\nd"),
    ],
)
def test_forms(text: str, key: str, value: object) -> None:
    """llama.cpp's four types; a float is what a file would hold, 32 bits; a text may contain anything."""
    parsed = parse_override(text)
    assert parsed == (key, value)
    assert type(parsed[1]) is type(value)


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ("toy.layers", "'toy.layers' is not of the form KEY=TYPE:VALUE"),
        ("toy.layers=7", "'toy.layers=7' is not of the form KEY=TYPE:VALUE"),
        ("=int:7", "is not of the form KEY=TYPE:VALUE"),
        ("", "is not of the form KEY=TYPE:VALUE"),
        ("toy.layers=u32:7", "unknown type 'u32'; types are int, float, bool, str"),
        ("toy.layers=:7", "unknown type ''"),
        ("toy.layers=int:seven", "the value of toy.layers must be a whole number of 64 bits, not 'seven'"),
        ("toy.layers=int:7.0", "the value of toy.layers must be a whole number"),
        ("toy.layers=int:", "the value of toy.layers must be a whole number"),
        ("toy.layers=int:9223372036854775808", "the value of toy.layers must be a whole number"),
        ("toy.eps=float:x", "the value of toy.eps must be a finite number, not 'x'"),
        ("toy.eps=float:nan", "the value of toy.eps must be a finite number"),
        ("toy.eps=float:1e39", "the value of toy.eps must be a finite number"),
        ("toy.flag=bool:yes", "the value of toy.flag must be true or false, not 'yes'"),
        ("general.alignment=int:64", "general.alignment says how the file is laid out"),
        ("split.count=int:1", "split.count says how the file is laid out"),
    ],
)
def test_bad_texts(text: str, culprit: str) -> None:
    """One line that names the setting and quotes the wrong text."""
    with pytest.raises(ConfigError) as caught:
        parse_overrides([text])
    assert str(caught.value).startswith("override_kv: ")
    assert culprit in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_later_of_two_counts() -> None:
    """As with every other setting given twice."""
    assert parse_overrides(["a=int:1", "b=int:2", "a=str:x"]) == {"a": "x", "b": 2}


def test_everybody_reads_the_new_values(toy: GgufFile) -> None:
    """Getters and `metadata` agree; the file it came from is as it was; tensors are the same views of the same map."""
    new: dict[str, Scalar] = {
        "toy.layers": 9,
        "toy.eps": 2,
        "toy.name": "second",
        "toy.flag": True,
        "toy.added": 1,
        "general.architecture": "other",
    }
    changed = toy.with_metadata(new)
    assert changed.architecture == "other"
    assert (changed.get_int("toy.layers"), changed.get_float("toy.eps"), changed.get_int("toy.added")) == (9, 2.0, 1)
    assert (changed.metadata["toy.name"], changed.get_bool("toy.flag")) == ("second", True)
    assert (toy.architecture, toy.get_int("toy.layers"), "toy.added" in toy.metadata) == ("toy", 4, False)
    assert changed.tensors["t"] is toy.tensors["t"]
    assert (changed.path, changed.file_bytes, changed.version) == (toy.path, toy.file_bytes, toy.version)


def test_one_value_for_a_whole_array(toy: GgufFile) -> None:
    """Where a file has a number per layer, one number replaces them all."""
    changed = toy.with_metadata({"toy.heads": 2, "toy.recurrent": False})
    assert changed.get_ints("toy.heads", length=3) == [2, 2, 2]
    assert changed.get_bools("toy.recurrent", length=2) == [False, False]


@pytest.mark.parametrize(
    ("key", "value", "kinds"),
    [
        ("toy.layers", "4", ("an integer", "a string")),
        ("toy.layers", 4.0, ("an integer", "a float")),
        ("toy.layers", True, ("an integer", "a bool")),
        ("toy.eps", "0.5", ("a float", "a string")),
        ("toy.name", 1, ("a string", "an integer")),
        ("toy.flag", 1, ("a bool", "an integer")),
        ("toy.heads", True, ("an array of integers", "a bool")),
        ("toy.heads", 2.0, ("an array of integers", "a float")),
        ("toy.recurrent", 1, ("an array of bools", "an integer")),
        ("toy.words", "a", ("an array of strings", "a string")),
    ],
)
def test_a_value_of_another_kind_is_refused(toy: GgufFile, key: str, value: int | float | str, kinds: tuple[str, str]) -> None:
    """A key keeps its kind, as its readers expect; only an integer may replace a float."""
    with pytest.raises(ConfigError) as caught:
        toy.with_metadata({key: value})
    assert str(caught.value) == f"override_kv: {key} is {kinds[0]} in {toy.path}, which {kinds[1]} cannot replace"
