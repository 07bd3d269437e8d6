"""Who may import whom: the table of docs/architecture.md, held against the syntax trees of `svc/`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LONGEST_FILE_LINES = 450

# Each unit (a package or a top-level module; the longest matching name counts) and what it may import of svc. Everyone may import
# config and errors, and a package may import itself.
MAY_IMPORT = {
    "svc.errors": (),
    "svc.config": ("svc.sizes", "svc.rope_settings"),
    "svc.rope_settings": ("svc.disk_settings",),
    "svc.disk_settings": ("svc.chat_settings",),
    "svc.disk": ("svc.memory.tokens",),
    "svc.cache_files": ("svc.disk", "svc.gguf", "svc.log", "svc.model_loading"),
    "svc.chat_settings": ("svc.draft_settings",),
    "svc.draft_settings": ("svc.sampling_defaults",),
    "svc.sampling_defaults": (),
    "svc.sizes": (),
    "svc.line_writer": (),
    "svc.log": ("svc.line_writer",),
    "svc.machine": (),
    "svc.free_memory": (),
    "svc.processors": ("svc.machine",),
    "svc.metrics": ("svc.slots", "svc.memory.stats", "svc.llama_metrics", "svc.cache_metrics"),
    "svc.cache_metrics": ("svc.slots", "svc.memory.placement"),
    "svc.llama_metrics": ("svc.slots",),
    "svc.memory": (),
    "svc.gguf": (),
    "svc.model": ("svc.gguf", "svc.memory.layout"),
    "svc.compute": ("svc.model", "svc.gguf", "svc.memory"),
    "svc.compute.cpu": ("svc.compute", "svc.model", "svc.gguf", "svc.memory", "svc.processors"),
    # The contract with compute, types only: a step and what is sampled in it.
    "svc.slots": ("svc.memory", "svc.disk", "svc.compute.backend", "svc.compute.blocks", "svc.compute.sampling.params"),
    # A Request is made of these three; http never sees pages, snapshots or arrays.
    "svc.http": (
        "svc.slots",
        "svc.memory.placement",
        "svc.compute.sampling.params",
        "svc.compute.sampling.steps",
        "svc.log",
        "svc.metrics",
    ),
    "svc.lifecycle": ("svc.log",),
    "svc.model_loading": (
        "svc.http.text",
        "svc.memory",
        "svc.compute",
        "svc.model",
        "svc.gguf",
        "svc.log",
        "svc.machine",
        "svc.processors",
    ),
    "svc.check": (
        "svc.cache_files",
        "svc.model_loading",
        "svc.http.access",
        "svc.http.address",
        "svc.http.api_keys",
        "svc.model",
        "svc.memory.plan",
        "svc.log",
    ),
    "svc.operator_signals": ("svc.http.api_keys", "svc.http.service", "svc.lifecycle", "svc.log"),
    "svc.app": (
        "svc.free_memory",
        "svc.http",
        "svc.slots",
        "svc.memory",
        "svc.compute",
        "svc.cache_files",
        "svc.disk",
        "svc.model_loading",
        "svc.operator_signals",
        "svc.log",
        "svc.metrics",
        "svc.lifecycle",
    ),
    "svc.cli": (
        "svc.app",
        "svc.check",
        "svc.model_loading",
        "svc.slots",
        "svc.memory",
        "svc.compute",
        "svc.model",
        "svc.gguf",
        "svc.lifecycle",
        "svc.log",
        "svc.machine",
        "svc.processors",
    ),
}
EVERYONE_MAY_IMPORT = ("svc.config", "svc.errors", "svc.sizes")

# Third-party and standard modules that have one home.
HOMES = {
    "aiohttp": ("svc.http", "svc.cli.client"),
    "asyncio": (
        "svc.http",
        "svc.slots.block_copies",
        "svc.slots.disk_tier",
        "svc.slots.slot_files",
        "svc.slots.engine",
        "svc.slots.idle_check",
        "svc.compute.worker",
        "svc.app",
        "svc.lifecycle",
        "svc.operator_signals",
        "svc.cli",
    ),
    "uvloop": ("svc.app",),
    "cupy": ("svc.compute.cuda",),
    "ctypes": ("svc.compute.cpu", "svc.compute.cuda", "svc.free_memory"),
    "gguf": ("svc.gguf",),
    "tokenizers": ("svc.http.text",),
    "jinja2": ("svc.http.text",),
    "llguidance": ("svc.http.text.grammar",),
    "matplotlib": ("svc.cli.bench.plot",),
    "prometheus_client": ("svc.metrics", "svc.llama_metrics", "svc.cache_metrics", "svc.http.endpoints.metrics"),
}
# Plain functions of their arguments: no clock, no waiting, no I/O. Then scheduling bugs are table tests.
PURE = (
    "svc.memory",
    "svc.slots.scheduler",
    "svc.slots.admission",
    "svc.slots.budget",
    "svc.slots.batch",
    "svc.slots.slot",
    "svc.slots.operator_pins",
    "svc.slots.usage_report",
    "svc.slots.waiting_queue",
    "svc.http.rate_limits",
)
FORBIDDEN_IN_PURE = ("time", "datetime", "asyncio", "threading", "socket", "os", "io", "pathlib", "random", "numpy.random")
ENVIRONMENT_NAMES = ("environ", "environb", "getenv", "getenvb", "putenv", "unsetenv")
ENVIRONMENT_READER = "svc.config"


def inside(module: str, unit: str) -> bool:
    return module == unit or module.startswith(unit + ".")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(tree: ast.Module, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, absolute module) of every import, inside functions and `if TYPE_CHECKING` too.

    `from package import name` gives `package.name`, as the name may be a module.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                package = parts[: len(parts) - node.level + is_package]
                base = ".".join([*package, *([base] if base else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """What is wrong with a file of `svc/`, one sentence each with its line."""
    tree = ast.parse(source)
    found = []
    unit = max((name for name in MAY_IMPORT if inside(module, name)), key=len, default=None)
    if unit is None and module != "svc":
        return [f"{module} belongs to no package: give it a line in MAY_IMPORT"]
    allowed = (*MAY_IMPORT.get(unit or "", ()), *EVERYONE_MAY_IMPORT, *([unit] if unit else []))
    pure = any(inside(module, name) for name in PURE)
    for line, name in imported_modules(tree, module, is_package):
        if inside(name, "svc") and not any(inside(name, other) for other in allowed):
            found.append(f"{module}:{line} may not import {name}")
        for package, homes in HOMES.items():
            if inside(name, package) and not any(inside(module, home) for home in homes):
                found.append(f"{module}:{line} imports {package}, which lives in {', '.join(homes)}")
        if pure and any(inside(name, other) for other in FORBIDDEN_IN_PURE):
            found.append(f"{module}:{line} imports {name}, but must stay a plain function of its arguments")
        if name.removeprefix("os.") in ENVIRONMENT_NAMES and name.startswith("os.") and module != ENVIRONMENT_READER:
            found.append(f"{module}:{line} reads the environment: only {ENVIRONMENT_READER} does")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT_NAMES and module != ENVIRONMENT_READER:
            found.append(f"{module}:{node.lineno} reads the environment: only {ENVIRONMENT_READER} does")
        if pure and isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            found.append(f"{module}:{node.lineno} awaits, but must stay a plain function of its arguments")
    return found


def source_files() -> list[Path]:
    return sorted((ROOT / "svc").rglob("*.py"))


@pytest.mark.parametrize("path", source_files(), ids=module_name)
def test_file_keeps_the_table(path: Path) -> None:
    """A file imports only what its package may, and reads no environment."""
    assert violations(path.read_text(), module_name(path), is_package=path.name == "__init__.py") == []


def native_files() -> list[Path]:
    """C and CUDA, and the emulator's C++."""
    folders = (ROOT / "svc" / "compute" / "cpu" / "csrc", ROOT / "cuda_src", ROOT / "tests" / "cuda_emulator")
    suffixes = (".c", ".h", ".cu", ".cuh", ".cpp")
    return sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in suffixes)


