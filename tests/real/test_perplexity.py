"""The perplexity of a bundled text against llama-perplexity's."""

import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from svc.cli import main
from tests.real.conftest import THREADS, program
from tests.tolerances import PERPLEXITY_REAL

TEXT = Path(__file__).parents[1] / "data" / "text" / "ppl.txt"
pytestmark = pytest.mark.timeout(7200)  # of a large model on a busy machine
CHUNK_TOKENS = 512


def ours(model: Path, capsys: pytest.CaptureFixture[str]) -> float:
    arguments = ["perplexity", str(model), str(TEXT), "--chunk", str(CHUNK_TOKENS), "--threads", str(THREADS), "--json"]
    assert main(arguments) == 0
    found: float = msgspec.json.decode(capsys.readouterr().out)["perplexity"]
    return found


def theirs(perplexity: Path, model: Path) -> float:
    command = [perplexity, "-m", model, "-f", TEXT, "-c", CHUNK_TOKENS, "-b", 4 * CHUNK_TOKENS, "-t", THREADS]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    match = re.search(r"Final estimate: PPL = ([0-9.]+)", done.stdout + done.stderr)
    assert match, done.stderr[-2000:]
    return float(match.group(1))


def test_perplexity(model: Path, llama_cpp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Within half a percent with the default settings: both round activations to 8 bits, each in its own way."""
    expected = theirs(program(llama_cpp, "llama-perplexity"), model)
    found = ours(model, capsys)
    with capsys.disabled():
        print(f"\n{model.stem}: perplexity {found:.4f}, llama.cpp {expected:.4f} ({100 * (found / expected - 1):+.3f} %)")
    assert found == pytest.approx(expected, rel=PERPLEXITY_REAL)
