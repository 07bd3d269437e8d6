"""Codex CLI runs a command: `python -m tests.real.agents codex http://127.0.0.1:8080`."""

import json

from tests.real.agents.scratch import NODE_AGENTS, AgentFailed, Scratch

TITLE, PROGRAM = "Codex CLI", NODE_AGENTS / "codex"


def play(scratch: Scratch) -> None:
    """The word is nowhere but in the file: a command must have read it."""
    (scratch.work / "note.txt").write_text("The secret word is heliotrope.\n")
    task = "What is the secret word in the file note.txt? Run cat note.txt to find out."
    said = scratch.run(
        PROGRAM, "exec", "-p", "short", "--skip-git-repo-check", "--sandbox", "danger-full-access", "--json", task
    )  # fmt: skip
    items = [event.get("item", {}) for event in map(json.loads, said.splitlines())]
    if not any("heliotrope" in item.get("aggregated_output", "") for item in items):
        raise AgentFailed(said[-4000:])
