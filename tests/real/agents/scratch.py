"""A home and a working folder of its own for one run of an agent, configured as docs/clients.md tells its users."""

import os
import re
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PYTHON_AGENTS, NODE_AGENTS = ROOT / ".venv-agents" / "bin", HERE / "node_modules" / ".bin"
ADDRESS = "http://127.0.0.1:8080"  # in the document
LIMIT_S = 1800
_FILE = re.compile(r"`~/([^`\n]+)`:\n+```\w*\n(.*?)```", re.DOTALL)
_EXPORTS = re.compile(r"^export (.*)$", re.MULTILINE)


class AgentFailed(Exception):
    """An agent did not do what it was asked for; the text has what it said."""


def section(title: str) -> str:
    """What docs/clients.md has below that title."""
    text = (ROOT / "docs" / "clients.md").read_text()
    found = re.search(rf"^### {re.escape(title)}\n(.*?)(?=^##|\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, title
    return found[1]


class Scratch:
    def __init__(self, folder: Path, title: str, url: str) -> None:
        """Writes the files that the document's section gives, with the server at `url`."""
        self.work, self.home = folder / "work", folder / "home"
        self.work.mkdir()
        self.home.mkdir()
        text = section(title).replace(ADDRESS, url)
        for name, content in _FILE.findall(text):
            path = self.home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        exports = dict(pair.split("=", 1) for line in _EXPORTS.findall(text) for pair in line.split())
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        self.environ = kept | {"HOME": str(self.home)} | exports

    def run(self, *command: str | Path) -> str:
        """What the program prints; AgentFailed if it ends badly."""
        ended = subprocess.run(
            list(map(str, command)), cwd=self.work, env=self.environ, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
        said = ended.stdout + ended.stderr
        if ended.returncode != 0:
            raise AgentFailed(said[-4000:])
        return ended.stdout
