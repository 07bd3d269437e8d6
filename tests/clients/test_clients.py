"""Programs and libraries that people use, each as it is, against a server with the bundled model.

Each has a script in scripts/ that fails where the client does not get what it wants. `make test-clients` installs all of them;
without that, those that are missing are skipped.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from svc.config import BUNDLED_MODEL
from tests.e2e.server_process import ServerProcess

HERE = Path(__file__).parent
PYTHON = HERE.parents[1] / ".venv-clients" / "bin" / "python"
SCRIPTS = sorted((HERE / "scripts").iterdir())
LIMIT_S = 240


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ServerProcess(str(BUNDLED_MODEL), "--max-slots", "4") as server:
        yield server.url


def _command(script: Path) -> list[str]:
    if script.suffix == ".py":
        if not PYTHON.exists():
            pytest.skip("the Python clients are not installed: make test-clients")
        return [str(PYTHON), str(script)]
    node = shutil.which("node")
    if node is None or not (HERE / "node_modules").exists():
        pytest.skip("node or the clients for it are not installed: make test-clients")
    return [node, str(script)]


@pytest.mark.timeout(LIMIT_S + 10)
@pytest.mark.parametrize("script", SCRIPTS, ids=[script.name for script in SCRIPTS])
def test_client(script: Path, url: str) -> None:
    """The script ends well."""
    command = _command(script)
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYDANTIC_AI_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}
    ended = subprocess.run([*command, url], env=os.environ | quiet, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
