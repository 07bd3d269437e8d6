"""svc.cli: what can be seen from a shell. Mistakes end with exit code 2 and one sentence, never a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

from svc.cli import build_parser, main
from svc.cli.options import load
from svc.config import BUNDLED_MODEL, OPTIONS


def fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Runs a command that must end with exit code 2; gives its only line on stderr."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("headrace: ")
    return captured.err


def test_serve_has_a_flag_for_every_option(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line is generated from the table, help and defaults included."""
    monkeypatch.setenv("COLUMNS", "500")  # argparse would break lines at hyphens
    with pytest.raises(SystemExit) as caught:
        main(["serve", "--help"])
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for option in OPTIONS:
        if option.key != "model":
            assert option.flag + " " in text or f"{option.flag}," in text
            assert option.help.split(";")[0] in text


def test_only_given_flags_are_passed_on() -> None:
    """A flag that is not given must not hide the file or the environment."""
    given = vars(build_parser().parse_args(["serve", "m.gguf", "--kv-bytes", "4GiB", "--no-strict-model-name"]))
    assert {key: value for key, value in given.items() if key not in ("run", "config", "check")} == {
        "model": "m.gguf",
        "kv_bytes": "4GiB",
        "strict_model_name": False,
    }
    assert set(vars(build_parser().parse_args(["serve"]))) == {"run", "config", "check"}


def test_no_model_is_the_bundled_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command without MODEL works on the model that is shipped; a setting that names one wins."""
    monkeypatch.delenv("HEADRACE_MODEL", raising=False)
    assert load(build_parser().parse_args(["serve"])).model == str(BUNDLED_MODEL)
    assert BUNDLED_MODEL.exists()
    monkeypatch.setenv("HEADRACE_MODEL", "other.gguf")
    assert load(build_parser().parse_args(["serve"])).model == "other.gguf"


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["serve", "m.gguf", "--port", "99999"], "--port"),
        (["serve", "m.gguf", "--kv-type", "f8"], "--kv-type"),
        (["serve", "", "--port", "1"], "MODEL"),
        (["serve", "m.gguf", "--config", "/no/such/file.toml"], "/no/such/file.toml"),
        (["inspect", "/no/such/model.gguf"], "/no/such/model.gguf"),
    ],
)
def test_bad_value_is_one_sentence(arguments: list[str], culprit: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence names what was wrong."""
    assert culprit in fails(arguments, capsys)


@pytest.mark.parametrize("arguments", [[], ["serv"], ["serve", "--prot", "1"], ["serve", "a", "b"], ["serve", "--por", "1"]])
def test_unknown_words_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """argparse's own complaints have the same exit code; abbreviations are not guessed."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: headrace" in capsys.readouterr().err


def test_misspelt_variable_is_warned_about(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning comes before whatever happens next."""
    monkeypatch.setenv("HEADRACE_PROT", "1")
    assert main(["serve", "/no/such/model.gguf"]) == 2
    assert capsys.readouterr().err.count("HEADRACE_PROT") == 1


def test_interrupt_ends_quietly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C before the server can drain: exit code 130 as a shell expects, no traceback."""
    from svc.cli import serve

    def interrupted(namespace: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(serve, "run", interrupted)
    assert main(["serve"]) == 130
    assert capsys.readouterr().err == ""


def test_version_and_module_form() -> None:
    """`python -m svc.cli` is the same program and knows its version."""
    result = subprocess.run([sys.executable, "-m", "svc.cli", "--version"], capture_output=True, text=True, check=False)
    assert result.returncode == 0
    assert result.stdout.startswith("headrace ")
    assert result.stderr == ""


def test_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    """`headrace inspect --help | head -0` ends without a traceback."""
    command = f"{sys.executable} -m svc.cli inspect --help | true"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in result.stderr
