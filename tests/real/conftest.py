"""Real models beside llama.cpp: `make test-real`. Not collected with the other tests (pyproject.toml), and no part of CI.

Each model is fetched before (ops/real_models/fetch.py). llama.cpp is a folder with its programs, or with their build (`bin` in it):
`--llama-cpp FOLDER`, or LLAMA_CPP in the environment. What is missing is skipped by name.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bench.peers.servers import HeadraceServer, LlamaServer, Server, Setting
from tests.ops.real_models import load

fetch = load()
CONTEXT = 4096
THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--llama-cpp", default=os.environ.get("LLAMA_CPP", ""), help="folder with llama.cpp's programs")
    parser.addoption("--models", default=str(fetch.default_folder()), help="folder that fetch.py fetched the models to")


@pytest.fixture(scope="module", params=fetch.MODELS)
def model(request: pytest.FixtureRequest) -> Path:
    path = Path(request.config.getoption("--models")) / fetch.MODELS[request.param].file
    if not path.is_file():
        pytest.skip(f"{path} is not there: python ops/real_models/fetch.py {request.param}")
    return path


@pytest.fixture(scope="module")
def llama_cpp(request: pytest.FixtureRequest) -> Path:
    """The folder with llama-server and llama-perplexity in it."""
    given = request.config.getoption("--llama-cpp")
    if not given:
        pytest.skip("llama.cpp is not given: --llama-cpp FOLDER or LLAMA_CPP=FOLDER")
    folder = Path(given)
    return folder / "bin" if (folder / "bin").is_dir() else folder


def program(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        pytest.skip(f"{folder} has no {name}")
    return folder / name


def setting(model: Path) -> Setting:
    return Setting(model, CONTEXT, slots=1, threads=THREADS)


@pytest.fixture(scope="module")
def ours(model: Path) -> Iterator[Server]:
    """`headrace serve` with its defaults."""
    with Server(HeadraceServer(flags=()), setting(model)) as server:
        yield server


@pytest.fixture(scope="module")
def peer(model: Path, llama_cpp: Path) -> Iterator[Server]:
    folder = program(llama_cpp, "llama-server").parent
    with Server(LlamaServer("llama.cpp", folder), setting(model)) as server:
        yield server


def messages(question: str, system: str | None = None) -> list[dict[str, Any]]:
    head = [{"role": "system", "content": system}] if system else []
    return [*head, {"role": "user", "content": question}]