@pytest.mark.parametrize("path", [*source_files(), *native_files()], ids=lambda path: str(path.relative_to(ROOT)))
def test_file_is_a_chapter(path: Path) -> None:
    """A file is short enough to be read in one sitting."""
    assert len(path.read_text().splitlines()) <= LONGEST_FILE_LINES


# Documents that are not in the repository, and numbers of rules, issues and sections in them.
OUTSIDE = re.compile(
    "|".join((
        "ARCH_SPEC", "CUDA_ON_CPU", r"(KERNELS|SCENARIOS|FIXTURES|STYLE|ECOSYSTEM)\.md", r"DESIGN\b", r"SCENARIOS? \d",
        r"\b[Rr]ule \d(?!\d)", r"\b[Ii]ssue #?\d",
    ))
)  # fmt: skip


INSTALLED = "node_modules"  # others' files, where clients are installed


def text_files() -> list[Path]:
    suffixes = {".py", ".md", ".c", ".h", ".cu", ".cuh", ".cpp", ".toml", ".yml", ".in", ".sh"}
    folders = [ROOT / name for name in ("svc", "cuda_src", "tests", "docs", "ops")]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in suffixes and INSTALLED not in path.parts]
    return sorted([*files, *ROOT.glob("*.md"), ROOT / "setup.py", ROOT / "pyproject.toml", ROOT / "Makefile"])


