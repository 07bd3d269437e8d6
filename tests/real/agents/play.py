"""The agents by name, and one run of one of them."""

import tempfile
from pathlib import Path

from tests.real.agents import aider, codex, opencode, qwen_code
from tests.real.agents.scratch import Scratch

AGENTS = {"aider": aider, "opencode": opencode, "qwen_code": qwen_code, "codex": codex}


def scratch_for(agent: str, folder: Path, url: str) -> Scratch:
    return Scratch(folder, AGENTS[agent].TITLE, url)


def play(agent: str, url: str) -> None:
    """AgentFailed where the agent did not really do its task."""
    with tempfile.TemporaryDirectory(prefix=f"{agent}-") as folder:
        AGENTS[agent].play(scratch_for(agent, Path(folder), url))
