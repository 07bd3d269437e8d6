"""aider edits a file twice: `python -m tests.real.agents aider http://127.0.0.1:8080`."""

from tests.real.agents.scratch import PYTHON_AGENTS, AgentFailed, Scratch

TITLE, PROGRAM = "aider", PYTHON_AGENTS / "aider"
WRONG = "def area(width, height):\n    return width + height\n"


def play(scratch: Scratch) -> None:
    """aider has its own form for edits instead of tools; both must be in the file."""
    path = scratch.work / "area.py"
    path.write_text(WRONG)
    for message, there in (
        ("The function area is wrong: it must multiply width by height. Fix it.", "return width * height"),
        ("Rename the function area to rectangle_area.", "def rectangle_area("),
    ):
        said = scratch.run(PROGRAM, "--no-git", "--yes-always", "--no-pretty", "--message", message, path.name)
        if there not in path.read_text():
            raise AgentFailed(f"{there!r} is not in the file:\n{path.read_text()}\n{said[-3000:]}")
