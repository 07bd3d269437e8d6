"""The agents by name, and one run of one of them."""

import importlib
import tempfile
from pathlib import Path

from tests.real.agents.scratch import Scratch

AGENTS = ("aider", "opencode", "qwen_code", "codex")


def program(agent: str) -> Path:
    found: Path = importlib.import_module(f"tests.real.agents.{agent}").PROGRAM
    return found


def play(agent: str, url: str) -> None:
    """AgentFailed where the agent did not really do its task."""
    module = importlib.import_module(f"tests.real.agents.{agent}")
    with tempfile.TemporaryDirectory(prefix=f"{agent}-") as folder:
        module.play(Scratch(Path(folder), module.TITLE, url))
