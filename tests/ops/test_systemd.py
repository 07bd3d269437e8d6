"""ops/systemd/headrace.service as systemd reads it, and as the server behaves."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from svc.app import STOP_EXTENSION_S
from svc.cli import EXIT_BAD_INPUT
from svc.config import CONFIG_FILE_VARIABLE, OPTIONS, Config

ROOT = Path(__file__).parents[2]
UNIT = (ROOT / "ops" / "systemd" / "headrace.service").read_text()
PROGRAM = "/opt/headrace/bin/headrace"
LARGEST_EXPOSURE = 20  # tenths; "OK" begins at 50
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def values(key: str) -> list[str]:
    """What the unit says for a key, line by line."""
    return re.findall(rf"^{key}=(.*)$", UNIT, re.MULTILINE)


def value(key: str) -> str:
    (only,) = values(key)
    return only


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that exists here: `verify` looks for it."""
    path = tmp_path / "headrace.service"
    path.write_text(UNIT.replace(PROGRAM, shutil.which("true") or "/bin/true"))
    return path


def analyze(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)


@needs_systemd
def test_systemd_accepts_every_line(unit: Path) -> None:
    """`verify` has nothing to say: a key that systemd does not know would only be a line in a log."""
    result = analyze("verify", "--man=no", "--recursive-errors=no", str(unit))
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


@needs_systemd
def test_verify_would_notice(unit: Path) -> None:
    """The other way round: a misspelt key is reported."""
    unit.write_text(unit.read_text().replace("WatchdogSec=", "WatchdogSecs="))
    assert "WatchdogSecs" in analyze("verify", "--man=no", "--recursive-errors=no", str(unit)).stderr


@needs_systemd
def test_little_is_exposed(unit: Path) -> None:
    """systemd's own measure of what an intruder in the service could do."""
    result = analyze("security", "--offline=true", f"--threshold={LARGEST_EXPOSURE}", "--no-pager", str(unit))
    assert result.returncode == 0, result.stdout[-200:]


def test_what_the_server_needs_is_not_taken_away() -> None:
    """Hardening that other services bear: it would hide the GPU, forbid its compiler, or hide the memory that is free."""
    for line in ("PrivateDevices=yes", "MemoryDenyWriteExecute=yes", "ProcSubset=pid", "PrivateNetwork=yes"):
        assert not re.search(rf"^{line}$", UNIT, re.MULTILINE)
    assert {"AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK"} == set(value("RestrictAddressFamilies").split())


def test_unit_and_server_speak_of_the_same_things() -> None:
    """The exit code that starting again does not help, the stop timeout, and the variables are the server's."""
    assert value("RestartPreventExitStatus") == str(EXIT_BAD_INPUT)
    assert int(value("TimeoutStopSec")) > Config().drain_s + STOP_EXTENSION_S
    known = {CONFIG_FILE_VARIABLE, *(option.variable for option in OPTIONS)}
    named = set(re.findall(r"\bHEADRACE_[A-Z_]+[A-Z]\b", UNIT))
    assert named <= known, named - known


def test_the_reload_is_the_servers() -> None:
    """SIGHUP, at a key file that the service reads in place: a credential would be the copy made at the start."""
    assert value("ExecReload") == "/bin/kill -HUP $MAINPID"
    assert values("LoadCredential") == []
    (path,) = [line.partition("=")[2] for line in values("Environment") if line.startswith("HEADRACE_API_KEY_FILE=")]
    assert Path(path).is_absolute()
    group = value("SupplementaryGroups")
    runbook = (ROOT / "ops" / "runbook.md").read_text()
    assert f"groupadd --system {group}" in runbook
    assert re.search(rf"chown root:{group} {path}\b", runbook)


def test_memory_has_a_limit() -> None:
    """The machine survives a server that takes too much, and the server is started again."""
    assert re.fullmatch(r"\d+%", value("MemoryMax"))
    assert value("OOMPolicy") == "stop"
    assert value("Restart") == "on-failure"