def test_no_reference_leads_outside() -> None:
    """Code, tests and documents refer only to documents of the repository."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in text_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if OUTSIDE.search(line) and path != Path(__file__)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("svc.http.endpoints.chat", "from svc.memory.page_pool import PagePool"),
        ("svc.http.endpoints.chat", "from svc.compute.backend import StepBatch"),
        ("svc.http.endpoints.chat", "import svc.app"),
        ("svc.slots.batch", "from svc.compute.runner import Runner"),
        ("svc.slots.batch", "from svc.compute import runner"),
        ("svc.slots.engine", "from svc.http.schema import ChatIn"),
        ("svc.slots.engine", "def f():\n    from svc.http import schema"),
        ("svc.slots.engine", "from ..http import schema"),
        ("svc.memory.page_pool", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from svc.slots.request import Request"),
        ("svc.memory.page_pool", "import numpy.random"),
        ("svc.memory.page_pool", "from time import monotonic"),
        ("svc.memory.page_pool", "async def f(): ..."),
        ("svc.compute.runner", "from svc.slots.slot import Slot"),
        ("svc.config", "from svc.memory.plan import plan_memory"),
        ("svc.errors", "import svc.log"),
        ("svc.slots.scheduler", "import asyncio"),
        ("svc.slots.scheduler", "import time"),
        ("svc.slots.admission", "import asyncio.queues"),
        ("svc.slots.stream", "from aiohttp import web"),
        ("svc.compute.runner", "import cupy as cp"),
        ("svc.http.text.tokenizer", "from gguf import GGUFReader"),
        ("svc.compute.cpu.loader", "import os\nlevel = os.environ.get('LEVEL')"),
        ("svc.compute.cpu.loader", "from os import getenv"),
        ("svc.compute.cpu.loader", "from os import environ as e"),
        ("svc.cli.bench.report", "from matplotlib.figure import Figure"),
        ("svc.model.arch.qwen3", "from svc.compute.ops import Ops"),
        ("svc.gguf.header", "from svc.model.model_config import ModelConfig"),
        ("svc.slots.admission", "import time"),
        ("svc.newcomer", "x = 1"),
        ("svc.log", "from svc.app import build"),
    ],
)
def test_checker_sees_planted_violation(module: str, source: str) -> None:
    """The checker itself: each of these breaks the table in one place."""
    assert len(violations(source, module)) >= 1


@pytest.mark.parametrize(
    ("module", "source", "is_package"),
    [
        ("svc.http.endpoints.chat", "import asyncio\nfrom aiohttp import web\nfrom svc.slots.request import Request", False),
        ("svc.http", "from .text import tokenizer\nfrom . import routes", True),
        ("svc.slots.batch", "from svc.compute.backend import StepBatch\nfrom svc.memory.plan import MemoryPlan", False),
        ("svc.compute.runner", "from svc.memory.plan import MemoryPlan\nfrom svc.model.arch import model\nimport time", False),
        ("svc.compute.worker", "import asyncio\nfrom ..errors import HeadraceError", False),
        ("svc.memory.prefix_tree", "from .page_pool import PagePool\nimport numpy as np", False),
        ("svc.config", "import os\nos.environ['X']", False),
        ("svc.cli.serve", "from svc.app import run_server", False),
    ],
)
def test_checker_accepts_what_the_table_allows(module: str, source: str, is_package: bool) -> None:
    """The checker does not cry wolf."""
    assert violations(source, module, is_package=is_package) == []
