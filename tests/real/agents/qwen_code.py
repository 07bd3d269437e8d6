"""Qwen Code reads a file: `python -m tests.real.agents qwen_code http://127.0.0.1:8080`."""

import json

from tests.real.agents.scratch import NODE_AGENTS, AgentFailed, Scratch

TITLE, PROGRAM = "Qwen Code", NODE_AGENTS / "qwen"
PROMPT = "You are a coding agent. Use the tools to read and change files."


def play(scratch: Scratch) -> None:
    """The word is nowhere but in the file: the tool must have read it."""
    path = scratch.work / "note.txt"
    path.write_text("The secret word is heliotrope.\n")
    task = f"What is the secret word in the file {path}? Read the file first."
    said = scratch.run(PROGRAM, "--bare", "--yolo", "-o", "stream-json", "--system-prompt", PROMPT, task)
    results = [part for event in map(json.loads, said.splitlines()) for part in _parts(event) if part["type"] == "tool_result"]
    if not any("heliotrope" in json.dumps(part["content"]) for part in results):
        raise AgentFailed(said[-4000:])


def _parts(event: dict) -> list[dict]:
    content = event.get("message", {}).get("content")
    return content if isinstance(content, list) else []
