"""ops/prometheus as Prometheus reads it, and every name in it as the server publishes it."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from svc.http.service import Readiness
from svc.slots.events import FinishReason
from tests.scenarios.server import Server

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "ops" / "prometheus"
DASHBOARD = ROOT / "ops" / "grafana" / "headrace.json"
RUNBOOK = (ROOT / "ops" / "runbook.md").read_text()
RULES = (PROMETHEUS / "rules.yml").read_text()
ALERTS = re.findall(r"- alert: (\w+)", RULES)
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (package prometheus) is not installed")


def promtool(*arguments: str, text: str | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["promtool", *arguments], cwd=PROMETHEUS, input=text, capture_output=True, text=True, check=False)


@needs_promtool
@pytest.mark.parametrize(
    "arguments", [("check", "config", "scrape.yml"), ("check", "rules", "rules.yml"), ("test", "rules", "rules_test.yml")]
)
def test_promtool_is_content(arguments: tuple[str, ...]) -> None:
    """Configuration and rules are valid, and each alert fires when it should and only then (rules_test.yml)."""
    result = promtool(*arguments)
    assert result.returncode == 0, result.stdout + result.stderr


def test_each_alert_is_tested_and_explained() -> None:
    """rules_test.yml has every alert firing, and the runbook a section that its annotation leads to."""
    tests = (PROMETHEUS / "rules_test.yml").read_text()
    assert len(ALERTS) == len(set(ALERTS)) >= 8
    for alert in ALERTS:
        assert re.search(rf"alertname: {alert}\n\s+exp_alerts:", tests), alert
        assert f"ops/runbook.md#{alert.lower()}" in RULES
        assert re.search(rf"^### {alert}$", RUNBOOK, re.MULTILINE), alert
    assert set(re.findall(r"^### (Headrace\w+)$", RUNBOOK, re.MULTILINE)) == set(ALERTS)


async def _scrape(server: Server) -> str:
    """/metrics as Prometheus gets it, after an answer and a refusal."""
    await server.complete([5, 6, 7], 3)
    assert (await server.status("/v1/completions", {}))[0] == 400
    async with server._session.get("/metrics") as response:
        return await response.text()


def _rule_expressions() -> list[str]:
    found = re.findall(r"^ {8}expr: (.*?)\n(?= {8}\w+:)", RULES, re.DOTALL | re.MULTILINE)
    assert len(found) == len(ALERTS)
    return found


def _panel_expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def test_the_dashboard_shows_what_the_page_says_to_watch() -> None:
    """Every metric in the table of docs/operations.md has a panel."""
    page = (ROOT / "docs" / "operations.md").read_text()
    table = page[page.index("| metric |") :]
    rows = re.findall(r"^\| (`[a-z].*?) \|", table, re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`([a-z_]+)(?:\{[a-z]+\})?`", row)}
    expressions = "\n".join(_panel_expressions())
    assert len(names) >= 15
    assert [name for name in sorted(names) if f"headrace_{name}" not in expressions] == []


@needs_promtool
def test_prometheus_understands_the_dashboard(tmp_path: Path) -> None:
    """Each panel's expression is one of PromQL; Grafana fills the interval in."""
    rules = [{"record": f"panel:{i}", "expr": e.replace("$__rate_interval", "5m")} for i, e in enumerate(_panel_expressions())]
    path = tmp_path / "panels.yml"
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))  # JSON is YAML
    result = promtool("check", "rules", str(path))
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(rules)} rules found" in result.stdout


async def test_names_are_those_of_the_server(tmp_path: Path) -> None:
    """Every series and label that a rule, the dashboard or the runbook names is in a real scrape; so are the label values.

    promtool finds nothing wrong with the exposition.
    """
    async with Server("--cache-dir", str(tmp_path)) as server:
        text = await _scrape(server)
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    labels: dict[str, set[str]] = {}
    for sample in samples:
        labels.setdefault(sample.name, {"job", "instance"}).update(sample.labels)

    expressions = "\n".join([*_rule_expressions(), *_panel_expressions()])
    asked = re.findall(r"\b((?:headrace|process)_\w+)(?:\{(.*?)\})?", expressions)
    assert len(asked) > len(ALERTS)
    for name, matchers in asked:
        assert name in labels, name
        assert set(re.findall(r"(\w+)=~?\"", matchers)) <= labels[name], (name, matchers)
    for name in re.findall(r"`(headrace_\w+)`", RUNBOOK):
        assert name in labels or f"{name}_sum" in labels, name
    states = {value for group in re.findall(r"state=~?\"(.*?)\"", expressions) for value in group.split("|")}
    assert states <= {state.value for state in Readiness}
    reasons = {value for group in re.findall(r"finished_reason=~?\"(.*?)\"", expressions) for value in group.split("|")}
    assert reasons <= {reason.value for reason in FinishReason}

    now = {sample.labels["state"]: sample.value for sample in samples if sample.name == "headrace_readiness"}
    assert now == {state.value: float(state is Readiness.READY) for state in Readiness}
    if shutil.which("promtool"):
        own = "".join(line for line in text.splitlines(keepends=True) if "llamacpp:" not in line)  # colons are for rules, it says
        result = promtool("check", "metrics", text=own)
        assert (result.returncode, result.stdout + result.stderr) == (0, "")
