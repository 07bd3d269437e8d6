"""opencode writes a file: `python -m tests.real.agents opencode http://127.0.0.1:8080`."""

from tests.real.agents.scratch import NODE_AGENTS, AgentFailed, Scratch

TITLE, PROGRAM = "opencode", NODE_AGENTS / "opencode"


def play(scratch: Scratch) -> None:
    path = scratch.work / "answer.txt"
    task = f"Write the text heliotrope into the file {path} with the write tool. Then say done."
    said = scratch.run(PROGRAM, "run", "--pure", "--auto", "--agent", "short", "--format", "json", "--title", "round", task)
    if not path.exists() or "heliotrope" not in path.read_text():
        raise AgentFailed(said[-4000:])
