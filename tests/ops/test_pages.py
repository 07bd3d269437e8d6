"""The operator's pages and scripts name things that exist."""

import re
import subprocess
from pathlib import Path

import pytest

from svc.http.routes import ROUTES

ROOT = Path(__file__).parent.parent.parent
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SCRIPTS = [ROOT / ".ci" / "run", *sorted((ROOT / "ops").glob("*.sh"))]


def test_operations_page_names_every_route() -> None:
    """Each path of the route table is in the list of endpoints, with /v1 or without (its first line covers the other)."""
    for route in ROUTES:
        path = route.path.replace(":.+", "").removeprefix("/v1")
        assert any(f"`{route.method} {name}`" in OPERATIONS for name in (path, f"/v1{path}")), route


def test_operations_page_names_metrics_that_exist() -> None:
    """A metric in the table is one that the source defines."""
    source = "".join((ROOT / "svc" / name).read_text() for name in ("metrics.py", "cache_metrics.py"))
    table = OPERATIONS[OPERATIONS.index("| metric |") :]
    names = re.findall(r"`([a-z_]+?)(?:_total)?(?:\{[a-z]+\})?`", "\n".join(re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)))
    assert len(names) >= 10
    for name in names:
        if name not in ("kv_bytes", "snapshot_bytes", "host_kv_bytes", "host_snapshot_bytes"):
            assert f'"{name}"' in source or f'PREFIX + "{name}"' in source


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link of a page is a file of the repository."""
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_source_files_named_in_a_page_exist(page: Path) -> None:
    """A page that says `slots/engine.py` means a file that is there."""
    for name in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py|[a-z_]+/)`", page.read_text()):
        assert (ROOT / name).exists() or (ROOT / "svc" / name).exists(), name


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_script_parses_and_may_be_run(script: Path) -> None:
    """bash accepts it, the file is executable, and it stops at its first failing command."""
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    assert script.stat().st_mode & 0o111
    assert "set -euo pipefail" in script.read_text()


def test_make_lists_its_words() -> None:
    """`make` alone explains the words, one line each."""
    result = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True)
    words = {line.split()[0] for line in result.stdout.splitlines()[1:]}
    assert {"serve", "test", "check", "fmt", "test-slow", "bench", "kernels", "smoke", "clean"} <= words
