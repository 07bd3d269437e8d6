"""`headrace bench`: what is measured, over a device with a clock of its own, and what a user gets to see."""

import io
import json
import math
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from svc.cli import main
from svc.cli.bench import measure, random_model
from svc.cli.bench.cases import Case, numbers, wanted_cases
from svc.cli.bench.loop import Loop, Round, slots
from svc.cli.bench.plot import panels_of
from svc.cli.bench.render import number
from svc.cli.bench.report import Report, host_share, model_facts, num_active, processor_name, result
from svc.cli.progress import ProgressLine
from svc.compute.backend import StepBatch, StepResult
from svc.compute.model_file import open_model
from svc.compute.runner import ModelRunner
from svc.errors import ConfigError
from svc.gguf.gguf_file import GgufFile
from svc.memory.plan import MemoryPlan
from tests.fakes.fake_backend import VOCABULARY, FakeBackend
from tests.slots.harness import layout

GGUF = Path(__file__).parent.parent / "data" / "gguf"
MODEL = str(GGUF / "tiny-qwen3next-Q4_K_M.gguf")
STEP_S, TOKEN_S = 0.5, 0.01

# ---- what is measured


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
def test_rounds(hybrid: bool, depth: int) -> None:
    """Prompt: its own tokens and steps only, the past is known. Generation: from the first token on, one step for each."""
    measured, _ = loop(hybrid=hybrid)
    for _ in range(3):  # the first round evaluates the past, which does not count
        prompt = measured.measure(Case(prompt=96, depth=depth))
        assert (prompt.tokens, prompt.steps) == (96, 2)  # 64 tokens, then 32
        assert prompt.seconds == pytest.approx(2 * STEP_S + 96 * TOKEN_S)
        answer = measured.measure(Case(generate=10, depth=depth))
        assert (answer.tokens, answer.steps) == (10, 10)
        assert answer.rate == pytest.approx(10 / (10 * (STEP_S + TOKEN_S)))


def test_round_of_several_at_once() -> None:
    """The tokens of all of them, a step for each position, once everybody generates."""
    measured, backend = loop()
    for batch in (1, 2, 4):
        together = measured.measure(Case(generate=8, batch=batch))
        assert (together.tokens, together.steps) == (8 * batch, 8)
        assert together.rate == pytest.approx(8 * batch / (8 * (STEP_S + batch * TOKEN_S)))
        assert max(len(step.samples) for step in backend.batches) == batch


def test_time_inside_kernels() -> None:
    """What the kernels' own clock counts between the marks of a round, and nothing before."""
    measured, backend = loop()
    measured.kernel_clock = lambda: backend.now * 0.75
    measured.measure(Case(prompt=50))
    round_ = measured.measure(Case(generate=8))
    assert round_.kernel_s == pytest.approx(0.75 * round_.seconds)


def test_cases() -> None:
    """One sequence at every depth, several at the smallest; what was not asked for is not measured."""
    names = [case.name for case in wanted_cases([512], [128], [1, 2, 4], [0, 1024])]
    assert names == [
        "prompt 512", "generate 128", "prompt 512 behind 1024", "generate 128 behind 1024", "generate 128 x 2", "generate 128 x 4",
    ]  # fmt: skip
    assert [case.name for case in wanted_cases([0], [16], [1], [0])] == ["generate 16"]
    assert [case.name for case in wanted_cases([0], [16], [8], [0])] == ["generate 16 x 8"]
    assert [case.name for case in wanted_cases([0], [16], [8], [32, 64])] == ["generate 16 x 8 behind 32"]
    assert [case.name for case in wanted_cases([7, 9], [0], [1, 8], [0])] == ["prompt 7", "prompt 9"]


def test_numbers() -> None:
    """Rising, each once."""
    assert numbers("--batch", "8, 1,2,8") == [1, 2, 8]
    for text in ("", "1,", "-1", "1.5", "x", "²", "1e3"):
        with pytest.raises(ConfigError, match="--batch"):
            numbers("--batch", text)


