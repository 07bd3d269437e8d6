"""`python -m tests.real.agents AGENT URL`: lets an agent work with the server there, in a folder that is thrown away."""

import sys

from tests.real.agents.play import AGENTS, play

if len(sys.argv) != 3 or sys.argv[1] not in AGENTS:
    sys.exit(f"usage: python -m tests.real.agents {{{','.join(AGENTS)}}} URL")
play(sys.argv[1], sys.argv[2])
print(f"{sys.argv[1]} did its task")
