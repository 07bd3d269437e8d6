"""Agents that people use, each as it is, with the 1.5B model: it must really call a tool or edit a file.

`make test-agents` installs them all; those that are missing are skipped. An agent reads a long prompt: minutes without a GPU.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.e2e.server_process import ServerProcess
from tests.real.agents.play import AGENTS, play
from tests.real.conftest import fetch

MODEL = "qwen2.5-coder-1.5b"
FLAGS = ("--ctx", "32768", "--kv-bytes", "2GiB", "--max-slots", "2", "--default-temperature", "0")


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    path = Path(request.config.getoption("--models")) / fetch.MODELS[MODEL].file
    if not path.is_file():
        pytest.skip(f"{path} is not there: python ops/real_models/fetch.py {MODEL}")
    with ServerProcess(path, *FLAGS) as server:
        yield server


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_works(agent: str, server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """The task is done, no request is refused, and each request of a conversation finds the whole prompt of the one before."""
    if not AGENTS[agent].PROGRAM.exists():
        pytest.skip(f"{agent} is not installed: make test-agents")
    before = len(server.lines)
    play(agent, server.url)
    requests = [line for line in server.lines[before:] if isinstance(line, dict) and line["event"] == "request"]
    with capsys.disabled():
        print(f"\n{agent}: prompt tokens, cached, generated, seconds")
        for line in requests:
            print(*(line.get(f"{name}_tokens") for name in ("prompt", "cached", "generated")), round(line["ms"] / 1000))
    assert [line["status"] for line in requests] == [200] * len(requests)
    assert len(requests) > 1
    if agent != "aider":  # its second run is a new conversation about the same file
        for first, then in pairwise(requests):
            assert then["cached_tokens"] >= first["prompt_tokens"]