def test_slots() -> None:
    """Every case finds room for twice its sequences, each with a page that it has only begun."""
    num_rows, num_pages, num_snapshots = slots([Case(generate=10, batch=3), Case(prompt=100, depth=50)], page_tokens=16)
    assert num_rows == 3
    assert num_pages == 2 * (-(-152 // 16) + 1)  # 152 tokens: 50 + 100, and up to two more
    assert num_snapshots > num_rows


def test_forecast() -> None:
    """Right for one sequence on a device whose steps always take the same."""
    measured, _ = loop()
    cases = [Case(prompt=64), Case(generate=10), Case(generate=10, batch=4)]
    prompt, alone, together = measure.forecast(measured, cases)
    assert alone == pytest.approx(10 * (STEP_S + TOKEN_S))
    assert prompt == pytest.approx(64 * (STEP_S / 16 + TOKEN_S))
    assert alone < together < 4 * alone


# ---- what is said


def rounds(*seconds: float, steps: int = 4, kernel_share: float = 0.0) -> list[Round]:
    return [Round(8, steps, s, kernel_share * s) for s in seconds]


def test_medians_and_extremes() -> None:
    """Of the rounds' rates; the step is the median of their averages."""
    found = result(Case(generate=4, batch=2), rounds(2.0, 1.0, 4.0))
    assert (found.median, found.smallest, found.largest, found.step_ms) == (4.0, 2.0, 8.0, 500.0)
    assert found.rates == [4.0, 8.0, 2.0]


def test_share_of_python() -> None:
    """What is left of the fastest round's step."""
    share = host_share(Case(generate=4), rounds(2.0, 1.0, 4.0, kernel_share=0.9))
    assert (share.step_ms, share.outside_ms, share.share) == pytest.approx((250.0, 25.0, 0.1))


def test_numbers_for_people() -> None:
    assert [number(value) for value in (0.12345, 1.5, 99.99, 123.456, 12345.6)] == ["0.123", "1.50", "99.99", "123.5", "12,346"]


def test_active_parameters() -> None:
    """Counted by hand for a file: of 16 experts 4, and no table of embeddings beside the head, of which a token takes a row."""
    file = GgufFile.open(MODEL)
    config, _ = open_model(file)
    sizes = {name: math.prod(tensor.shape) for name, tensor in file.tensors.items()}
    experts = sum(size for name, size in sizes.items() if "_exps" in name)
    used = experts * config.num_experts_used // config.num_experts
    table = sizes["token_embd.weight"] - config.hidden_size if "output.weight" in sizes else 0
    assert num_active(file, config) == sum(sizes.values()) - experts + used - table
    assert model_facts(file, config).num_parameters == sum(sizes.values())


def test_processor_name(tmp_path: Path) -> None:
    """As the system says, or something at least."""
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n")
    assert processor_name(tmp_path / "cpuinfo") == "Some CPU @ 2 GHz"
    assert processor_name(tmp_path / "none")


def test_a_line_is_wiped_before_others_are_printed() -> None:
    """What a terminal shows is the table, not what is left of the progress."""
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    line = ProgressLine("bench", 10, stream=stream, clock=iter([0.0, 1.0, 2.0]).__next__)
    line.update(5, "prompt")
    drawn = len(stream.getvalue()) - 1
    line.wipe()
    line.wipe()
    assert stream.getvalue().endswith("\r" + " " * drawn + "\r")
    assert stream.getvalue().count("\r") == 3


# ---- the command

SMALL = ["-p", "20", "-n", "4", "-b", "1,3", "-d", "0,30,100", "-r", "2", "--ctx", "64"]


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["bench", *arguments, "--json", "-"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Every number of the table, the setting, and what was left out; the standard output has nothing else."""
    report = run_json(capsys, MODEL, *SMALL, "-t", "1", "--device", "cpu", "--activations", "int8")
    assert [one["test"] for one in report["results"]] == [
        "prompt 20", "generate 4", "prompt 20 behind 30", "generate 4 behind 30", "generate 4 x 3",
    ]  # fmt: skip
    assert report["left_out"] == ["prompt 20 behind 100", "generate 4 behind 100"]
    assert report["num_rounds"] == 2
    machine, model = report["machine"], report["model"]
    assert (machine["device"], machine["threads"], machine["activations"]) == ("cpu", 1, "int8")
    assert machine["level"]
    assert (model["architecture"], model["file"]) == ("qwen3next", MODEL)
    assert sum(model["quant_types"].values()) == pytest.approx(1)
    for one in report["results"]:
        assert 0 < one["smallest"] <= one["median"] <= one["largest"]
        assert len(one["rates"]) == 2
    assert [one["test"] for one in report["host_shares"]] == ["generate 4", "generate 4 x 3"]
    for one in report["host_shares"]:
        assert 0 < one["outside_ms"] < one["step_ms"]


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    """A header, a line for each test under the names of its columns, and a word about what does not fit; how long it takes and
    how far it is goes elsewhere."""
    assert main(["bench", MODEL, *SMALL]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("test"))
    assert lines[at].split() == ["test", "tokens/s", "smallest", "largest", "ms/step"]
    assert {len(line) for line in lines[at : at + 6]} == {len(lines[at])}
    assert lines[at + 1].startswith("prompt 20 ")
    assert MODEL in lines[0]
    assert "prompt 20 behind 100" in lines[-1]
    assert captured.err.startswith("bench: about ")


def test_reference_has_no_share(capsys: pytest.CaptureFixture[str]) -> None:
    """Where everything is Python nothing is said about its share."""
    report = run_json(capsys, MODEL, "--device", "reference", "-p", "4", "-n", "1", "-b", "1", "-d", "0", "-r", "1")
    assert report["host_shares"] == []
    assert report["machine"]["level"] == ""


def test_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """JSON, Markdown and a picture beside the table, all of the same results."""
    pytest.importorskip("matplotlib")
    targets = {name: tmp_path / f"report.{name}" for name in ("json", "markdown", "svg", "png")}
    arguments = ["--json", str(targets["json"]), "--markdown", str(targets["markdown"]), "--plot", str(targets["svg"])]
    assert main(["bench", MODEL, *SMALL, *arguments]) == 0
    printed = capsys.readouterr().out
    report = json.loads(targets["json"].read_text())
    written = targets["markdown"].read_text()
    rows = [line for line in written.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {6}
    assert len(rows) == 2 + len(report["results"])
    for one in report["results"]:
        snapshots = [one["test"], *(number(one[key]) for key in ("median", "smallest", "largest", "step_ms"))]
        assert f"| {' | '.join(snapshots)} |" in rows
        assert any(line.startswith(one["test"]) and line.split()[-4:] == snapshots[1:] for line in printed.splitlines())
    assert targets["svg"].read_text().count("<svg") == 1


def test_markdown_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Ready to be piped into a file."""
    assert main(["bench", MODEL, *SMALL, "--markdown", "-"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("- model: ")
    assert "\ntest" not in out


def some_report(*cases: Case) -> Report:
    results = [result(case, rounds(1.0, 2.0)) for case in cases]
    empty = {"version": "", "machine": None, "model": None, "caches": None, "max_step_tokens": 0, "num_rounds": 2}
    return Report(**empty, results=results, host_shares=[], left_out=[])  # type: ignore[arg-type]


def test_panels() -> None:
    """Every result is a point of one curve at least, and a curve has one length and rising places."""
    cases = list(wanted_cases([64], [8, 16], [1, 2, 4], [0, 32, 128]))
    together, alone, prompt, lengths = panels_of(some_report(*cases))
    assert [(name, [x for x, _ in points]) for name, points in together[2]] == [
        ("generate 8", [1, 2, 4]), ("generate 16", [1, 2, 4]),
    ]  # fmt: skip
    assert [(name, [x for x, _ in points]) for name, points in alone[2]] == [
        ("generate 8", [0, 32, 128]), ("generate 16", [0, 32, 128]),
    ]  # fmt: skip
    assert [(name, [x for x, _ in points]) for name, points in prompt[2]] == [("prompt 64", [0, 32, 128])]
    assert lengths[2] == []
    shown = {one.test for _, _, curves in (together, alone, prompt) for _, points in curves for _, one in points}
    assert shown == {case.name for case in cases}
    *_, lengths = panels_of(some_report(*wanted_cases([8, 64, 512], [0], [1], [0])))
    assert [[x for x, _ in points] for _, points in lengths[2]] == [[8, 64, 512]]


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["--repeat", "0"], "--repeat"),
        (["--repeat", "1,2"], "--repeat"),
        (["--repeat", "five"], "--repeat"),
        (["--batch", "1,x"], "--batch"),
        (["--batch", "0"], "--batch"),
        (["--batch", "64", "--max-step-tokens", "32"], "--batch 64"),
        (["--depth", "-1"], "--depth"),
        (["--depth", ""], "--depth"),
        (["--prompt", "99999999999"], "--prompt"),
        (["--prompt", "0", "--generate", "0"], "nothing to measure"),
        (["--ctx", "64"], "context of 64"),
        (["--json", "-", "--markdown", "-"], "--json and --markdown"),
        (["--json", "/nowhere/report.json"], "/nowhere"),
        (["--markdown", "/"], "--markdown"),
        (["--plot", "report.gif"], "--plot"),
        (["--threads", "x"], "--threads"),
        (["--random", "tiny"], "MODEL or --random"),
    ],
)
def test_mistakes(arguments: list[str], culprit: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence that names what was wrong, before anything is measured."""
    assert main(["bench", MODEL, "--batch", "1", *arguments]) == 2
    captured = capsys.readouterr()
    assert culprit in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """How to get it, before minutes of measuring."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["bench", MODEL, "--plot", "report.svg"]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err


# ---- without a file


def test_random_weights(capsys: pytest.CaptureFixture[str]) -> None:
    """A named shape is measured as a file is, and counted as what it would be on a disk."""
    report = run_json(capsys, "--random", "tiny:Q8_0", "--device", "cpu", "-p", "40", "-n", "3", "-b", "1", "-d", "0", "-r", "1")
    assert len(report["results"]) == 2
    assert report["model"]["architecture"] == "qwen35moe"
    assert set(report["model"]["quant_types"]) == {"Q8_0", "F32"}


def test_random_weights_that_do_not_fit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A device that computes in the machine's memory is not filled until the system ends us."""
    monkeypatch.setattr(random_model, "available_memory_bytes", lambda: 2**20)
    assert main(["bench", "--random", "tiny", "--device", "cpu"]) == 2
    captured = capsys.readouterr()
    assert "--random tiny needs 4.70 MiB" in captured.err
    assert captured.err.count("\n") == 1


def test_names_of_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--random", "list"]) == 0
    assert "35b-a3b" in capsys.readouterr().out
    for name in ("36b", "tiny:Q9", ":Q8_0"):
        assert main(["bench", "--random", name]) == 2
        captured = capsys.readouterr().err
        assert "80b-a3b" in captured
        assert repr(name) in captured
