"""`headrace bench`: what is measured, over a device with a clock of its own, and what a user gets to see."""

import json
from pathlib import Path
from typing import cast

import pytest

from svc.cli import main
from svc.cli.bench import Case, Loop, wanted_cases
from svc.compute.backend import StepBatch, StepResult
from svc.compute.runner import ModelRunner
from svc.memory.plan import MemoryPlan
from tests.fakes.fake_backend import VOCABULARY, FakeBackend
from tests.slots.harness import layout

MODEL = str(Path(__file__).parent.parent / "data" / "gguf" / "tiny-qwen3next-Q4_K_M.gguf")
STEP_S, TOKEN_S = 0.5, 0.01


class ClockedBackend(FakeBackend):
    """A device on which a step takes STEP_S and each token TOKEN_S more."""

    now = 0.0

    def run(self, batch: StepBatch) -> StepResult:
        self.now += STEP_S + TOKEN_S * batch.num_tokens
        return super().run(batch)


def loop(*, hybrid: bool = True, rows: int = 4) -> tuple[Loop, ClockedBackend]:
    backend = ClockedBackend(MemoryPlan(layout(hybrid=hybrid), 60, rows, rows + 8), max_step_tokens=64)
    return Loop(cast(ModelRunner, backend), VOCABULARY, 500, 1000.0, clock=lambda: backend.now), backend


@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize("depth", [0, 100])
def test_rates(hybrid: bool, depth: int) -> None:
    """Prompt: its own tokens and steps only, the past is known. Generation: from the first token on, one step for each."""
    measured, _ = loop(hybrid=hybrid)
    for _ in range(3):  # the first round evaluates the past, which does not count
        rate = measured.measure(Case("", prompt=96, depth=depth))
        assert rate == pytest.approx(96 / (2 * STEP_S + 96 * TOKEN_S))  # 64 tokens, then 32
        rate = measured.measure(Case("", generate=10, depth=depth))
        assert rate == pytest.approx(10 / (10 * (STEP_S + TOKEN_S)))


def test_rate_of_several_at_once() -> None:
    """The tokens of all of them, a step for each position, once everybody generates."""
    measured, backend = loop()
    for batch in (1, 2, 4):
        assert measured.measure(Case("", generate=8, batch=batch)) == pytest.approx(8 * batch / (8 * (STEP_S + batch * TOKEN_S)))
        assert max(len(step.samples) for step in backend.batches) == batch


def test_cases() -> None:
    """One sequence at every depth; several without a past; one at once is in the table already."""
    names = [case.name for case in wanted_cases(512, 128, [1, 2, 4], [0, 1024])]
    assert names == [
        "prompt 512", "generate 128", "prompt 512 @ 1024", "generate 128 @ 1024", "generate 128 x 2", "generate 128 x 4",
    ]  # fmt: skip


SMALL = ["--prompt", "20", "--generate", "4", "--batches", "1,3", "--depths", "0,30,100", "--rounds", "2", "--ctx", "64"]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Every number of the table, the setting, and what was left out; nothing else on any stream."""
    assert main(["bench", MODEL, *SMALL, "--threads", "1", "--json"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert captured.err == ""
    assert [result["test"] for result in report["results"]] == [
        "prompt 20", "generate 4", "prompt 20 @ 30", "generate 4 @ 30", "generate 4 x 3",
    ]  # fmt: skip
    assert report["left_out"] == ["prompt 20 @ 100", "generate 4 @ 100"]
    assert (report["threads"], report["num_rounds"], report["architecture"]) == (1, 2, "qwen3next")
    for result in report["results"]:
        assert 0 < result["smallest"] <= result["median"] <= result["largest"]


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    """A Markdown table with a line for each test, and a word about what does not fit."""
    assert main(["bench", MODEL, *SMALL]) == 0
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {5}
    assert len(rows) == 2 + 5
    assert "prompt 20 @ 100" in printed.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["--rounds", "0"], "--rounds"),
        (["--batches", "1,x"], "--batches"),
        (["--depths", "-1"], "--depths"),
        (["--ctx", "64"], "context of 64"),
        (["--depths", ""], "--depths"),
    ],
)
def test_mistakes(arguments: list[str], culprit: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence that names what was wrong."""
    assert main(["bench", MODEL, "--batches", "1", *arguments]) == 2
    captured = capsys.readouterr()
    assert culprit in captured.err
    assert captured.err.count("\n") == 1
