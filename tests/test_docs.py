"""What the documents name is there: files, folders, modules and the targets of links."""

import importlib.util
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.agents.play import AGENTS, scratch_for

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md")), ROOT / "ops" / "runbook.md"]
FOLDERS = ("svc", "cuda_src", "tests", "ops", "docs")
OUR_SUFFIXES = ("py", "c", "h", "cu", "cuh", "toml", "md", "service", "sh", "jinja")
FILE = re.compile(rf"(?<![\w./<>~$-])((?:[\w-]+/)*[\w-]+\.(?:{'|'.join(OUR_SUFFIXES)}))(?![\w/*-])")
FOLDER = re.compile(r"`((?:[\w-]+/)*[\w-]+/)`")
MODULE = re.compile(r"-m ((?:tests|svc)[\w.]*)")
BLOCK = re.compile(r"^```(json|toml)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
OTHERS = {"Python.h", "report.md", "dist/", "short.md"}  # CPython's, what commands write, and what users do


def names(text: str) -> Iterator[str]:
    """Files and folders of ours that a text names, by their whole path or by its end."""
    yield from (name for name in (*FILE.findall(text), *FOLDER.findall(text)) if name not in OTHERS)


def paths() -> set[str]:
    """Every file and (with a slash behind) folder of the tree, also by every end of its path."""
    found = set()
    for path in (*ROOT.glob("*.*"), *(path for folder in FOLDERS for path in (ROOT / folder, *(ROOT / folder).rglob("*")))):
        parts = path.relative_to(ROOT).parts
        end = "/" if path.is_dir() else ""
        found |= {"/".join(parts[at:]) + end for at in range(len(parts))}
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_named_files_exist(document: Path) -> None:
    text = document.read_text()
    there = paths()
    assert [name for name in names(text) if name not in there] == []
    assert [name for name in LINK.findall(text) if not (document.parent / name).exists()] == []
    assert [name for name in MODULE.findall(text) if importlib.util.find_spec(name) is None] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_configuration_to_copy(document: Path) -> None:
    """A file that a document shows is what its language allows."""
    for language, content in BLOCK.findall(document.read_text()):
        {"json": json.loads, "toml": tomllib.loads}[language](content)


@pytest.mark.parametrize("agent", AGENTS)
def test_configuration_of_agents(agent: str, tmp_path: Path) -> None:
    """Its section can be found, and what it gives to copy leads to the server (`make test-agents` uses it)."""
    scratch = scratch_for(agent, tmp_path, "http://127.0.0.1:1")
    written = [path.read_text() for path in scratch.home.rglob("*") if path.is_file()]
    assert any("http://127.0.0.1:1/v1" in text for text in (*written, *scratch.environ.values()))


def test_what_counts_as_a_name() -> None:
    """With or without a folder, in running text and in commands; not another program's file, a pattern or an address."""
    text = (
        "`slots/batch.py`, gemm.cu: run ops/smoke.sh; see `http/text/`, `arch/<name>.py`, bench_*.py, ~/x.sh, https://a.org/b/c.md"
    )
    assert list(names(text)) == ["slots/batch.py", "gemm.cu", "ops/smoke.sh", "http/text/"]
