"""A model file that is truncated while a server has it mapped: the process cannot go on, but says why."""

import contextlib
import os
import shutil
import signal
import urllib.request
from pathlib import Path

import pytest

from svc.compute.cpu.library import LEVELS, library_path
from svc.gguf.gguf_file import GgufFile
from tests.e2e.server_process import GGUF, ServerProcess

pytestmark = pytest.mark.skipif(not library_path(LEVELS[0]).exists(), reason="the C kernels are not built")
MODEL = GGUF / "tiny-qwen35moe-Q4_K_M.gguf"


def ask(server: ServerProcess) -> None:
    body = b'{"prompt": "a", "max_tokens": 3}'
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{server.url}/v1/completions", body, headers)) as response:
        assert response.status == 200


@pytest.mark.parametrize("stacks", [False, True])
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_truncated_file_is_named(device: str, stacks: bool, tmp_path: Path) -> None:
    """One sentence with the path and what to do, then SIGBUS as without us; Python's stacks come too where they are asked for."""
    printed = False
    # Where two threads fault at once, one may end the process before the stacks are printed: seldom three times in a row.
    for _ in range(3 if stacks else 1):
        printed = printed or _says_what_happened(device, stacks, tmp_path)
    assert printed == stacks


def _says_what_happened(device: str, stacks: bool, folder: Path) -> bool:
    """Whether Python's stacks were printed too."""
    path = folder / "model.gguf"
    shutil.copyfile(MODEL, path)
    environ = {"PYTHONFAULTHANDLER": "1"} if stacks else {}
    with ServerProcess(path, "--device", device, environ=environ) as server:
        ask(server)
        os.truncate(path, 4096)
        with contextlib.suppress(OSError):
            ask(server)
        assert server.wait() == -signal.SIGBUS
        lines = [line for line in server.lines if isinstance(line, str)]
        assert [str(path) in line and "rename" in line for line in lines if "truncated" in line] == [True]
        return any("Bus error" in line for line in lines)


def test_a_renamed_file_changes_nothing(tmp_path: Path) -> None:
    """What the sentence recommends: the server keeps the old file until it is restarted."""
    path, fresh = tmp_path / "model.gguf", tmp_path / "fresh.gguf"
    shutil.copyfile(MODEL, path)
    fresh.write_bytes(b"another file")
    with ServerProcess(path) as server:
        fresh.rename(path)
        ask(server)
        assert server.stop() == 0


def test_the_ranges_are_those_of_the_maps(tmp_path: Path) -> None:
    """Every tensor lies in one of its file's ranges, which has the size of the file."""
    file = GgufFile.open(MODEL)
    ((path, start, size),) = file.mapped_ranges()
    assert (path, size) == (MODEL, MODEL.stat().st_size)
    for tensor in file.tensors.values():
        assert start <= tensor.data.ctypes.data <= start + size - tensor.nbytes
