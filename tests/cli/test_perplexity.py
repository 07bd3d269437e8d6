"""`headrace perplexity`: llama-perplexity's figures, and what a user gets to see."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from svc.cli import main
from svc.cli.progress import ProgressLine, duration
from tests.tolerances import PERPLEXITY_8_BIT, PERPLEXITY_FLOAT

DATA = Path(__file__).parent.parent / "data"
TEXT = str(DATA / "text" / "ppl.txt")


def model(name: str) -> str:
    return str(DATA / "gguf" / f"{name}.gguf")


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["perplexity", *arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    found: dict[str, Any] = json.loads(captured.out)
    return found


# llama-perplexity (build 11434) on the same text, n_ctx 512, 13 chunks; the first from the float32 file, before bf16 lost nothing.
@pytest.mark.parametrize(
    ("name", "value", "error", "tolerance"),
    [
        ("tiny-qwen35-hd128-bf16", 199407.8166, 10990.55937, PERPLEXITY_FLOAT),
        ("tiny-qwen3-Q8_0", 194621.9034, 10242.48716, PERPLEXITY_8_BIT),
        pytest.param("tiny-qwen35moe-Q4_K_M", 150941.4260, 8215.48250, PERPLEXITY_8_BIT, marks=pytest.mark.slow),
        pytest.param("tiny-qwen3next-Q4_K_M", 163312.1116, 9089.42267, PERPLEXITY_8_BIT, marks=pytest.mark.slow),
    ],
)
def test_figures_of_llama_perplexity(
    capsys: pytest.CaptureFixture[str], name: str, value: float, error: float, tolerance: float
) -> None:
    """The published figure and its standard error, over the whole text."""
    found = report(capsys, model(name), TEXT)
    assert found["perplexity"] == pytest.approx(value, rel=tolerance)
    assert found["error"] == pytest.approx(error, rel=tolerance)
    assert (found["num_chunks"], found["num_scored"]) == (13, 13 * 255)


@pytest.fixture
def short(tmp_path: Path) -> str:
    path = tmp_path / "short.txt"
    path.write_text(Path(TEXT).read_text()[:1500])
    return str(path)


def test_same_figure_for_any_sequences_and_steps(capsys: pytest.CaptureFixture[str], short: str) -> None:
    """Not nearly: the same number."""
    settings = [("1", "512"), ("4", "512"), ("5", "16"), ("64", "100")]
    found = [
        report(capsys, model("tiny-qwen35moe-Q4_K_M"), short, "--chunk", "64", "--sequences", s, "--max-step-tokens", m)
        for s, m in settings
    ]
    assert len({(each["perplexity"], each["error"], each["num_scored"]) for each in found}) == 1
    assert [each["num_sequences"] for each in found] == [1, 4, 5, found[0]["num_chunks"]]


def test_what_a_person_sees(capsys: pytest.CaptureFixture[str], short: str) -> None:
    """llama-perplexity's last line, word for word, from the same numbers that --json gives; --ctx-size is its name for --chunk."""
    assert main(["perplexity", model("tiny-qwen3-Q8_0"), short, "--ctx-size", "64"]) == 0
    printed = capsys.readouterr().out.splitlines()
    found = report(capsys, model("tiny-qwen3-Q8_0"), short, "--chunk", "64")
    assert printed[-1] == f"Final estimate: PPL = {found['perplexity']:.4f} +/- {found['error']:.5f}"
    assert f"{found['num_chunks']} chunks of 64" in printed[0]


def test_end_of_the_last_line_does_not_count(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A text with and without its last line end is the same text, as for llama-perplexity; a second one counts."""
    path = tmp_path / "text"
    counts = []
    for end in (b"", b"\n", b"\n\n"):
        path.write_bytes(b"one two three four five six seven eight nine ten eleven twelve" + end)
        counts.append(report(capsys, model("tiny-qwen3-Q8_0"), str(path), "--chunk", "8")["num_tokens"])
    assert counts[0] == counts[1] < counts[2]


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["/no/such/text"], "/no/such/text"),
        ([TEXT, "--chunk", "10000"], "fewer than one chunk of 10000"),
        ([TEXT, "--chunk", "7"], "--chunk"),
        ([TEXT, "--sequences", "0"], "--sequences"),
        ([model("tiny-qwen3-Q8_0")], "not UTF-8"),
    ],
)
def test_mistakes(arguments: list[str], culprit: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence that names what was wrong."""
    assert main(["perplexity", model("tiny-qwen3-Q8_0"), *arguments]) == 2
    captured = capsys.readouterr()
    assert culprit in captured.err
    assert captured.err.count("\n") == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal() -> None:
    """One line, drawn over, with an estimate from what was done in how long; wiped at the end."""
    now = 100.0
    stream = Terminal()
    with ProgressLine("work", 200, stream=stream, clock=lambda: now) as line:
        now = 130.0
        line.update(50, "PPL 3.5")
        line.update(51)  # too soon to draw again
        assert stream.getvalue().count("\r") == 1
        assert "[######..................]  25 %, 1 min 30 s left, PPL 3.5" in stream.getvalue()
        now = 250.0
        line.update(200)
    assert "100 %" in stream.getvalue()
    assert stream.getvalue().endswith("\r")
    assert "\n" not in stream.getvalue()


def test_progress_in_a_log() -> None:
    """Elsewhere whole lines, few of them, and none for what is quick."""
    now = 0.0
    stream = io.StringIO()
    with ProgressLine("work", 100, stream=stream, clock=lambda: now) as line:
        for second in range(1, 26):
            now = float(second)
            line.update(second * 4)
    assert stream.getvalue().count("\n") == 2
    assert "\r" not in stream.getvalue()


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (185.0, "3 min 05 s"), (7800.0, "2 h 10 min")])
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
